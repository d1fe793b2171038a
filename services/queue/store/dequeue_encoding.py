"""What a dequeue call is given: its items as JSON text, which the database has all but finished.

A claim answers in pieces: of each item the id and the members of its JSON that only its row knows. What is the
same for all items of a group (topic, token, end of the lease) is put between them here, by two replacements
over the whole text, so that an item costs no object of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from itertools import groupby, starmap
from typing import Any, NamedTuple

import msgspec

from services.queue.model import NULL, Key, TopicId
from shared.ids import ShardNo

# Between two pieces, and between an id and the rest of its piece. Neither can stand in JSON text.
PIECES, PARTS = "\x1e", "\x1f"
_PIECES, _PARTS = PIECES.encode(), PARTS.encode()


class HandedLease(NamedTuple):
    """What a flush has leased of an item that it made ready: under which token until when, and its columns."""

    topic_id: TopicId
    token: str
    until: datetime
    payload: str
    metadata: str | None
    inputs: str | None
    headers: str | None
    attempt: int
    enqueued_at: datetime
    at_most_once: bool
    dag: str | None  # of a DAG's item its context


Handed = tuple[Key, HandedLease]


class Unused(NamedTuple):
    """An item that was leased under that token until then, and that nobody was told of. `is_begun`: a byte of the
    answer that was to tell of it may have left."""

    id: str
    token: str
    until: datetime
    is_begun: bool = False


class Group(NamedTuple):
    """Items leased under one token until one time: a row of a claim. `again`: how many had a delivery before."""

    shard: ShardNo
    topic_id: TopicId
    token: str
    until: datetime
    items: int
    again: int
    pieces: str

    def text(self, topic: str) -> bytes:
        """The items' JSON, in order of service, as elements of an array."""
        tail = f',"lease_token":"{self.token}","lease_expires_at":{moment(self.until)}}}'
        inner = self.pieces.encode()  # bytes are searched for one byte far faster than texts for a character
        inner = inner.replace(_PARTS, f'","topic":"{topic}","payload":'.encode())
        inner = inner.replace(_PIECES, f'{tail},{{"id":"'.encode())
        return b'{"id":"%b%b' % (inner, tail.encode())

    def texts(self, topic: str) -> dict[str, bytes]:
        """The same by id."""
        return {
            piece[: piece.index(PARTS)]: self._replace(pieces=piece).text(topic)
            for piece in self.pieces.split(PIECES)
        }

    def unused(self) -> list[Unused]:
        """Its items, where nobody was told of them."""
        return [Unused(item_id, self.token, self.until) for item_id in self.ids()]

    def ids(self) -> list[str]:
        """The items, in order of service."""
        return [piece[: piece.index(PARTS)] for piece in self.pieces.split(PIECES)]


class Claimed(NamedTuple):
    """What a call was given by a claim. `is_cut`: some of what it asked for stays ready, for the bytes it takes.
    `is_known`: the shard has said so. `late`: it takes too long, until then, and what it leases is given back."""

    groups: list[Group]
    is_cut: bool = False
    is_known: bool = True
    late: asyncio.Future[None] | None = None


class Leased:
    """The items of one call, by its demands. `late`: the ends of claims that it did not wait for; `unknown`: of
    how many claims it is not known what they have leased."""

    late: Sequence[asyncio.Future[None]] = ()
    unknown = 0
    lates_seen = 0
    left_s = 0.0  # of the call's time when it last heard of one

    def __init__(self, demands: int) -> None:
        self._texts: list[list[bytes]] = [[] for _ in range(demands)]
        self.counts = [0] * demands
        self.groups: list[Group] = []
        self.first: Key | None = None
        self.bytes = 0
        self.is_cut = False  # there is more, and no room for it

    def __bool__(self) -> bool:
        return bool(self.groups)

    def add(self, demand: int, keys: Sequence[Key], group: Group, topic: str) -> None:
        """A group that is all that was got of these keys, for one demand."""
        self.groups.append(group)
        self.counts[demand] += group.items
        text = group.text(topic)
        self.bytes += len(text)
        self._texts[demand].append(text)
        if self.first is None:
            first_id = group.pieces[: group.pieces.index(PARTS)]
            self.first = keys[0] if keys[0].id == first_id else next(key for key in keys if key.id == first_id)

    def add_mixed(self, taken: Sequence[Sequence[Key]], groups: Sequence[tuple[Group, str]]) -> None:
        """Groups, and their topics, of keys of several demands: each item goes to the place of its key."""
        texts: dict[str, bytes] = {}
        for group, topic in groups:
            self.groups.append(group)
            texts.update(group.texts(topic))
        self.bytes += sum(map(len, texts.values()))
        for demand, keys in enumerate(taken):
            got = [key for key in keys if key.id in texts]
            self.counts[demand] += len(got)
            self._texts[demand] += [texts[key.id] for key in got]
            if got:
                self.first = self.first or got[0]

    def add_handed(self, handed: Sequence[Handed], topic: str) -> None:
        """What was handed over to a call with one demand."""
        for _, run in groupby(handed, key=_lease):
            part = list(run)
            self.add(0, [key for key, _ in part], _group(part), topic)

    def items(self) -> msgspec.Raw:
        """Those of the answer: demand by demand, each in its order of service."""
        return msgspec.Raw(b"[%b]" % b",".join([text for texts in self._texts for text in texts]))


def unused(handed: Sequence[Handed]) -> list[Unused]:
    """What was handed over, where nobody was told of it."""
    return [Unused(key.id, lease.token, lease.until) for key, lease in handed]


class _Context(msgspec.Struct, gc=False):
    """Of a managed item's context, which of a DAG's nodes it stands for."""

    dag: msgspec.Raw = NULL
    node: msgspec.Raw = NULL
    generation: msgspec.Raw = NULL


_context = msgspec.json.Decoder(_Context).decode


def dag_of(context: str) -> dict[str, Any]:
    """The DAG, node and generation that a managed item stands for."""
    found = json.loads(context)
    return {"id": found.get("dag"), "node": found.get("node"), "generation": found.get("generation")}


def _lease(entry: Handed) -> tuple[int, datetime]:
    """What items of one group have in common, of those that one call was handed."""
    _, lease = entry
    return lease.topic_id, lease.until


def _group(part: Sequence[Handed]) -> Group:
    """Items that were handed over under one lease, as a claim would have told them."""
    first, lease = part[0]
    pieces = PIECES.join(starmap(_piece, part))
    again = sum(one.attempt > 1 for _, one in part)
    shard = ShardNo(int(first.id[-3:], 16))
    return Group(shard, lease.topic_id, lease.token, lease.until, len(part), again, pieces)


def _piece(key: Key, lease: HandedLease) -> str:
    metadata, inputs, headers = lease.metadata or "null", lease.inputs or "null", lease.headers or "null"
    dag = ""
    if lease.dag is not None:
        context = _context(lease.dag)
        found = (bytes(text).decode() for text in (context.dag, context.node, context.generation))
        dag = ',"dag":{{"id":{},"node":{},"generation":{}}}'.format(*found)
    return (
        f'{key.id}{PARTS}{lease.payload},"metadata":{metadata},"inputs":{inputs},"headers":{headers}{dag}'
        f',"priority":{key.priority},"attempt":{lease.attempt},"enqueued_at":{moment(lease.enqueued_at)}'
    )


@lru_cache(maxsize=1_000)
def moment(at: datetime) -> str:
    """As the database writes it: no zeros at the end of a fraction."""
    text = msgspec.json.encode(at).decode()
    return f'{text[:-2].rstrip("0")}Z"' if at.microsecond else text
