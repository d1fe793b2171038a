"""Why an item, a topic or a namespace does not go on: the chain of causes, the nearest first, and one sentence.

It reads what pages of topics and items read, and what this process has heard of who asks; nothing is changed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from services.queue.dispatch.demand import Asked
from services.queue.operations.topic_states import NamespaceState, TopicStats
from services.queue.operations.topics import Topics
from shared.clock import Clock, in_words
from shared.errors import Unavailable
from shared.shards.shard_map import ShardMap

# Who polls asks more often.
_UNASKED_TOLD_S: Final = 15.0
# So far behind are consumers that do not keep up.
_BEHIND_TOLD_S: Final = 60.0
_TOPICS_TOLD_MAX: Final = 5
_NAMES_PAGES_MAX: Final = 5
_NAMES_PER_PAGE: Final = 1_000
_SOME_AWAY: Final = "a shard does not answer; what is there waits"


class Cause(msgspec.Struct, frozen=True):
    """One thing that keeps something back; `since` None: nobody knows; `near`: names that may have been meant."""

    kind: str
    text: str
    since: datetime | None
    near: list[str]


class Why(msgspec.Struct, frozen=True):
    """What keeps something back, the nearest cause first; `topic` of an item alone."""

    about: str
    name: str
    sentence: str
    causes: list[Cause]
    topic: str | msgspec.UnsetType = msgspec.UNSET


class Reasons:
    """Answers for one process."""

    def __init__(self, topics: Topics, asked: Asked, shards: ShardMap, clock: Clock) -> None:
        self._topics = topics
        self._asked = asked
        self._shards = shards
        self._clock = clock

    async def of_topic(self, namespace: str, topic: str) -> Why:
        """Why what a topic holds is not handed out.

        Raises:
            Unavailable: a shard does not answer.
        """
        return _told("topic", topic, await self._of_topic(namespace, topic))

    async def of_namespace(self, namespace: str) -> Why:
        """What holds a namespace's work up, the worst first.

        Raises:
            Unavailable: no shard answers.
        """
        causes = self._away()
        known = await self._known(namespace)
        if known is None:
            return _told("namespace", namespace, causes or [_cause("shards_away", _SOME_AWAY)])
        use = await self._topics.namespace(namespace)
        causes += _quotas_reached(use)
        unpaused = {name: row for name, row in known.items() if row.ready and not row.paused}
        unasked = {name: self._asked.unasked_s(namespace, name) for name in unpaused}
        for name, row in _most(known, lambda row: row.ready):
            if row.paused and row.ready:
                causes.append(_cause("paused", f"topic {name} is paused; {_are(row.ready)} ready"))
            elif unasked.get(name, 0.0) >= _UNASKED_TOLD_S:
                text = f"no consumer has asked for {name} in {in_words(unasked[name])}; {_are(row.ready)} ready"
                causes.append(_cause("unasked", text))
        served = {name: row for name, row in unpaused.items() if unasked[name] < _UNASKED_TOLD_S}
        for name, row in _most(served, _age_s)[:1]:
            if _age_s(row) >= _BEHIND_TOLD_S:
                behind = in_words(_age_s(row))
                causes.append(_cause("behind", f"consumers of {name} do not keep up: {behind} behind"))
        if not causes:
            causes.append(_cause("working", _working(*known.values()) if known else "it holds nothing"))
        if dead := sum(row.dead for row in known.values()):
            most = _most(known, lambda row: row.dead)[0][0]
            causes.append(_cause("dead", f"{_have(dead)} died, most of them of {most}"))
        return _told("namespace", namespace, causes)

    async def of_item(self, namespace: str, item_id: str) -> Why:
        """Why an item has not ended.

        Raises:
            NotFound: it has, or was never seen.
        """
        shown = await self._topics.item(namespace, item_id)
        item, now = shown.item, datetime.fromtimestamp(self._clock.wall_s(), UTC)
        error = (item.error or "").strip().rpartition("\n")[2][:500]
        causes: list[Cause] = []
        if item.state == "leased":
            left_s = 0.0 if shown.lease is None else (shown.lease.expires_at - now).total_seconds()
            text = f"a worker has it, attempt {item.attempts + 1}; its lease ends in {left_s:.0f} s"
            causes.append(_cause("leased", text))
        elif item.state == "dead":
            times = "once" if item.attempts == 1 else f"{item.attempts} times"
            causes.append(_cause("dead", f"it failed {times} and died: {error or 'without a word'}"))
            causes.append(_cause("redrive", "it stays until it is redriven or purged"))
        elif item.state == "disabled":
            text = (
                "its node waits in its DAG"
                if item.managed
                else "it was enqueued disabled, and nobody has revived it"
            )
            causes.append(_cause("disabled", text))
        elif item.state == "delayed":
            left_s = 0.0 if item.deliver_at is None else max(0.0, (item.deliver_at - now).total_seconds())
            after = f" after attempt {item.attempts} failed: {error}" if item.attempts else ""
            causes.append(_cause("delayed", f"it is due in {left_s:.0f} s{after}", item.deliver_at))
        else:
            causes.append(
                _cause("ready", f"it is ready, and waits for a consumer of {item.topic}", item.deliver_at)
            )
            causes += await self._of_topic(namespace, item.topic)
        return _told("item", item.id_text, causes, item.topic)

    async def _of_topic(self, namespace: str, topic: str) -> list[Cause]:
        away = self._away()
        causes = list(away)
        try:
            counts = next(iter((await self._topics.active_one(namespace, topic))[0]), None)
        except Unavailable:
            return causes or [_cause("shards_away", _SOME_AWAY)]
        unasked_s = self._asked.unasked_s(namespace, topic)
        nobody_asks = unasked_s >= _UNASKED_TOLD_S
        if counts is None and not away:
            names = await self._known(namespace) if nobody_asks else None
            causes.append(_cause("empty", "it holds nothing", near=_near(topic, names or ())))
        elif counts is not None and counts.paused:
            causes.append(_cause("paused", f"it is paused; {_are(counts.ready)} ready"))
        if counts is not None and not counts.paused and counts.ready:
            causes += _over_in_flight(await self._topics.namespace(namespace))
        if nobody_asks and (counts is None or (counts.ready and not counts.paused)):
            near = _near(topic, self._asked.lately(namespace, _UNASKED_TOLD_S))
            start = "" if near or counts is None else ": start one (`headgate worker`)"
            causes.append(
                _cause("unasked", f"no consumer has asked for it in {in_words(unasked_s)}{start}", near=near)
            )
        if counts is not None and not causes:
            causes.append(_cause("working", _working(counts)))
        if counts is not None and counts.dead:
            causes.append(
                _cause("dead", f"{_have(counts.dead)} died; what is dead stays until it is redriven or purged")
            )
        return causes

    def _away(self) -> list[Cause]:
        """Shards that do not answer, as one cause."""
        away = [str(shard.number) for shard in self._shards if shard.breaker.refuses and not shard.is_retired]
        some = ", ".join(away[:8])
        return [_cause("shards_away", f"shard {some} does not answer; what is there waits")] if away else []

    async def _known(self, namespace: str) -> dict[str, TopicStats] | None:
        """The topics that hold items; None: not every shard answers."""
        try:
            return await self._active(namespace)
        except Unavailable:
            return None

    async def _active(self, namespace: str) -> dict[str, TopicStats]:
        found: dict[str, TopicStats] = {}
        after: str | None = ""
        for _ in range(_NAMES_PAGES_MAX):
            page, after, _ = await self._topics.active(namespace, _NAMES_PER_PAGE, after or "")
            found |= {each.topic: each for each in page}
            if after is None:
                break
        return found


def _near(topic: str, names: Iterable[str]) -> list[str]:
    """Names that somebody who mistypes could have meant."""
    return difflib.get_close_matches(topic, [*names], n=3) if len(topic) <= 64 else []


def _most(known: Mapping[str, TopicStats], of: Callable[[TopicStats], float]) -> list[tuple[str, TopicStats]]:
    """The topics that have most of something."""
    return sorted(known.items(), key=lambda pair: -of(pair[1]))[:_TOPICS_TOLD_MAX]


def _age_s(row: TopicStats) -> float:
    return row.oldest_ready_age_s or 0.0


def _over_in_flight(use: NamespaceState) -> list[Cause]:
    most, held = use.in_flight_max, use.in_flight
    if most is None or held < most:
        return []
    return [_cause("in_flight_max", f"the namespace has {held} leased, of {most} that it may have")]


def _quotas_reached(use: NamespaceState) -> list[Cause]:
    """Limits of the namespace that keep items back, or out."""
    causes = _over_in_flight(use)
    lately = use.enqueued_last_minute or 0
    for limit, most, held, text in (
        ("items_max", use.items_max, use.items, "items; enqueues of more are refused"),
        ("stored_bytes_max", use.stored_bytes_max, use.stored_bytes, "stored bytes; enqueues of more are refused"),
        ("enqueues_per_minute", use.enqueues_per_minute, lately, "enqueues in the last minute; more are refused"),
    ):
        if most is not None and held >= most:
            causes.append(_cause(limit, f"it has {held} of {most} {text}"))
    return causes


def _working(*rows: TopicStats) -> str:
    if ready := sum(row.ready for row in rows):
        oldest = in_words(max(_age_s(row) for row in rows))
        return f"consumers ask for it; {ready} wait for their turn, the oldest for {oldest}"
    if leased := sum(row.leased for row in rows):
        return f"workers have {leased}; none waits"
    if delayed := sum(row.delayed for row in rows):
        return f"{_are(delayed)} not due yet"
    return "nothing in it is to be handed out"


def _are(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"


def _have(count: int) -> str:
    return f"{count} {'has' if count == 1 else 'have'}"


def _cause(kind: str, text: str, since: datetime | None = None, near: Sequence[str] = ()) -> Cause:
    return Cause(kind, text, since, list(near))


def _told(kind: str, name: str, causes: list[Cause], topic: str | msgspec.UnsetType = msgspec.UNSET) -> Why:
    sentence = "; ".join(cause.text for cause in causes[:3])
    near: list[str] = next((cause.near for cause in causes if cause.near), [])
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    return Why(kind, name, f"{sentence[:1].upper()}{sentence[1:]}.{meant}", causes, topic)
