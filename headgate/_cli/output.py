"""What the command line shows: aligned tables, JSON, and a DAG's progress."""

import contextlib
import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self, TextIO, TypeVar

from pydantic import BaseModel

from headgate import wire
from headgate._calls.elements import Listing
from headgate._stderr import stderr_line

CELL_CHARS_MAX: Final = 60
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
LINE_EVERY_S: Final = 2.0
T = TypeVar("T")


def plain(value: Any) -> Any:
    """A value as JSON has it: models and typed tuples become objects."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {name: plain(element) for name, element in value.items()}
    return value.isoformat() if isinstance(value, datetime) else value


def told(found: Listing[T]) -> Listing[T]:
    """A list, once it was said what is missing there."""
    if found.away:
        shards = ", ".join(map(str, found.away))
        one, them = ("shard", "does") if len(found.away) == 1 else ("shards", "do")
        stderr_line(f"headgate: {one} {shards} {them} not answer: what is there is missing here")
    return found


def show_json(value: Any, out: TextIO) -> None:
    out.write(json_text(value, indent=2) + "\n")


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON in which what would steer a terminal, or turn the direction of writing, is escaped."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent, default=str)
    return "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1]


def show_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], out: TextIO, *, whole: bool = False
) -> None:
    """Rows under upper-case headings; numbers to the right.

    In a terminal the table has its width: headings take several lines, long texts are cut, ids, times and numbers
    are not, and where that does not do, the last columns are left out and counted. Elsewhere, and where `whole` is
    asked for, nothing is cut or left out: what is long sticks out of its column.
    """
    fits = out.isatty() and not whole
    cells = [
        [cell(row.get(column), chars_max=CELL_CHARS_MAX if fits else None) for column in columns] for row in rows
    ]
    data = [max((min(len(line[at]), CELL_CHARS_MAX) for line in cells), default=0) for at in range(len(columns))]
    right = [_is_numeric(rows, column) for column in columns]
    widths = [max(len(column), wide) for column, wide in zip(columns, data, strict=True)]
    shown = range(len(columns))
    if fits:
        room = shutil.get_terminal_size().columns
        least = [
            max(_longest(column), wide if at_right or _is_whole(rows, column) else 0)
            for column, wide, at_right in zip(columns, data, right, strict=True)
        ]
        while len(shown) > 1 and sum(least[at] for at in shown) + 2 * (len(shown) - 1) > room:
            shown = shown[:-1]
        widths = fitting([widths[at] for at in shown], [least[at] for at in shown], room)
    headings = _stacked([columns[at].upper() for at in shown], [widths[at] for at in shown])
    for line in (*headings, *cells):
        texts = [line[at] if right[at] or not fits else cut(line[at], widths[at]) for at in shown]
        aligned = [texts[at].rjust(widths[at]) if right[at] else texts[at].ljust(widths[at]) for at in shown]
        out.write("  ".join(aligned).rstrip() + "\n")
    if len(shown) < len(columns):
        out.write(f"({', '.join(columns[len(shown) :])}: no room here; -o json has them)\n")


def _is_numeric(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    values = [row.get(column) for row in rows]
    return any(isinstance(value, int | float) for value in values) and not any(
        isinstance(value, bool) for value in values
    )


def _is_whole(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Whether a part of it says nothing: an id, or a time."""
    values = [value for row in rows if (value := row.get(column)) is not None]
    whole = (isinstance(value, datetime) or (isinstance(value, str) and _UUID(value)) for value in values)
    return column == "id" or column.endswith("_at") or (bool(values) and all(whole))


def _longest(heading: str) -> int:
    return max(map(len, heading.replace(" ", "_").split("_")))


