"""Why an item, a topic or a namespace does not go on: the chain of causes, the nearest first, and one sentence.

It reads what pages of topics and items read, and what this process has heard of who asks; nothing is changed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from services.queue.dispatch.demand import Asked
from services.queue.operations.topics import Topics
from shared.clock import Clock
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


class Reasons:
    """Answers for one process."""

    def __init__(self, topics: Topics, asked: Asked, shards: ShardMap, clock: Clock) -> None:
        self._topics = topics
        self._asked = asked
        self._shards = shards
        self._clock = clock

    async def of_topic(self, namespace: str, topic: str) -> dict[str, Any]:
        """Why what a topic holds is not handed out.

        Raises:
            Unavailable: a shard does not answer.
        """
        known = await self._known(namespace)
        return _told("topic", topic, await self._of_topic(namespace, topic, known))

    async def of_namespace(self, namespace: str) -> dict[str, Any]:
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
        unpaused = {name: row for name, row in known.items() if row["ready"] and not row["paused"]}
        unasked = {name: self._asked.unasked_s(namespace, name) for name in unpaused}
        for name, row in _most(known, "ready"):
            if row["paused"] and row["ready"]:
                causes.append(_cause("paused", f"topic {name} is paused; {row['ready']} are ready"))
            elif unasked.get(name, 0.0) >= _UNASKED_TOLD_S:
                text = f"no consumer has asked for {name} in {_span(unasked[name])}; {row['ready']} are ready"
                causes.append(_cause("unasked", text))
        served = {name: row for name, row in unpaused.items() if unasked[name] < _UNASKED_TOLD_S}
        for name, row in _most(served, "oldest_ready_age_s")[:1]:
            if (row["oldest_ready_age_s"] or 0) >= _BEHIND_TOLD_S:
                behind = _span(row["oldest_ready_age_s"])
                causes.append(_cause("behind", f"consumers of {name} do not keep up: {behind} behind"))
        if not causes:
            causes.append(_cause("working", _working(_summed(known.values())) if known else "it holds nothing"))
        if dead := sum(row["dead"] for row in known.values()):
            most = _most(known, "dead")[0][0]
            causes.append(_cause("dead", f"{dead} have died, most of them of {most}"))
        return _told("namespace", namespace, causes)

    async def of_item(self, namespace: str, item_id: str) -> dict[str, Any]:
        """Why an item has not ended.

        Raises:
            NotFound: it has, or was never seen.
        """
        shown = await self._topics.item(namespace, item_id)
        item, now = shown.item, datetime.fromtimestamp(self._clock.wall_s(), UTC)
        error = (item.error or "").strip().rpartition("\n")[2][:500]
        causes: list[dict[str, Any]] = []
        if item.state == "leased":
            left_s = 0.0 if shown.lease is None else (shown.lease.expires_at - now).total_seconds()
            text = f"a worker has it, attempt {item.attempts + 1}; its lease ends in {left_s:.0f} s"
            causes.append(_cause("leased", text))
        elif item.state == "dead":
            causes.append(_cause("dead", f"it died after {item.attempts} attempts: {error or 'without a word'}"))
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
            known = await self._known(namespace)
            causes += await self._of_topic(namespace, item.topic, known)
        return _told("item", item.id_text, causes) | {"topic": item.topic}

    async def _of_topic(
        self, namespace: str, topic: str, known: dict[str, dict[str, Any]] | None
    ) -> list[dict[str, Any]]:
        away = self._away()
        causes = list(away)
        if known is None:
            return causes or [_cause("shards_away", _SOME_AWAY)]
        counts = known.get(topic)
        unasked_s = self._asked.unasked_s(namespace, topic)
        if counts is None and not away:
            near = difflib.get_close_matches(topic, known, n=3) if len(topic) <= 64 else []
            causes.append(_cause("empty", "it holds nothing", near=near))
        elif counts is not None and counts["paused"]:
            causes.append(_cause("paused", f"it is paused; {counts['ready']} are ready"))
        if counts is not None and not counts["paused"] and counts["ready"]:
            causes += _over_in_flight(await self._topics.namespace(namespace))
        if (
            unasked_s >= _UNASKED_TOLD_S
            and (counts is None or counts["ready"])
            and not (counts or {}).get("paused")
        ):
            asked = [name for name in known if self._asked.unasked_s(namespace, name) < _UNASKED_TOLD_S]
            near = difflib.get_close_matches(topic, asked, n=3) if len(topic) <= 64 else []
            causes.append(_cause("unasked", f"no consumer has asked for it in {_span(unasked_s)}", near=near))
        if counts is not None and not causes:
            causes.append(_cause("working", _working(counts)))
        if counts is not None and counts["dead"]:
            causes.append(
                _cause("dead", f"{counts['dead']} have died, and stay until they are redriven or purged")
            )
        return causes

    def _away(self) -> list[dict[str, Any]]:
        """Shards that do not answer, as one cause."""
        away = [str(shard.number) for shard in self._shards if shard.breaker.refuses and not shard.pool.is_retired]
        some = ", ".join(away[:8])
        return [_cause("shards_away", f"shard {some} does not answer; what is there waits")] if away else []

    async def _known(self, namespace: str) -> dict[str, dict[str, Any]] | None:
        """The topics that hold items; None: not every shard answers."""
        try:
            return await self._active(namespace)
        except Unavailable:
            return None

    async def _active(self, namespace: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        after: str | None = ""
        for _ in range(_NAMES_PAGES_MAX):
            page, after = await self._topics.active(namespace, _NAMES_PER_PAGE, after or "")
            found |= {each["topic"]: each for each in page}
            if after is None:
                break
        return found


def _most(known: dict[str, dict[str, Any]], name: str) -> list[tuple[str, dict[str, Any]]]:
    """The topics that have most of something."""
    return sorted(known.items(), key=lambda pair: -(pair[1][name] or 0))[:_TOPICS_TOLD_MAX]


def _summed(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    listed = list(rows)
    oldest_s = max(row["oldest_ready_age_s"] or 0.0 for row in listed)
    sums = {state: sum(row[state] for row in listed) for state in ("ready", "leased", "delayed")}
    return sums | {"oldest_ready_age_s": oldest_s}


def _over_in_flight(use: dict[str, Any]) -> list[dict[str, Any]]:
    most, held = use.get("in_flight_max"), use.get("in_flight") or 0
    if most is None or held < most:
        return []
    return [_cause("in_flight_max", f"the namespace has {held} leased, of {most} that it may have")]


def _quotas_reached(use: dict[str, Any]) -> list[dict[str, Any]]:
    """Limits of the namespace that keep items back, or out."""
    causes = _over_in_flight(use)
    for limit, used, text in (
        ("items_max", "items", "items; enqueues of more are refused"),
        ("stored_bytes_max", "stored_bytes", "stored bytes; enqueues of more are refused"),
        ("enqueues_per_minute", "enqueued_last_minute", "enqueues in the last minute; more are refused"),
    ):
        most, held = use.get(limit), use.get(used) or 0
        if most is not None and held >= most:
            causes.append(_cause(limit, f"it has {held} of {most} {text}"))
    return causes


def _working(counts: dict[str, Any]) -> str:
    if counts["ready"]:
        oldest = _span(counts["oldest_ready_age_s"] or 0.0)
        return f"consumers ask for it; {counts['ready']} wait for their turn, the oldest for {oldest}"
    if counts["leased"]:
        return f"workers have {counts['leased']}; none waits"
    if counts["delayed"]:
        return f"{counts['delayed']} are not due yet"
    return "nothing in it is to be handed out"


def _cause(kind: str, text: str, since: datetime | None = None, near: Sequence[str] = ()) -> dict[str, Any]:
    return {"kind": kind, "text": text, "since": since, "near": list(near)}


def _told(kind: str, name: str, causes: list[dict[str, Any]]) -> dict[str, Any]:
    sentence = "; ".join(cause["text"] for cause in causes[:3])
    near: list[str] = next((cause["near"] for cause in causes if cause["near"]), [])
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    return {
        "about": kind,
        "name": name,
        "sentence": f"{sentence[:1].upper()}{sentence[1:]}.{meant}",
        "causes": causes,
    }


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7_200 else f"{seconds / 3_600:.0f} hours"
