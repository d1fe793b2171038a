"""A request to a hot verb, and its answer, without ASGI in between.

ASGI costs a hot request more than its verb does: a scope, two events and three messages for a body that is there
already and an answer that is known as a whole. An `Exchange` takes the place of uvicorn's own cycle in the
protocol, for requests whose head is of the plainest form; all others go the ordinary way to the same verbs.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from shared.admission.fair_queue import weigh
from shared.clock import SystemClock
from shared.http.head_cache import Plain
from shared.http.hot_path import JSON, OVERLOADED, Answer, HotPath

_HEADS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_JSON_HEADS = {status: head + b"%b: %b\r\n" % JSON[0] for status, head in _HEADS.items()}
_clock = SystemClock()


class _NobodyWaits:
    """Stands for the event by which a cycle hears of more of its body: an exchange begins when all is there."""

    def set(self) -> None:
        pass


class Exchange:
    """Looks to the protocol like a `RequestResponseCycle`, and to the entrance like a call."""

    message_event = _NobodyWaits()

    # What an exchange begins with, here instead of in each one.
    kib = 1
    keep_alive = True
    response_started = response_complete = False
    _since_s = 0.0
    _is_refused = False
    _disconnected = False
    _task: asyncio.Task[None] | None = None
    _gone: asyncio.Future[None] | None = None

    def __init__(self, protocol: Any, hot: HotPath, plain: Plain) -> None:
        self._protocol = protocol
        self._hot = hot
        self.plain = plain
        target = plain.target
        self.level = target.verb.urgency
        self.tenant = target.namespace
        self.body = b""

    def begin(self) -> None:
        """The body is complete: join the line for the verb, where nobody stands mostly."""
        self.kib = weigh(len(self.body))
        self._since_s = _clock.monotonic_s()
        self._hot.entrance.enter(self)

    def start(self) -> None:
        """Do what the call asks for."""
        self._task = self._protocol.loop.create_task(self._run())
        self._protocol.tasks.add(self._task)

    def refuse(self) -> None:
        """Answer, without having looked at the body, that too much stands."""
        self._hot.measure(self.plain.target, OVERLOADED.status, self._since_s)
        if self._protocol.flow.write_paused and not self._disconnected:
            # Who does not read his answers is given no next one: as any other, this one waits for him.
            self.kib, self._is_refused = 0, True
            self.start()
            return
        if not self._disconnected:
            self._write(OVERLOADED)
        self.response_complete = True
        self._protocol.on_response_complete()

    def step_aside(self) -> None:
        """The call waits: it is not worked on."""
        kib, self.kib = self.kib, 0
        if kib:
            self._hot.entrance.leave(kib)

    def gone(self) -> asyncio.Future[None]:
        """A future that is done once the client has hung up."""
        self._gone = self._protocol.loop.create_future()
        self.disconnected = self._disconnected
        return self._gone

    @property
    def disconnected(self) -> bool:
        """Whether the client has hung up before the answer was complete."""
        return self._disconnected

    @disconnected.setter
    def disconnected(self, value: bool) -> None:
        self._disconnected = value
        if value and self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def _run(self) -> None:
        protocol = self._protocol
        try:
            if self._is_refused:
                answer = OVERLOADED
            else:
                plain = self.plain
                answer = await self._hot.answer(plain.target, self.body, plain.authorization, self, self._since_s)
            if protocol.flow.write_paused and not self._disconnected:
                self.step_aside()
                await protocol.flow.drain()
            if not self._disconnected and not protocol.transport.is_closing():
                self._write(answer)
            elif answer.undelivered is not None:
                await answer.undelivered(False)
        finally:
            if self.kib:
                self.step_aside()
            self.response_complete = True
            protocol.tasks.discard(self._task)
            protocol.on_response_complete()

    def _write(self, answer: Answer) -> None:
        status, body, headers = answer.status, answer.body, answer.headers
        if headers is JSON and self.keep_alive:
            text = b"%bcontent-length: %d\r\n\r\n%b" % (_JSON_HEADS[status], len(body), body)
        else:
            head = _HEADS[status] + b"".join(b"%b: %b\r\n" % header for header in headers)
            last = b"" if self.keep_alive else b"connection: close\r\n"
            text = b"%b%bcontent-length: %d\r\n\r\n%b" % (head, last, len(body), body)
        # Head and body in one piece: each write is a system call here, and a wake-up there.
        protocol = self._protocol
        protocol.transport.write(text)
        if answer.undelivered is not None and (protocol.flow.write_paused or protocol.transport.is_closing()):
            protocol.unsent = answer.undelivered
        if not self.keep_alive:
            protocol.transport.close()
