"""The oracle of values notices what it is for: each history breaks one promise, and the sound one breaks none."""

from collections.abc import Callable

import pytest

from tests.worlds.value_facts import Cell, Read, Write, cells, judge


def written(by: int, expected: int | None, at: float, *versions: int, done: float | None = None) -> Write:
    write = Write({"by": by}, expected, at)
    for version in versions:
        write.answered("ok", version, at + 0.1 if done is None else done)
    return write


def sound() -> Cell:
    """Two writes in turn, one that was refused, one that nobody knows of, and one over whatever was there."""
    cell = Cell()
    cell.writes = [written(1, 0, 1.0, 1), written(2, 1, 2.0, 2), written(3, 1, 2.0), written(4, 2, 3.0)]
    cell.writes[2].answered("fail", None, 2.1)
    cell.writes[3].answered("info", None, 3.1)
    cell.writes.append(written(5, None, 4.0, 4))
    cell.reads = [Read(None, 0, 0.5, 0.6), Read({"by": 1}, 1, 1.5, 1.6), Read({"by": 4}, 3, 3.5, 3.6)]
    return cell


def found(cell: Cell) -> list[str]:
    values = cells()
    values["count"] = cell
    return list(judge(values))


def test_a_sound_history_is_sound() -> None:
    assert found(sound()) == []


def lost_update(cell: Cell) -> None:
    cell.writes[2] = written(3, 1, 2.0, 2)


def applied_twice(cell: Cell) -> None:
    cell.writes[1].answered("ok", 5, 2.2)


def on_another_condition(cell: Cell) -> None:
    cell.writes[1].expected = 0


def version_from_nowhere(cell: Cell) -> None:
    cell.writes[3].is_possible = False
    cell.reads.pop()


def back_in_order(cell: Cell) -> None:
    cell.writes[4] = written(5, None, 0.1, 4, done=0.2)


def stale_read(cell: Cell) -> None:
    cell.reads.append(Read({"by": 1}, 1, 4.5, 4.6))


def gone(cell: Cell) -> None:
    cell.reads.append(Read(None, 0, 4.5, 4.6))


def refused_and_there(cell: Cell) -> None:
    cell.reads[2] = Read({"by": 3}, 3, 3.5, 3.6)


def read_before_it_was_written(cell: Cell) -> None:
    cell.reads[1] = Read({"by": 1}, 1, 0.7, 0.8)


@pytest.mark.parametrize(
    "break_it",
    [
        lost_update,
        applied_twice,
        on_another_condition,
        version_from_nowhere,
        back_in_order,
        stale_read,
        gone,
        refused_and_there,
        read_before_it_was_written,
    ],
)
def test_a_broken_promise_is_found(break_it: Callable[[Cell], None]) -> None:
    cell = sound()
    break_it(cell)
    assert found(cell)
