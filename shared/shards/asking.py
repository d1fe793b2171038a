"""Lists over all shards of a service: what those tell that answer, and which do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from shared.errors import Unavailable
from shared.ids import ShardNo

T = TypeVar("T")
Place = TypeVar("Place")


class Numbered(Protocol):
    """A shard, or what stands for one."""

    @property
    def number(self) -> ShardNo:
        """Its number."""


S = TypeVar("S", bound=Numbered)


class Answers(NamedTuple, Generic[T]):
    """What the shards that answer have told, and the numbers of those that do not, or not now."""

    parts: list[T]
    away: list[ShardNo]


class Listed(NamedTuple, Generic[T, Place]):
    """A page, where the next one begins (None at the end), and the shards that did not answer."""

    items: Sequence[T]
    rest: Place | None
    away: Sequence[ShardNo]


async def ask_all(shards: Sequence[S], ask: Callable[[S], Awaitable[T]]) -> Answers[T]:
    """Ask each of these shards, at once.

    Raises:
        Unavailable: none of them answers.
    """
    parts: list[T] = []
    away: list[ShardNo] = []
    refusal: Unavailable | None = None
    for shard, answer in zip(shards, await asyncio.gather(*map(ask, shards), return_exceptions=True), strict=True):
        if isinstance(answer, Unavailable):
            refusal = refusal or answer
            away.append(shard.number)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            parts.append(answer)
    if refusal is not None and not parts:
        raise refusal
    return Answers(parts, away)
