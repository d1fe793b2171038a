"""An answer that nobody gets: what it hands out is taken back, whenever the client hung up."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shared.admission.connection_priority import Urgency
from shared.http.fast_http import Exchange
from shared.http.head_cache import Plain
from shared.http.hot_path import JSON, Answer


class Line:
    """The protocol of a connection, as far as an exchange sees it; what to do while it waits for its reader."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.tasks: set[Any] = set()
        self.written: list[bytes] = []
        self.is_closing = False
        self.meanwhile: Any = lambda: None
        self.transport = SimpleNamespace(write=self.written.append, is_closing=lambda: self.is_closing)
        self.flow = SimpleNamespace(write_paused=False, drain=self._drain)
        self.ended = asyncio.Event()
        self.on_response_complete = self.ended.set

    async def _drain(self) -> None:
        self.meanwhile()


class Hot:
    """Answers with something that is to be taken back where nobody gets it."""

    def __init__(self) -> None:
        self.entrance = SimpleNamespace(leave=lambda _kib: None)
        self.taken_back = 0

    async def answer(self, *_args: Any) -> Answer:
        return Answer(200, b"{}", JSON, self._take_back)

    async def _take_back(self, _is_begun: bool) -> None:
        self.taken_back += 1


async def ended(line: Line, hot: Hot, exchange: Exchange) -> tuple[int, int]:
    """How many answers were written, and how many taken back."""
    exchange.start()
    await asyncio.wait_for(line.ended.wait(), 10)
    return len(line.written), hot.taken_back


@pytest.fixture
def target() -> Plain:
    verb = SimpleNamespace(urgency=Urgency.DEQUEUE)
    return SimpleNamespace(target=SimpleNamespace(verb=verb, namespace="ns"), authorization=None)  # type: ignore[return-value]


async def test_an_answer_that_is_written_is_not_taken_back(target: Plain) -> None:
    line, hot = Line(), Hot()
    assert await ended(line, hot, Exchange(line, hot, target)) == (1, 0)  # type: ignore[arg-type]


async def test_a_client_that_hung_up_before(target: Plain) -> None:
    line, hot = Line(), Hot()
    exchange = Exchange(line, hot, target)  # type: ignore[arg-type]
    exchange.disconnected = True
    assert await ended(line, hot, exchange) == (0, 1)


async def test_a_client_that_hung_up_while_it_was_waited_for_to_read(target: Plain) -> None:
    line, hot = Line(), Hot()
    exchange = Exchange(line, hot, target)  # type: ignore[arg-type]
    line.flow.write_paused = True
    line.meanwhile = lambda: setattr(exchange, "disconnected", True)
    assert await ended(line, hot, exchange) == (0, 1)


async def test_a_connection_that_is_closing_takes_nothing(target: Plain) -> None:
    """What is written to it then is dropped without a word."""
    line, hot = Line(), Hot()
    line.is_closing = True
    assert await ended(line, hot, Exchange(line, hot, target)) == (0, 1)  # type: ignore[arg-type]
