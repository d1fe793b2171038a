"""Longer ranges than processes remember, from a Prometheus that scrapes them: the same metrics, added up alike.

The jobs are called as deploy/prometheus/scrape.yaml calls them. What has no line of a topic has none here either.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, Final

import httpx

from shared.console.merging import Place
from shared.errors import Unavailable
from shared.ids import ShardNo

LONGEST_S: Final = 31 * 24 * 3_600.0
_ANSWER_S: Final = 10.0
_BYTES_MAX: Final = 8 * 1024 * 1024
_AT_ONCE_MAX: Final = 4
# What a server that is no Prometheus, or a proxy before it, may make of an answer.
_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_RATE_S_MIN: Final = 120  # so long has two scrapes in it
_LABELS: Final = {"all": (), "shard": ("shard",), "topic": ("namespace", "topic")}

# What only owners tell is told twice while a shard changes hands: of it the largest counts within a shard.
_STATED: Final = "sum by ({by}) (max by (shard, namespace, topic) ({name}{{{where}}}))"
_WORST: Final = "max by ({by}) ({name}{{{where}}})"
_GROWN: Final = "sum by ({by}) (rate({name}{{{where}}}[{over}s]))"
_BUCKETS: Final = "sum by (shard, le) (rate({name}_bucket{{{where}}}[{over}s]))"
_QUANTILE: Final = "max by ({by}) ({scale} * histogram_quantile({part}, " + _BUCKETS + "))"
_STATES: Final = ("ready", "delayed", "leased", "disabled", "dead")
# What is told of single topics; of their rates by counters of their own.
_OF_TOPICS: Final[dict[str, str | None]] = {
    **dict.fromkeys((*_STATES, "oldest_ready_age_s")),
    "enqueued_per_s": "headgate_topic_enqueued_total",
    "dequeued_per_s": "headgate_topic_dequeued_total",
    "acked_per_s": "headgate_topic_acked_total",
}

# Of each metric: how it is told, what it is called there, and what else the expression needs.
_QUERIES: Final[dict[str, Any]] = {
    **{state: (_STATED, "headgate_items", {"more": f'state="{state}"'}) for state in _STATES},
    "running_dags": (_STATED, "headgate_dags", {"more": 'state="running"'}),
    "blocked_nodes": (_STATED, "headgate_nodes", {"more": 'state="blocked"'}),
    "released_nodes": (_STATED, "headgate_nodes", {"more": 'state="released"'}),
    "outbox": (_STATED, "headgate_outbox_rows"),
    "bytes": (_STATED, "headgate_shard_db_bytes"),
    "dead_tuples": (_STATED, "headgate_shard_dead_tuples"),
    "enqueued_per_s": (_GROWN, "headgate_enqueued_total"),
    "dequeued_per_s": (_GROWN, "headgate_dequeued_total"),
    "acked_per_s": (_GROWN, "headgate_acked_total"),
    "nacked_per_s": (_GROWN, "headgate_nacked_total"),
    "completions_per_s": (_GROWN, "headgate_completions_total"),
    "released_per_s": (_GROWN, "headgate_dependency_released_total"),
    "errors_per_s": (_GROWN, "headgate_shard_errors_total"),
    "expired_per_s": (_GROWN, "headgate_lease_expired_total"),
    "dead_per_s": (_GROWN, "headgate_dead_total"),
    "refused_per_s": (_GROWN, "headgate_shard_refused_total"),
    "oldest_ready_age_s": (_WORST, "headgate_oldest_ready_age_seconds"),
    "oldest_transaction_age_s": (_WORST, "headgate_shard_oldest_xact_age_seconds"),
    "db_latency_ms_p50": (_QUANTILE, "headgate_shard_query_seconds", {"part": 0.5, "scale": 1000}),
    "db_latency_ms_p99": (_QUANTILE, "headgate_shard_query_seconds", {"part": 0.99, "scale": 1000}),
    "release_lag_s_p99": (_QUANTILE, "headgate_release_lag_seconds", {"part": 0.99, "scale": 1}),
    "waiting_calls": ("sum by ({by}) ({name}{{{where}}})", "headgate_shard_pool_waiting"),
    "up": ("min by ({by}) ({name}{{{where}}})", "headgate_shard_up"),
}


class LongHistory:
    """The way to Prometheus; `url` is None where none was named."""

    def __init__(self, service: str, url: str | None) -> None:
        self.url = url
        self._job = f"headgate-{service}"
        self._client: httpx.AsyncClient | None = None
        self._asking = asyncio.Semaphore(_AT_ONCE_MAX)

    async def lines(
        self,
        metrics: list[str],
        by: str,
        where: dict[str, str],
        *,
        begins_at_s: float,
        step_s: float,
        points: int,
        lines_max: int,
    ) -> tuple[dict[Place, list[float | None]], int]:
        """Points of each metric, and how many lines were left out.

        Raises:
            Unavailable: Prometheus does not answer, or refuses.
        """
        asked = [
            (metric, query)
            for metric in metrics
            if (query := expression(metric, by, {"job": self._job, **where}, step_s)) is not None
        ]
        times = {"start": begins_at_s, "end": begins_at_s + (points - 1) * step_s, "step": step_s}
        answers = await asyncio.gather(*(self._ask({"query": query, **times}) for _, query in asked))
        found: dict[Place, list[float | None]] = {}
        left_out = 0
        try:
            for (metric, _), series in zip(asked, answers, strict=True):
                for each in series:
                    if len(found) >= lines_max:
                        left_out += 1
                        continue
                    found[_place(metric, by, where, each["metric"])] = _values(
                        each["values"], begins_at_s, step_s, points
                    )
        except _UNREADABLE as error:
            raise self._away() from error
        return found, left_out

    async def _ask(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        assert self.url is not None, "asked only where one is named"
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False)
        target = f"{self.url.rstrip('/')}/api/v1/query_range"
        try:
            # In all: one that tells a byte a second would keep its turn for good.
            async with (
                asyncio.timeout(_ANSWER_S),
                self._asking,
                self._client.stream("POST", target, data=query) as answer,
            ):
                body = bytearray()
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > _BYTES_MAX:
                        raise Unavailable("Prometheus told too much at once: ask for fewer shards, or topics")
            if answer.status_code != 200:
                raise Unavailable(f"the Prometheus at {self._shown()} refuses ({answer.status_code})")
            series: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        except (httpx.HTTPError, TimeoutError, *_UNREADABLE) as error:
            raise self._away() from error
        return series

    def _away(self) -> Unavailable:
        return Unavailable(f"the Prometheus at {self._shown()} does not answer", retry_after_s=5.0)

    def _shown(self) -> httpx.URL:
        return httpx.URL(self.url or "").copy_with(username=None, password=None)

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.aclose()


def expression(metric: str, by: str, where: dict[str, str], step_s: float) -> str | None:
    """A metric in PromQL; None: there is nothing of it, or not of single topics."""
    is_of_topics = by == "topic" or "topic" in where
    if metric not in _QUERIES or (is_of_topics and metric not in _OF_TOPICS):
        return None
    way, name, *more = _QUERIES[metric]
    if is_of_topics:
        name = _OF_TOPICS[metric] or name
    filling: dict[str, Any] = more[0] if more else {}
    labels = [f"{label}={json.dumps(value)}" for label, value in where.items()] + [filling.get("more", "")]
    over = max(_RATE_S_MIN, math.ceil(2 * step_s))
    selector = ",".join(filter(None, labels))
    return str(way.format(name=name, by=", ".join(_LABELS[by]), where=selector, over=over, **filling))


def _place(metric: str, by: str, where: dict[str, str], labels: dict[str, str]) -> Place:
    shard = ShardNo(int(labels["shard"])) if by == "shard" else None
    named = by == "topic" or "topic" in where
    namespace, topic = ({**where, **labels}.get(name) if named else None for name in ("namespace", "topic"))
    return Place(metric, shard, namespace, topic)


def _values(told: list[list[Any]], begins_at_s: float, step_s: float, points: int) -> list[float | None]:
    values: list[float | None] = [None] * points
    for at_s, text in told:
        place = round((float(at_s) - begins_at_s) / step_s)
        value = float(text)
        if 0 <= place < points and math.isfinite(value):
            values[place] = float(f"{value:.6g}")
    return values
