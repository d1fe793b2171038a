"""What clients wrote and read of a DAG's values, and what such a history must not show.

Each value that is written is written by one call alone (perhaps sent again with its `write_id`), so what is read
says by whom. Versions count the writes: no two have the same one, a write on a condition has the version that it
names and one more, and whoever reads after a write was answered reads that one or a later.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.worlds.wire import Known


@dataclass(slots=True)
class Write:
    """One write of one value. `expected` is the version that it was made for, None for any; `versions` are those
    that it was answered with, first `sent` and perhaps again, `done` with the first of these answers."""

    value: Any
    expected: int | None
    sent: float
    write_id: str | None = None
    done: float | None = None
    versions: set[int] = field(default_factory=set)
    is_possible: bool = False  # it may have been made

    def answered(self, known: Known, version: int | None, done: float) -> None:
        self.is_possible |= known != "fail"
        if known == "ok" and version is not None:
            self.versions.add(version)
            self.done = done if self.done is None else self.done


@dataclass(frozen=True, slots=True)
class Read:
    """A value as it was shown; version 0 where there was none."""

    value: Any
    version: int
    sent: float
    done: float


class Cell:
    """One value of one DAG."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.reads: list[Read] = []


Cells = dict[str, Cell]


def cells() -> Cells:
    return defaultdict(Cell)


def judge(values: Cells) -> Iterator[str]:
    """Every violation, as a sentence."""
    for key, cell in values.items():
        yield from (f"value {key}: {fault}" for look in (_versions, _order, _reads) for fault in look(cell))


def _versions(cell: Cell) -> Iterator[str]:
    by_version: dict[int, Write] = {}
    for write in cell.writes:
        if len(write.versions) > 1:
            yield f"{write.value} was applied twice, as {sorted(write.versions)}"
        for version in write.versions:
            if other := by_version.get(version):
                yield f"{write.value} and {other.value} are both version {version}"
            by_version[version] = write
            if write.expected is not None and version != write.expected + 1:
                yield f"{write.value} was for version {write.expected} and became {version}"
    newest = max([*by_version, *(read.version for read in cell.reads)], default=0)
    unknown = sum(write.is_possible and not write.versions for write in cell.writes)
    if newest > len(by_version) + unknown:
        yield f"it is at version {newest} by {len(by_version)} writes and {unknown} that may have been made"


def _order(cell: Cell) -> Iterator[str]:
    """Who writes after another was answered has a later version."""
    made = [(min(write.versions), write) for write in cell.writes if write.versions]
    for lower, first in made:
        for higher, second in made:
            if second.done is not None and second.done < first.sent and higher > lower:
                yield (
                    f"{second.value} is version {higher} and was answered before {first.value}, {lower}, was sent"
                )


def _reads(cell: Cell) -> Iterator[str]:
    written = {write.value["by"]: write for write in cell.writes}
    for read in cell.reads:
        earlier = [v for write in cell.writes if write.done and write.done < read.sent for v in write.versions]
        earlier += [other.version for other in cell.reads if other.done < read.sent]
        if read.version < max(earlier, default=0):
            yield f"{read} came after version {max(earlier)} was there"
        if read.version == 0:
            continue
        write = written.get(read.value["by"]) if isinstance(read.value, dict) else None
        if write is None or not write.is_possible or write.sent > read.done:
            yield f"{read} was written by nobody"
        elif (write.versions and read.version not in write.versions) or (
            write.expected is not None and read.version != write.expected + 1
        ):
            yield f"{read} was written as {write}"
