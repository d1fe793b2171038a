"""The catalogue of planted faults fits the code, and the page says that each was seen."""

from collections import Counter
from collections.abc import Iterator
from functools import cache

from services.local.stack import ROOT
from tests.mutations import in_worlds, page
from tests.mutations.beyond_worlds import REASONS
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.met_faults import MET
from tests.mutations.model import Mutation


@cache
def text_of(path: str) -> str:
    """A file's text; empty where there is none."""
    return (ROOT / path).read_text() if (ROOT / path).is_file() else ""


def faults(mutation: Mutation) -> Iterator[str]:
    """Why it cannot be planted, or be seen."""
    if (count := text_of(mutation.path).count(mutation.text)) != 1:
        yield f"its text stands {count} times in {mutation.path}"
    if mutation.becomes == mutation.text:
        yield "it changes nothing"
    if not mutation.tests:
        yield "it has no test"
    for test in mutation.tests:
        file, _, name = test.partition("::")
        text = text_of(f"tests/{file}")
        if not text or (name and f"def {name}(" not in text):
            yield f"there is no {test}"


def test_a_mutation_can_be_planted_and_its_tests_are_there() -> None:
    assert [f"{mutation.name}: {fault}" for mutation in MUTATIONS for fault in faults(mutation)] == []


def test_mutations_have_names_of_their_own() -> None:
    assert [name for name, count in Counter(mutation.name for mutation in MUTATIONS).items() if count > 1] == []


def test_the_page_says_that_each_was_seen() -> None:
    seen = page.read()
    assert list(seen) == [mutation.name for mutation in MUTATIONS]
    assert [name for name, by in seen.items() if by == page.MISSED] == []


def test_the_page_says_of_each_that_worlds_may_meet_what_they_found() -> None:
    assert list(in_worlds.read()) == list(in_worlds.NAMES)
    assert set(in_worlds.NAMES) <= {mutation.name for mutation in MUTATIONS}


def test_the_page_says_why_no_world_meets_what_none_has_met() -> None:
    """And says it of nothing that one has met."""
    reasons = {name: row[-1] for name, row in in_worlds.read().items() if row[0] == "none"}
    assert reasons == REASONS


def test_the_page_says_by_which_world_each_fault_that_was_met_is_found_again() -> None:
    rows = in_worlds.read()
    assert [fault for fault, name in MET if not rows[name][0].isdigit()] == []
    assert in_worlds.read_met() == in_worlds.met(rows)
