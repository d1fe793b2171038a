"""`headgate dequeue --ack`: only what was printed is acked."""

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import pytest

from headgate._cli import commands
from headgate._cli import program as cli
from headgate._cli.queue import dequeue
from headgate._client.blocking.client import Client
from headgate.wire import BATCH_MAX
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.conftest import ONCE
from tests.unit.headgate.fakes import Service, problem

MANY = 2_000  # more than a pipe, or a buffer, takes


@contextmanager
def full() -> Iterator[TextIO]:
    """A disk without room."""
    with open("/dev/full", "w") as out:  # noqa: PTH123
        yield out
        silenced(out)


@contextmanager
def unread() -> Iterator[TextIO]:
    """A pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        yield out
        silenced(out)


class Short(io.RawIOBase):
    """A file that takes a little at a time, and in all no more than its room."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int | None:
        if self.room < 0:
            return None  # as one that must not be waited for
        some = bytes(data[: min(1_000, self.room - len(self.taken))])
        if not some:
            raise OSError(errno.ENOSPC, "no space left")
        self.taken += some
        return len(some)


def silenced(out: TextIO) -> None:
    """As the interpreter does at its end; it would complain."""
    out.flush()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    found = Service(lambda _method, path, body: answer(path, body))
    client = Client(queue_url="http://q", transport=found, retry=ONCE)
    monkeypatch.setattr(commands, "client_of", lambda _args: client)
    return found


def answer(path: str, body: Any) -> Any:
    if path.endswith("/dequeue"):
        return {"items": [leased(f"item-{number}", payload="x" * 100) for number in range(MANY)]}
    status = "acked" if path.endswith("/ack") else "requeued"
    return {"results": [{"id": item["id"], "status": status} for item in body["items"]]}


