"""The catalogue of planted faults fits the code, and the page says that each was seen."""

from collections import Counter

import pytest

from services.local.stack import ROOT
from tests.mutations import page
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.model import Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_can_be_planted_and_its_tests_are_there(mutation: Mutation) -> None:
    text = (ROOT / mutation.path).read_text()
    assert (text.count(mutation.text), mutation.becomes != mutation.text) == (1, True)
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert not name or f"def {name}(" in (ROOT / "tests" / file).read_text(), test
        assert (ROOT / "tests" / file).is_file(), test


def test_mutations_have_names_of_their_own() -> None:
    assert [name for name, count in Counter(mutation.name for mutation in MUTATIONS).items() if count > 1] == []


def test_the_page_says_that_each_was_seen() -> None:
    seen = page.read()
    assert list(seen) == [mutation.name for mutation in MUTATIONS]
    assert [name for name, by in seen.items() if by == page.MISSED] == []