def _stacked(headings: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    """Each heading on as many lines as its column's width asks for, the last lines beside one another."""
    found = []
    for heading, width in zip(headings, widths, strict=True):
        lines = [""]
        for word in re.split("(?<=[_ ])", heading):
            if lines[-1] and len(lines[-1]) + len(word) > width:
                lines.append("")
            lines[-1] += word
        found.append([line if line is lines[-1] else line.rstrip("_ ") for line in lines])
    high = max(map(len, found), default=0)
    return [
        [lines[row - (high - len(lines))] if row >= high - len(lines) else "" for lines in found]
        for row in range(high)
    ]


def fitting(widths: Sequence[int], least: Sequence[int], columns: int) -> list[int]:
    """Widths of a table that has room in so many columns: the widest give first, none below its heading."""
    found = list(widths)
    over = sum(found) + 2 * (len(found) - 1) - columns
    while over > 0:
        widest = max(range(len(found)), key=lambda at: found[at] - least[at])
        if found[widest] <= least[widest]:
            break  # the headings alone have no room: lines are wrapped
        found[widest] -= 1
        over -= 1
    return found


def cut(text: str, width: int) -> str:
    """Text of at most so many characters."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def show_fields(fields: Mapping[str, Any], out: TextIO) -> None:
    """One object, a field to a line; empty ones are left out."""
    shown = {name: value for name, value in fields.items() if value not in (None, [], {})}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        out.write(f"{name.ljust(width)}  {cell(value, chars_max=None)}\n")


def cell(value: Any, *, chars_max: int | None = CELL_CHARS_MAX) -> str:
    match value:
        case None:
            text = "-"
        case bool():
            text = "yes" if value else "no"
        case float():
            text = f"{value:.3f}".rstrip("0").rstrip(".")
        case datetime():
            text = value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        case str():
            text = printable(value)
        case _:
            text = json_text(value)
    return text if chars_max is None or len(text) <= chars_max else text[: chars_max - 3] + "..."


def printable(text: str) -> str:
    """Text without control characters: what others stored must not steer this terminal."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def gist(error: str | None) -> str | None:
    """Of an error the line that says what happened, in tables: the last one, as in a traceback."""
    return error.strip().splitlines()[-1] if error and error.strip() else None


def counts_text(dag: wire.Dag) -> str:
    counts = dag.nodes.model_dump()
    parts = [f"{counts[state]} {state}" for state in counts if state != "total" and counts[state]]
    return ", ".join(parts) or "no nodes"


def bar(done: int, total: int, out: TextIO, width: int = 24) -> str:
    """How much is done, as far as `out` can show it."""
    full, empty = ("█", "░") if "utf" in (getattr(out, "encoding", "") or "").lower() else ("#", ".")
    filled = width * done // total if total else 0
    return full * filled + empty * (width - filled)


class LiveLine:
    """How far something is: one line on a terminal, that is drawn anew and gone at the end; nothing elsewhere."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out if out is not None and out.isatty() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def steps(self, done: int, total: int, unit: str) -> None:
        """So many of so many."""
        if self._out is not None:
            self.update(f"{bar(done, total, self._out)} {done}/{total} {unit}")

    def update(self, text: str) -> None:
        """Draw the line anew."""
        if self._out is not None:
            columns = shutil.get_terminal_size().columns
            self._out.write("\r\x1b[K" + printable(text)[: columns - 1])
            self._out.flush()

    def close(self) -> None:
        """Take it away."""
        if self._out is not None:
            self._out.write("\r\x1b[K")
            self._out.flush()


class Progress:
    """A DAG's progress: one live line on a terminal, else a line whenever it has changed, at most every 2 s."""

    unit = "nodes"

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._live = out.isatty()
        self._clock = clock
        self._began: tuple[float, int] | None = None
        self._last = ""
        self._spoke_at = -LINE_EVERY_S

    def update(self, dag: Any) -> None:
        text, counts = self._text(dag), self._counts(dag)
        if self._live:
            columns = shutil.get_terminal_size().columns
            self._out.write("\r\x1b[K" + text[: columns - 1])
        elif counts != self._last and (dag.finished or self._clock() - self._spoke_at >= LINE_EVERY_S):
            self._last, self._spoke_at = counts, self._clock()
            self._out.write(text + "\n")
        self._out.flush()

    def note(self, text: str) -> None:
        """Something besides the counts, like a service that is away."""
        self._out.write(("\r\x1b[K" if self._live else "") + printable(text) + ("" if self._live else "\n"))
        self._out.flush()

    def close(self) -> None:
        if self._live:
            self._out.write("\n")
            self._out.flush()

    def _text(self, dag: Any) -> str:
        done, total = dag.nodes.finished, dag.nodes.total
        paused = " (paused)" if dag.paused else " (held)" if dag.held else ""
        return (
            f"{dag.state}{paused} {self._bar(done, total)} {done}/{total}  {counts_text(dag)}{self._speed(done)}"
        )

    def _counts(self, dag: Any) -> str:
        return counts_text(dag)

    def _speed(self, done: int) -> str:
        self._began = self._began or (self._clock(), done)
        elapsed_s = self._clock() - self._began[0]
        rate = (done - self._began[1]) / elapsed_s if elapsed_s > 0.2 else 0.0
        return f"  {rate:.1f} {self.unit}/s" if rate else ""

    def _bar(self, done: int, total: int) -> str:
        return bar(done, total, self._out)


class OperationProgress(Progress):
    """The same, of what is done to many items at once."""

    unit = "items"

    def _text(self, operation: Any) -> str:
        done, total = operation.scanned, max(operation.total, operation.scanned)
        bar = self._bar(*((1, 1) if operation.state == "done" else (done, total)))
        return f"{operation.kind} {operation.state} {bar} {self._counts(operation)}{self._speed(done)}"

    def _counts(self, operation: Any) -> str:
        parts = [f"{operation.changed} changed"]
        parts += [f"{operation.skipped} left alone"] if operation.skipped else []
        return ", ".join([*parts, f"{operation.scanned}/{max(operation.total, operation.scanned)} looked at"])


class _Whole(io.RawIOBase):
    """An unbuffered output that takes all of what it is given, or fails."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def isatty(self) -> bool:
        return self._raw.isatty()

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        while left:
            taken = self._raw.write(left)
            if taken is None:
                raise BlockingIOError("nobody takes the output, and it may not be waited for")
            left = left[taken:]
        return len(data)


@contextlib.contextmanager
def written_whole() -> Iterator[None]:
    """What is printed is written to its end, or fails. Unbuffered (`PYTHONUNBUFFERED`), Python asks the system
    once: of a disk that fills up, or a pipe, it drops what that did not take, and says nothing."""
    before, raw = sys.stdout, getattr(sys.stdout, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        yield
        return
    whole: Any = _Whole(raw)
    sys.stdout = io.TextIOWrapper(whole, encoding=before.encoding, errors=before.errors, write_through=True)
    try:
        yield
    finally:
        sys.stdout = before


def silence() -> None:
    """What cannot be written is not tried again when the interpreter ends."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
