"""The points of several processes as one: what each adds is added up, of what all see the largest is taken.

What only an owner samples (items by state) is told twice while a shard changes hands, so of it the largest counts
within a shard; then shards are added up. Rates are each process's own share and are added up. Of latencies and
ages the worst is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from shared.console.history import SeriesName, ShardHistory
from shared.ids import ShardNo

_MARKS_SHOWN_MAX: Final = 500
_NAMED_MAX: Final = 4
# Processes that start so soon one after another are of one deploy.
DEPLOY_S: Final = 120.0

# Over processes, then over shards, then over the points that are shown as one.
SUM, MAX, MEAN, MIN = "sum", "max", "mean", "min"

METRICS: Final = {
    **dict.fromkeys(("ready", "delayed", "leased", "disabled", "dead"), (MAX, SUM, MEAN)),
    **dict.fromkeys(("running_dags", "blocked_nodes", "released_nodes", "outbox"), (MAX, SUM, MEAN)),
    **dict.fromkeys(
        ("enqueued_per_s", "dequeued_per_s", "acked_per_s", "nacked_per_s", "completions_per_s", "released_per_s"),
        (SUM, SUM, MEAN),
    ),
    **dict.fromkeys(("errors_per_s", "expired_per_s", "dead_per_s", "refused_per_s"), (SUM, SUM, MEAN)),
    **dict.fromkeys(
        ("oldest_ready_age_s", "db_latency_ms_p50", "db_latency_ms_p99", "release_lag_s_p99"), (MAX, MAX, MAX)
    ),
    **dict.fromkeys(("bytes", "dead_tuples"), (MAX, SUM, MAX)),
    "oldest_transaction_age_s": (MAX, MAX, MAX),
    "waiting_calls": (SUM, SUM, MAX),
    "up": (MIN, MIN, MIN),
}


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """Which lines, from which point on, of how many points each is shown as one."""

    metrics: list[str]
    begin: int  # in points as they were sampled
    points: int
    stride: int
    by: str  # shard, topic or nothing
    shard: ShardNo | None
    namespace: str | None
    topic: str | None
    lines_max: int


class Line(msgspec.Struct, array_like=True):
    """A process's points of one series; null: it told nothing then."""

    metric: str
    shard: ShardNo
    namespace: str
    topic: str
    values: list[float | None]


class Told(msgspec.Struct):
    """What one process has to say to a question."""

    lines: list[Line]
    marks: list[tuple[float, str, ShardNo | None, str]]
    left_out: int


class Place(NamedTuple):
    """Where a line of an answer belongs."""

    metric: str
    shard: ShardNo | None
    namespace: str | None
    topic: str | None


def tell(history: ShardHistory, question: Question) -> Told:
    """This process's own answer."""
    lines: list[Line] = []
    left_out = history.left_out
    for series, kept in history.lines():
        if not _is_meant(series, question) or kept.last < question.begin:
            continue
        if len(lines) >= question.lines_max:
            left_out += 1
            continue
        span = range(question.begin, question.begin + question.points * question.stride)
        points = [kept.at(n) for n in span]
        way = METRICS[series.metric][2]
        values = [_joined(way, points[at : at + question.stride]) for at in range(0, len(points), question.stride)]
        lines.append(Line(series.metric, series.shard, series.namespace, series.topic, values))
    begun_s = question.begin * history.point_s
    marks = [
        (mark.at_s, mark.kind, mark.shard, mark.text)
        for mark in history.marks
        if mark.at_s >= begun_s and (question.shard is None or mark.shard in (None, question.shard))
    ]
    return Told(lines, marks, left_out)


def merge(answers: Sequence[Told], by: str) -> dict[Place, list[float | None]]:
    """The lines of all, by what they were asked for."""
    series: dict[SeriesName, list[list[float | None]]] = {}
    for answer in answers:
        for line in answer.lines:
            key = SeriesName(line.metric, line.shard, line.namespace, line.topic)
            series.setdefault(key, []).append(line.values)
    places: dict[Place, list[list[float | None]]] = {}
    for key, several in series.items():
        shard = key.shard if by == "shard" else None
        named = (key.namespace, key.topic) if key.topic else (None, None)
        place = Place(key.metric, shard, *named)
        places.setdefault(place, []).append(_added(METRICS[key.metric][0], several))
    return {place: _added(METRICS[place.metric][1], several) for place, several in places.items()}


def marks(told: Mapping[str, Told], question: Question) -> list[dict[str, Any]]:
    """What happened, as callers see it, oldest first: the starts of one deploy as one. A topic is told nothing of
    owners, nor of shards on which nobody has met it."""
    seen = [(*mark, name) for name, answer in told.items() for mark in answer.marks]
    seen.sort(key=lambda mark: mark[0])
    if question.topic is not None:
        there = {line.shard for answer in told.values() for line in answer.lines}
        seen = [mark for mark in seen if mark[1] != "owner" and (mark[2] is None or not there or mark[2] in there)]
    shown: list[dict[str, Any]] = []
    started: list[str] = []
    last_s = -math.inf
    for at_s, kind, shard, text, name in seen:
        if kind == "start":
            started = [*started, name] if at_s - last_s < DEPLOY_S else [name]
            last_s = at_s
            if len(started) > 1:
                deploy = next(mark for mark in reversed(shown) if mark["kind"] == "start")
                deploy["text"] = _started(started)
                continue
        shown.append({"at_s": at_s, "kind": kind, "shard": shard, "text": text, "process": name})
    return shown[-_MARKS_SHOWN_MAX:]


def _started(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"{len(names)} processes started: {', '.join(names[:_NAMED_MAX])}{more}"


def _is_meant(series: SeriesName, question: Question) -> bool:
    if series.metric not in question.metrics or question.shard not in (None, series.shard):
        return False
    if question.by != "topic" and question.topic is None:
        return not series.topic
    return (
        bool(series.topic)
        and question.topic in (None, series.topic)
        and question.namespace in (None, series.namespace)
    )


def _added(way: str, several: Sequence[Sequence[float | None]]) -> list[float | None]:
    if len(several) == 1:
        return list(several[0])
    return [_joined(way, together) for together in zip(*several, strict=True)]


def _joined(way: str, values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None and not math.isnan(value)]
    if not told:
        return None
    if way == MAX:
        found = max(told)
    elif way == MIN:
        found = min(told)
    else:
        found = math.fsum(told) / (len(told) if way == MEAN else 1)
    return float(f"{found:.6g}")


def shown(place: Place, values: list[float | None]) -> dict[str, Any]:
    """A merged line as callers see it."""
    return {**place._asdict(), "values": values}
