"""Which items an operation is about: its filter, and where it looks for them, a bounded part at a time.

A cursor is text: the source that is being read and the place in it behind which the next look begins. There
are three sources, chosen by the filter: the dead of a topic or namespace by time of death, a topic's ready
items in their order, and all items by id. Each is walked in an order in which what comes later lies behind
the cursor, so that a walk ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from services.queue.keys.key_buffer import START
from services.queue.model import NamespaceId, TopicId
from services.queue.operations.dead_items import FIRST, dead_page, form_of
from services.queue.store.operations import FoundItem, items_by_id, ready_items
from shared.postgres.rows import Asked

STATES = ("ready", "delayed", "leased", "disabled", "dead")


class Scope(NamedTuple):
    """The filter's names as numbers of one shard (None: not known there), and the time after which items are none
    of its business."""

    namespace_id: NamespaceId | None
    topic_id: TopicId | None
    cutoff: datetime


@dataclass(frozen=True, slots=True)
class Filter:
    """What items must be like; None where it does not matter."""

    kind: str
    topic: str | None = None
    state: str | None = None
    error: str | None = None
    priority_min: int | None = None
    priority_max: int | None = None
    enqueued_before: datetime | None = None
    enqueued_after: datetime | None = None
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, kind: str, given: dict[str, Any]) -> Filter:
        """From the filter of a call, as JSON has it."""
        fields = dict(given)
        for name in ("enqueued_before", "enqueued_after"):
            if name in fields:
                fields[name] = datetime.fromisoformat(fields[name])
        if "error" in fields:
            fields["error"] = form_of(fields["error"])
        return cls(kind, **fields)

    @property
    def states(self) -> tuple[str, ...]:
        """The states in which an item may be taken."""
        if self.kind == "redrive":
            return ("dead",)
        if self.state is not None:
            return (self.state,)
        return STATES if self.kind == "purge" else STATES[:-1]

    @property
    def sources(self) -> tuple[str, ...]:
        """Where to look, in turn. A whole topic is read by its own order first: its items may be few of many."""
        if self.states == ("dead",):
            return ("dead",)
        if self.topic is not None and self.state == "ready":
            return ("ready",)
        if self.topic is not None and self.state is None and not self._is_narrow:
            return ("ready", "id")
        return ("id",)

    @property
    def _is_narrow(self) -> bool:
        rest = (self.error, self.priority_min, self.priority_max, self.enqueued_before, self.enqueued_after)
        return self.metadata is not None or any(value is not None for value in rest)

    def takes(self, item: FoundItem) -> bool:
        """Whether an item of the filter's topic and states is meant."""
        low, high = self.priority_min, self.priority_max
        after, before = self.enqueued_after, self.enqueued_before
        return (
            (low is None or item.priority >= low)
            and (high is None or item.priority <= high)
            and (after is None or item.enqueued_at >= after)
            and (before is None or item.enqueued_at < before)
            and (self.error is None or self.error == _form(item))
            and (self.metadata is None or _holds(json.loads(item.metadata or "null"), self.metadata))
        )


def _form(item: FoundItem) -> str | None:
    return None if item.error_head is None else form_of(item.error_head, item.error_tail)


def _holds(metadata: dict[str, Any] | None, wanted: dict[str, Any]) -> bool:
    has = metadata or {}
    return all(name in has and _same(has[name], value) for name, value in wanted.items())


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: `true` is not 1, `1.0` is."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


class Preview(NamedTuple):
    """What one shard has for an operation, as far as it was looked at."""

    ids: list[str]
    matched: int
    scanned: int
    skipped: int
    is_whole: bool


class Look(NamedTuple):
    """One part of a walk: what to act on, what was looked at and left alone, and where to go on (None: end).

    What is left alone by a source that is not the last is met again by the next.
    """

    ids: list[str]
    scanned: int
    skipped: int
    cursor: str | None
    is_last_source: bool


async def look(
    asked: Asked, scope: Scope, wanted: Filter, cursor: str, *, items_max: int, rows_max: int, scan_max: int
) -> Look:
    """Read from a cursor on (empty: from the beginning), until `items_max` items are found that are meant.

    Looks at no more than `rows_max` items of the filter's scope, and `scan_max` of the shard.
    """
    source, *place = cursor.split("|") if cursor else [wanted.sources[0]]
    items, end = await _READERS[source](asked, scope, place, rows_max, scan_max)
    is_last = source == wanted.sources[-1]
    ids: list[str] = []
    scanned = skipped = 0
    for item in items:
        if item.since > scope.cutoff or item.state not in wanted.states:
            continue
        scanned += 1
        if not wanted.takes(item):
            continue
        if item.managed:
            skipped += 1
            continue
        ids.append(item.id)
        if len(ids) == items_max:
            end = _place(source, item)
            break
    if end is not None:
        return Look(ids, scanned, skipped, "|".join((source, *end)), is_last)
    following = None if is_last else wanted.sources[wanted.sources.index(source) + 1]
    return Look(ids, scanned, skipped, following, is_last)


Read = tuple[list[FoundItem], tuple[str, ...] | None]


async def _by_id(asked: Asked, scope: Scope, place: list[str], rows_max: int, scan_max: int) -> Read:
    after_id = place[0] if place else START[2]
    items, end = await items_by_id(asked, (scope.namespace_id, scope.topic_id), after_id, rows_max, scan_max)
    return items, None if end is None else (end,)


async def _at_ready(asked: Asked, scope: Scope, place: list[str], rows_max: int, _scan_max: int) -> Read:
    after = (int(place[0]), datetime.fromisoformat(place[1]), place[2]) if place else START
    items = await ready_items(asked, scope.topic_id, after, rows_max)
    return items, _place("ready", items[-1]) if len(items) == rows_max else None


async def _at_dead(asked: Asked, scope: Scope, place: list[str], rows_max: int, _scan_max: int) -> Read:
    after = (int(place[0]), datetime.fromisoformat(place[1]), place[2]) if place else FIRST
    items = list(await dead_page(asked, (scope.namespace_id, scope.topic_id), after, rows_max))
    return items, _place("dead", items[-1]) if len(items) == rows_max else None


_READERS = {"id": _by_id, "ready": _at_ready, "dead": _at_dead}


def _place(source: str, item: FoundItem) -> tuple[str, ...]:
    match source:
        case "ready":
            assert item.deliver_at is not None, "it is ready"
            return str(item.priority), item.deliver_at.isoformat(), item.id
        case "dead":
            return str(item.topic_id), item.since.isoformat(), item.id
        case _:
            return (item.id,)