@pytest.mark.parametrize("room", [-1, 1_500, 10_000_000])
def test_what_an_unbuffered_output_takes_in_part_is_written_to_its_end_or_handed_back(
    room: int, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Short(room)
    unbuffered = io.TextIOWrapper(out, encoding="utf-8", write_through=True)  # type: ignore[type-var]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", unbuffered)
        code = cli.main(["dequeue", "t", "--ack", "--count", str(MANY), "-o", "json"])
    asked = [len(body["items"]) for verb in ("/ack", "/nack") for body in service.asked(verb)]
    assert sum(asked) == MANY
    if room < 10_000:
        assert (code, service.asked("/ack")) == (1, [])
    else:
        assert (code, service.asked("/nack")) == (0, [])
        assert len(json.loads(out.taken)) == MANY


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("broken", [full, unread])
def test_what_could_not_be_printed_is_handed_back_and_not_acked(
    broken: Callable[[], Any],
    form: str,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with broken() as out:
        monkeypatch.setattr(sys, "stdout", out)
        code = cli.main(["dequeue", "t", "--ack", "--count", str(MANY), "-o", form])
    assert code == 1
    assert service.asked("/ack") == []
    given_back = [item for body in service.asked("/nack") for item in body["items"]]
    assert len(given_back) == MANY
    assert {item["costs_attempt"] for item in given_back} == {False}
    assert "nothing was acked" in capsys.readouterr().err


def test_a_little_that_a_buffer_holds_is_pushed_out_before_the_ack(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few rows are written nowhere until the interpreter ends: long after the ack."""
    one = {"items": [leased("only")]}
    service.reply = lambda _m, path, body: one if path.endswith("/dequeue") else answer(path, body)
    for broken in (full, unread):
        with broken() as out, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            assert cli.main(["dequeue", "t", "--ack"]) == 1
    assert service.asked("/ack") == []
    assert len(service.asked("/nack")) == 2


def test_a_reader_that_goes_after_it_was_written_to_is_noticed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`| true`: the pipe took it, and nobody will read it."""
    one = {"items": [leased("only")]}
    service.reply = lambda _m, path, body: one if path.endswith("/dequeue") else answer(path, body)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out:

        class Leaving:
            wrote = False

            def write(self, text: str) -> int:
                self.wrote = True
                return out.write(text)

            def flush(self) -> None:
                out.flush()
                if self.wrote and open_ends:
                    os.close(open_ends.pop())

            fileno, isatty = out.fileno, out.isatty

        open_ends = [reading]
        monkeypatch.setattr(sys, "stdout", Leaving())
        assert cli.main(["dequeue", "t", "--ack"]) == 1
        monkeypatch.undo()
    assert not open_ends
    assert service.asked("/ack") == [] and len(service.asked("/nack")) == 1


def test_what_was_printed_is_acked_and_what_was_not_acked_is_told(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["dequeue", "t", "--ack", "--count", "2"]) == 0
    assert sum(len(body["items"]) for body in service.asked("/ack")) == MANY
    assert service.asked("/nack") == []
    lost = {"results": [{"id": "only", "status": "lease_lost"}]}
    one = {"items": [leased("only")]}
    service.reply = lambda _m, path, _b: one if path.endswith("/dequeue") else lost
    capsys.readouterr()
    assert cli.main(["dequeue", "t", "--ack"]) == 4
    assert "only was not acked: lease_lost" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("dequeue", "t", "--ack"), ("ack", "i", "token"), ("--help",), ("misspelt",)])
def test_where_the_standard_output_is_closed_nothing_is_done(
    words: tuple[str, ...], service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`>&-`, as some that start services in the background do."""
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(words) == 2
    assert service.calls == []
    told = capsys.readouterr().err
    assert "the standard output is closed; nothing was done" in told and told.count("\n") == 1


def test_an_interrupt_while_they_are_printed_hands_them_back(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dequeue, "show_rows", interrupted)
    assert cli.main(["dequeue", "t", "--ack"]) == 130
    assert service.asked("/ack") == [] and len(service.asked("/nack")) == MANY // BATCH_MAX
    assert service.asked("/nack")[0]["items"][0]["error"] == "it could not be printed: KeyboardInterrupt"
    assert f"{MANY} items are handed back" in capsys.readouterr().err


def test_an_output_that_is_no_file_of_the_system_is_enough(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, or under a test that captures."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    assert cli.main(["dequeue", "t", "--ack"]) == 0
    assert service.asked("/nack") == [] and "item-0" in out.getvalue()


def test_where_they_cannot_be_handed_back_either_it_is_told_when_they_are_free(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = problem(503, "unavailable", detail="down")
    service.reply = lambda _m, path, body: away if path.endswith("/nack") else answer(path, body)
    with full() as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert cli.main(["dequeue", "t", "--ack"]) == 1
    told = capsys.readouterr().err
    assert "free again when their leases have run out" in told and "down" in told and "handed back" not in told


class Screen(io.StringIO):
    """A terminal of a few columns."""

    def isatty(self) -> bool:
        return True


SHOWN: list[tuple[Any, str]] = [
    ("x" * 5_000 + " the end", "x" * 5_000 + " the end"),
    ({"deep": ["y" * 5_000, "the end"]}, '{"deep": ["' + "y" * 5_000 + '", "the end"]}'),
    ("two\nlines\tand a tab", r'"two\nlines\tand a tab"'),
    ("\x1b]0;steers a terminal\x07", r'"\u001b]0;steers a terminal\u0007"'),
    (3.14159, " 3.14159 "),
    (True, " true "),
    (None, " - "),
    (7, " 7 "),
]


@pytest.mark.parametrize("out", [Screen, io.StringIO])
def test_of_what_is_acked_a_table_cuts_nothing_and_leaves_nothing_out(
    out: type[io.StringIO], service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload was cut at 60 characters, and acked: the rest was gone."""
    items = [leased(f"item-{at}", payload=payload) for at, (payload, _) in enumerate(SHOWN)]
    items[0] |= {"inputs": {"up": "z" * 5_000}, "metadata": {"m": 1}, "headers": {"h": "2"}, "priority": -5}
    items[0] |= {"dag": {"id": "d", "node": "n" * 500, "generation": 3}}
    service.reply = lambda _m, path, body: {"items": items} if path.endswith("/dequeue") else answer(path, body)
    shown = out()
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.setattr(sys, "stdout", shown)
        assert cli.main(["dequeue", "t", "--ack"]) == 0
    told = shown.getvalue()
    assert [body["items"][0]["id"] for body in service.asked("/ack")] == ["item-0"]
    for (_, text), line in zip(SHOWN, told.splitlines()[1:], strict=True):
        assert text in line
    assert all(part in told for part in ("z" * 5_000, '{"m": 1}', '{"h": "2"}', "-5", "n" * 500, "INPUTS"))
    assert "\x1b" not in told and "no room here" not in told


def test_a_table_is_whole_where_a_program_reads_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.reply = lambda *_: {"items": [leased("one", payload=SHOWN[0][0]), leased("two", payload="short")]}
    shown = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", shown)
        assert cli.main(["dequeue", "t"]) == 0
    assert SHOWN[0][1] in shown.getvalue()
    assert max(map(len, shown.getvalue().splitlines()[2:])) < 200, "a long one does not make the others long"


@pytest.mark.parametrize("errors", ["ignore", "replace", "strict"])
def test_what_an_output_cannot_hold_is_not_acked(
    errors: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`PYTHONIOENCODING=ascii:replace`: what was printed was not what was there."""
    service.reply = lambda _m, path, body: (
        {"items": [leased("one", payload="é")]} if path.endswith("/dequeue") else answer(path, body)
    )
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=errors)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert cli.main(["dequeue", "t", "--ack"]) != 0
    assert service.asked("/ack") == [] and len(service.asked("/nack")) == 1
