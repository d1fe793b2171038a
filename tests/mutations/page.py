"""The table of `docs/testing.md`: each mutation, and the test that saw it."""

import re
from collections.abc import Iterable

from services.local.stack import ROOT
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.running import Outcome

_PAGE = ROOT / "docs" / "testing.md"
_BEGIN, _END = "<!-- mutations: written by `python -m tests.mutations --write` -->", "<!-- end of mutations -->"
MISSED = "**nothing**"


def write(outcomes: Iterable[Outcome]) -> None:
    """Put these outcomes in the place of what the table said; of the others it says what it said."""
    seen = read() | {
        outcome.mutation.name: f"`{outcome.seen_by.partition('[')[0]}`" if outcome.seen_by else MISSED
        for outcome in outcomes
    }
    rows = [
        f"| {mutation.name} | {mutation.guards} | {seen.get(mutation.name, MISSED)} |" for mutation in MUTATIONS
    ]
    table = "\n".join(["| mutation | what its guard holds | seen by |", "|---|---|---|", *rows])
    before, _, rest = _PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{table}\n\n{_END}{after}")


def read() -> dict[str, str]:
    """What the table says each mutation was seen by."""
    _, _, rest = _PAGE.read_text().partition(_BEGIN)
    table, _, _ = rest.partition(_END)
    return dict(re.findall(r"^\| (.+?) \| .+ \| (.+?) \|$", table, re.MULTILINE)[1:])
