"""Dead items grouped by error, at reading: nothing is kept for it, so dying costs what it did.

The form of an error is what two items with the same fault have in common:

1. of a Python traceback the last line, of any other text the first, that is not blank;
2. UUIDs become `<uuid>`, hexadecimal numbers of eight digits or more (or after `0x`) `<hex>`, other numbers,
   with their dots and colons, `<n>`;
3. white space becomes one space, and what is left is cut to 200 characters.

The form of a form is the form itself, so a group's `error` can be given wherever an error can.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from services.queue.keys.key_buffer import START
from services.queue.model import NamespaceId, TopicId
from services.queue.settings import QueueSettings
from services.queue.store.dequeue_encoding import dag_of
from services.queue.store.operations import FoundItem, dead_items
from services.queue.store.shard_store import Store, living
from shared.errors import Unavailable
from shared.ids import ShardNo
from shared.postgres.rows import Asked
from shared.shards.asking import Listed

FORM_CHARS_MAX = 200
PART_CHARS = 500
PAGE_ITEMS = 1_000
TOPIC_IDS = (-(2**31), 2**31 - 1)

_VARIABLE = re.compile(
    r"(?P<uuid>[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})"
    r"|(?P<hex>\b0x[0-9a-f]+\b|\b(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,}\b)"
    r"|(?P<n>[0-9]+(?:[.:,][0-9]+)*)",
    re.IGNORECASE | re.ASCII,
)

Place = tuple[int, datetime, str]

FIRST: Place = (TOPIC_IDS[0], START[1], START[2])


@functools.lru_cache(maxsize=4_096)
def form_of(head: str | None, tail: str | None = None) -> str:
    """The form of an error, from its first and its last 500 characters (or from the whole of it)."""
    text = head or ""
    end = text if tail is None else tail
    text, end = text[:PART_CHARS], end[-PART_CHARS:]
    lines = [line for line in text.splitlines() if line.strip()]
    if text.startswith("Traceback (most recent call last)") or '  File "' in text:
        lines = [line for line in end.splitlines() if line.strip()][-1:]
    line = _VARIABLE.sub(lambda found: f"<{found.lastgroup}>", lines[0] if lines else "")
    return " ".join(line.split())[:FORM_CHARS_MAX].rstrip()


class Death(NamedTuple):
    """What one dead item adds to its group."""

    topic: str
    error: str
    died_at: datetime
    id: str
    # What a DAG's item stands for, as JSON text.
    dag: str | None


async def dead_page(
    asked: Asked, scope: tuple[NamespaceId | None, TopicId | None], after: Place, limit: int
) -> Sequence[FoundItem]:
    """Dead items of (namespace_id, topic_id or all) behind a place."""
    namespace_id, topic_id = scope
    topic_ids = TOPIC_IDS if topic_id is None else (topic_id, topic_id)
    return await dead_items(asked, namespace_id, topic_ids, after, limit)


class DeadItems:
    """The dead of a namespace, over all shards, a bounded part at a time."""

    def __init__(self, stores: dict[ShardNo, Store], settings: QueueSettings) -> None:
        self._stores = stores
        self._settings = settings

    async def groups(
        self, namespace: str, topic: str | None, limit: int, after: tuple[ShardNo, Place]
    ) -> Listed[dict[str, Any], tuple[ShardNo, Place]]:
        """Groups of a part of the dead, most items first.

        `after` is a shard and a place in it. A part looks at no more than `dead_scan_items_max` items and ends
        before the group after `limit`; groups of several parts are to be added up. A shard that does not answer
        is passed over, unless no other is left.
        """
        found: dict[tuple[str, str], dict[str, Any]] = {}
        away: list[ShardNo] = []
        refusal: Unavailable | None = None
        left = self._settings.dead_scan_items_max
        numbers = sorted(store.number for store in living(self._stores) if store.number >= after[0])
        for number in numbers:
            place = after[1] if number == after[0] else FIRST
            try:
                left, end = await self._count(found, (number, place), (namespace, topic), (limit, left))
            except Unavailable as unavailable:
                away.append(number)
                refusal = unavailable
                continue
            if end is not None:
                return Listed(_ordered(found), (number, end), away)
        if refusal is not None and len(away) == len(numbers):
            raise refusal
        return Listed(_ordered(found), None, away)

    async def _count(
        self,
        found: dict[tuple[str, str], dict[str, Any]],
        begin: tuple[ShardNo, Place],
        asked: tuple[str, str | None],
        most: tuple[int, int],
    ) -> tuple[int, Place | None]:
        """Add the dead of one shard behind a place to their groups; how many more may be looked at, and the place
        where the part ends (None: the shard has no more)."""
        (number, place), (limit, left) = begin, most
        self._stores[number].pool.admit()
        scope = await self._scope(self._stores[number], *asked)
        while scope is not None:
            page = min(left, PAGE_ITEMS)
            rows = await self._read(self._stores[number], scope, place, page)
            for item, death in rows:
                key = (death.topic, death.error)
                if key not in found and len(found) == limit:
                    return left, place
                _count(found, key, death)
                place = (item.topic_id, death.died_at, item.id)
            left -= len(rows)
            if left <= 0:
                return left, place
            if len(rows) < page:
                break
        return left, None

    async def _scope(
        self, store: Store, namespace: str, topic: str | None
    ) -> tuple[NamespaceId, TopicId | None] | None:
        if topic is not None:
            return await store.names.find(namespace, topic)
        namespace_id = await store.names.namespace_id(namespace)
        return None if namespace_id is None else (namespace_id, None)

    async def _read(
        self, store: Store, scope: tuple[NamespaceId, TopicId | None], after: Place, limit: int
    ) -> Sequence[tuple[FoundItem, Death]]:
        items = await dead_page(store.pool, scope, after, limit)
        names = await store.names.name_of({item.topic_id for item in items})
        return [
            (
                item,
                Death(
                    names[item.topic_id][1],
                    form_of(item.error_head, item.error_tail),
                    item.since,
                    item.id,
                    item.dag,
                ),
            )
            for item in items
            if item.topic_id in names
        ]


def _count(found: dict[tuple[str, str], dict[str, Any]], key: tuple[str, str], death: Death) -> None:
    group = found.setdefault(
        key,
        {
            "error": death.error,
            "topic": death.topic,
            "count": 0,
            "oldest": death.died_at,
            "newest": death.died_at,
            "sample_id": death.id,
            "managed": 0,
            "dag": None,
        },
    )
    group["count"] += 1
    if death.dag is not None:
        group["managed"] += 1
        group["dag"] = dag_of(death.dag)
    group["oldest"] = min(group["oldest"], death.died_at)
    if death.died_at >= group["newest"]:
        group["newest"], group["sample_id"] = death.died_at, death.id


def _ordered(found: dict[tuple[str, str], dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found.values(), key=lambda group: (-group["count"], group["topic"], group["error"]))
