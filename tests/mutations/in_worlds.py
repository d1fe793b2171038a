"""Which planted faults random worlds find, by which seed, and how soon.

Worlds are judged by the contract alone, so they find what breaks a promise that their verbs ask for: no bounds, no
settings, no duty of hours. `NAMES` are the mutations of which that was thought; of one that no world can meet
`beyond_worlds` says why, and its own tests hold it.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from services.local.stack import ROOT
from tests.mutations.beyond_worlds import REASONS
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.met_faults import MET
from tests.mutations.model import Mutation
from tests.mutations.running import copy_of_the_tree
from tests.support.servers import postgres

NAMES = (
    "keys-in-use",
    "revive-namespace",
    "revive-managed",
    "promote-early",
    "ack-namespace",
    "ack-named-ids",
    "ack-remembered",
    "ack-shared-token",
    "ack-first-output",
    "ack-second-look",
    "nack-namespace",
    "nack-second-look",
    "looks-after-extends",
    "attempts-limit",
    "sweep-end",
    "cancel-namespace",
    "flush-of-one-id",
    "enqueue-others-ids",
    "quota-missed-claims",
    "handing-delayed",
    "folding-delayed",
    "folding-all-or-none",
    "folding-cancelling",
    "folding-paused-dags",
    "folding-cleaning",
    "folding-parents",
    "completion-generation",
    "completion-once",
    "confirmation-generation",
    "confirmation-once",
    "edges-flipped-once",
    "resolve-once",
    "expire-externals-resolved",
    "dag-namespace",
    "call-namespace",
    "late-edges",
    "cycles-of-others",
    "cancel-keeps-cleanup",
    "ends-reopening",
    "dropped-sends",
    "reopen-sends",
    "value-version",
    "value-lock",
    "value-again",
    "timer-early",
    "slot-once",
    "slot-due",
    "slot-overlap",
    "trigger-again",
    "tokens-secret",
    "tokens-namespaces",
    "claim-shown",
    "known-cancelled",
    "renewed-add-id",
    "outputs-of-others",
    "set-on-new-shards",
    "cancel-acked-lately",
    "dead-of-a-retry",
    "default-backoff",
    "share-of-the-best",
    "expand-binds-the-ended",
    "adopt-with-children",
    "cleanup-deadline-early",
    "cleanup-deadline-forgotten",
    "first-reason",
    "deadline-reason",
    "compensation-inputs",
    "tolerated-verdict",
    "node-goes-along",
    "unknown-parameters",
    "tokens-bad-line",
    "run-secret",
    "run-generation",
    "run-parks",
    "run-wakes",
    "run-known-keys",
    "run-signal-id",
    "run-managed",
    "run-folded-over",
    "run-folded-once",
    "run-moved-away",
    "run-moved-item",
    "run-update-first",
    "run-update-asked",
    "retried-succeeded",
    "limits-leased",
    "limits-on-their-way",
    "limits-tokens",
    "limits-throttled",
    "limits-behind-a-throttle",
    "gates-move",
    "key-limits-held",
    "key-limits-tokens",
    "key-limits-throttled",
    "key-limits-others",
    "unique-live",
    "unique-dead",
    "unique-others-ack",
    "unique-redriven",
    "unique-dag",
    "unique-dag-retried",
    "logs-token",
    "logs-item",
    "logs-cancelled",
    "logs-namespace",
    "logs-repeated",
    "progress-kept",
)
WORLDS_MAX = 8
_TIME_S_MAX = 1_200
_PAGE = ROOT / "docs" / "testing.md"
_BEGIN = "<!-- worlds: written by `python -m tests.mutations --worlds --write` -->"
_END = "<!-- end of worlds -->"
_BEGIN_MET = "<!-- met faults: written with the table above -->"
_END_MET = "<!-- end of met faults -->"
_NONE = "none"
_WHAT_CHARS_MAX = 110
_ID = re.compile(r" ?\(?[0-9a-f]{8}-[0-9a-f-]{27}\)?")


@dataclass(frozen=True)
class Found:
    """`seed` is that of the world that broke, the `nth` of those tried; None where none did."""

    mutation: Mutation
    seed: int | None
    nth: int
    what: str
    took_s: float


async def run(
    mutations: Iterable[Mutation], seeds: range, jobs: int, tell: Callable[[Found], None]
) -> list[Found]:
    """Let worlds of these seeds live with each mutation until one breaks; `tell` hears of each as it ends."""
    with tempfile.TemporaryDirectory(prefix="headgate-mutations-") as directory:
        async with postgres() as dsn:
            trees: asyncio.Queue[Path] = asyncio.Queue()
            for number in range(jobs):
                trees.put_nowait(copy_of_the_tree(Path(directory) / str(number)))

            async def attempt(mutation: Mutation) -> Found:
                tree = await trees.get()
                before = mutation.plant(tree)
                try:
                    found = await _attempt(mutation, tree, seeds, dsn)
                finally:
                    (tree / mutation.path).write_text(before)
                    trees.put_nowait(tree)
                tell(found)
                return found

            return await asyncio.gather(*map(attempt, mutations))


async def _attempt(mutation: Mutation, tree: Path, seeds: range, dsn: str) -> Found:
    began_s = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.worlds", "--seed", str(seeds.start), "--number", str(len(seeds))),
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "HEADGATE_TEST_POSTGRES_DSN": dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _TIME_S_MAX)
        lines = output.decode().splitlines()
    except TimeoutError:
        lines = []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    took_s = time.monotonic() - began_s
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if broken := re.fullmatch(r"world ([0-9]+) is broken:", line):
            seed = int(broken[1])
            return Found(mutation, seed, seed - seeds.start + 1, following, took_s)
    return Found(mutation, None, len(seeds), "no world broke" if lines else "no end in time", took_s)


def chosen(parts: Sequence[str]) -> list[Mutation]:
    """Those that worlds may meet, whose name holds one of these."""
    return [one for one in MUTATIONS if one.name in NAMES and any(part in one.name for part in parts)]


def write(found: Iterable[Found]) -> None:
    """Put what came of these in the place of what the page said; of the others it says what it said."""
    rows = _rows()
    for one in found:
        seed = _NONE if one.seed is None else str(one.seed)
        rows[one.mutation.name] = [seed, str(one.nth), f"{one.took_s:.0f} s", one.what]
    for name, row in rows.items():
        what = REASONS.get(name, row[-1]) if row[0] == _NONE else row[-1]
        row[-1] = _ID.sub(" an id", what).strip().replace("\\|", "|").replace("|", "\\|")[:_WHAT_CHARS_MAX]
    made = ["| mutation | seed | worlds | after | what it showed, or why none does |", "|---|---|---|---|---|"]
    made += [_line([name, *rows[name]]) for name in NAMES if name in rows]
    text = _PAGE.read_text()
    for begin, end, lines in ((_BEGIN, _END, made), (_BEGIN_MET, _END_MET, met(rows))):
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = "\n".join([before + begin, "", *lines, "", end + after])
    _PAGE.write_text(text)


def met(rows: dict[str, list[str]]) -> list[str]:
    """The lines of the table of faults that were met, by what the other one says."""
    head = ["| fault | mutation | seed | worlds | after |", "|---|---|---|---|---|"]
    return head + [_line([fault, f"`{name}`", *rows[name][:3]]) for fault, name in MET]


def read_met() -> list[str]:
    """As the page has it."""
    _, _, rest = _PAGE.read_text().partition(_BEGIN_MET)
    return rest.partition(_END_MET)[0].strip().splitlines()


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def read() -> dict[str, list[str]]:
    """Of each mutation what the page says of it: the seed, how many worlds, how long, and what was shown or why
    nothing is."""
    return _rows()


def _rows() -> dict[str, list[str]]:
    _, _, rest = _PAGE.read_text().partition(_BEGIN)
    table, _, _ = rest.partition(_END)
    cells = [re.split(r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |")) for line in table.splitlines()]
    return {name: row for name, *row in cells if row and name != "mutation"}
