"""Asks every process of a service the same question, over Redis, and gathers what they say.

A question is published with the name of a list of its own; whoever hears it pushes an answer there. PUBLISH says
how many have heard, so that many answers are waited for, no longer than `ANSWER_S`. Without Redis, or where nobody
answers, a process knows only what it knows itself, and says so. Nothing is kept in Redis but answers, for seconds.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

import msgspec
from redis.asyncio import Redis

from shared import vital
from shared.log import log
from shared.redis import CALL_TIMEOUT_S, Lost, connect, listen

ANSWER_S = 1.0
# Of one wait for an answer; shorter than a call of Redis may take.
_LOOK_S: Final = CALL_TIMEOUT_S / 2
_KEPT_MS = 10_000
# Questions that a process has under way, and that it answers at once; more are not begun.
_ASKING_MAX = 4
_ANSWERING_MAX = 8
_BYTES_MAX = 8 * 1024 * 1024

Answerer = Callable[[Any], Awaitable[Any]]


class _Asked(msgspec.Struct, array_like=True):
    origin: str
    kind: str
    reply_to: str
    question: Any


class Heard(NamedTuple):
    """What other processes said, by name, and how many were asked."""

    answers: dict[str, Any]
    asked: int


_decoder = msgspec.msgpack.Decoder(_Asked)
_answer_decoder = msgspec.msgpack.Decoder(tuple[str, Any])


class Peers:
    """This process among those that answer; `answerers` are told of, by kind of question, before `start`."""

    def __init__(self, url: str | None, prefix: str, service: str, name: str) -> None:
        self.name = name
        self.answerers: dict[str, Answerer] = {}
        self._redis: Redis | None = connect(url) if url else None
        self._ear: Redis | None = connect(url, patient=True) if url else None
        self._channel = f"{prefix}:{service}:ask"
        self._prefix = f"{prefix}:{service}:answers"
        self._listening: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Semaphore(_ASKING_MAX)

    def start(self) -> None:
        """Begin to answer."""
        if self._ear is not None:
            self._listening = vital.PROCESS.keep(listen(self._ear, self._channel, self._heard), "peers")

    async def stop(self) -> None:
        """Answer no more."""
        await vital.end([*self._answering, self._listening])
        for redis in (self._redis, self._ear):
            if redis is not None:
                await redis.aclose()

    async def ask(self, kind: str, question: Any) -> Heard:
        """What the other processes say, as many as do in time; nothing without Redis."""
        answers: dict[str, Any] = {}
        redis, asked = self._redis, 0
        if redis is None:
            return Heard(answers, asked)
        reply_to = f"{self._prefix}:{secrets.token_hex(8)}"
        message = msgspec.msgpack.encode(_Asked(self.name, kind, reply_to, question))
        try:
            async with self._asking, asyncio.timeout(ANSWER_S + CALL_TIMEOUT_S):
                asked = max(0, int(await redis.publish(self._channel, message)) - 1)  # it hears itself
                while len(answers) < asked:
                    found = await redis.blpop([reply_to], timeout=_LOOK_S)
                    if found is not None:
                        name, answer = _answer_decoder.decode(cast(bytes, found[1]))
                        answers[name] = answer
        except (*Lost, msgspec.MsgspecError) as error:
            log.debug("not every process has answered", kind=kind, asked=asked, error=str(error))
        return Heard(answers, asked)

    def _heard(self, data: bytes) -> None:
        asked = _decoder.decode(data)
        answerer = self.answerers.get(asked.kind)
        if asked.origin == self.name or answerer is None or len(self._answering) >= _ANSWERING_MAX:
            return
        task = asyncio.create_task(self._answer(answerer, asked))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, answerer: Answerer, asked: _Asked) -> None:
        assert self._redis is not None, "who hears has a Redis"
        if not asked.reply_to.startswith(f"{self._prefix}:"):
            return
        try:
            said = msgspec.msgpack.encode((self.name, await answerer(asked.question)))
            if len(said) > _BYTES_MAX:
                return
            async with asyncio.timeout(CALL_TIMEOUT_S), self._redis.pipeline(transaction=False) as pipeline:
                pipeline.rpush(asked.reply_to, said)
                pipeline.pexpire(asked.reply_to, _KEPT_MS)
                await pipeline.execute()
        except Lost as error:
            log.debug("a question is not answered", kind=asked.kind, error=str(error))
        except Exception:
            log.exception("a question is not answered", kind=asked.kind)
