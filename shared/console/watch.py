"""What a process puts together for its operators: history, sampling, and the line to its peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client import Counter

from shared.clock import Clock
from shared.console import inspection, merging
from shared.console.audit_log import AuditLog, Operation
from shared.console.history import SeriesName, ShardHistory
from shared.console.longer import LONGEST_S, LongHistory
from shared.console.map_commands import MapCommands
from shared.console.merging import Question, Told
from shared.console.peers import Peers
from shared.console.sampling import Sampling
from shared.errors import NotFound
from shared.ids import ShardNo
from shared.loop import Loop
from shared.settings import EdgeSettings
from shared.shards.ownership import Ownership
from shared.shards.shard_map import ShardMap

_LOOK_S_MAX = 5.0


class Watch:
    """One process's part of what is shown of its service."""

    def __init__(
        self,
        service: str,
        settings: EdgeSettings,
        shards: ShardMap,
        ownership: Ownership,
        clock: Clock,
        *,
        counters: Mapping[str, Counter],
        more: Callable[[], Iterable[tuple[SeriesName, float]]],
        operation: Operation | None = None,
    ) -> None:
        self._settings = settings
        self.history = ShardHistory(
            clock,
            point_s=settings.history_point_s,
            span_s=settings.history_span_s,
            series_max=settings.history_series_max,
        )
        self.sampling = Sampling(self.history, shards, ownership, clock, counters=counters, more=more)
        self.peers = Peers(settings.redis_url, settings.redis_prefix, service, ownership.name)
        self.peers.answerers["history"] = self._answer
        self.peers.answerers["view"] = self._view
        self.peers.answerers["map_commands"] = self._commands
        self.audit_log = AuditLog(shards, settings.audit_retention_s, operation)
        self.map_commands = MapCommands(service, settings, clock, self.audit_log)
        self.longer = LongHistory(service, settings.prometheus_url)
        self._shards = shards
        self._ownership = ownership
        self.loop = Loop("history", self.step, interval_s=settings.history_point_s)

    async def step(self) -> int:
        """Take a sample, and end entries of the audit log whose shard was away."""
        done = await self.sampling.step()
        await self.audit_log.settle()
        return done

    async def stop(self) -> None:
        """Answer nobody any more, and stop what runs beside this process."""
        await self.map_commands.close()
        await self.audit_log.settle()
        await self.longer.close()
        await self.peers.stop()

    @property
    def remembered_s(self) -> float:
        """How long processes remember."""
        return self._settings.history_span_s

    @property
    def told_s_max(self) -> float:
        """How long a range can be told."""
        return LONGEST_S if self.longer.url is not None else self.remembered_s

    async def ask(self, question: Question) -> dict[str, Any]:
        """The lines that are asked for, of all processes that answer, and what happened meanwhile."""
        heard = await self.peers.ask("history", msgspec.to_builtins(question))
        told = {self.peers.name: merging.tell(self.history, question)}
        told |= {name: msgspec.convert(answer, Told) for name, answer in heard.answers.items()}
        lines = merging.merge(list(told.values()), question.by)
        point_s = self.history.point_s
        shown = sorted(lines.items(), key=lambda line: (line[0].metric, line[0].shard or 0, str(line[0][2:])))
        return {
            "begins_at_s": question.begin * point_s,
            "step_s": question.stride * point_s,
            "points": question.points,
            "series": [merging.shown(place, values) for place, values in shown[: question.lines_max]],
            "marks": merging.marks(told, question),
            "processes": sorted(told),
            "silent": heard.asked - len(heard.answers),
            "source": "processes",
            "left_out": sum(answer.left_out for answer in told.values()) + max(0, len(shown) - question.lines_max),
        }

    async def ask_longer(self, question: Question) -> dict[str, Any]:
        """The same of a range that no process remembers, as Prometheus has it; marks reach as far as processes do.

        Raises:
            Unavailable: it does not answer.
        """
        point_s = self.history.point_s
        found = await self.ask(msgspec.structs.replace(question, metrics=[]))
        where = {"shard": question.shard, "namespace": question.namespace, "topic": question.topic}
        lines, left_out = await self.longer.lines(
            question.metrics,
            question.by,
            {name: str(value) for name, value in where.items() if value is not None},
            begins_at_s=question.begin * point_s,
            step_s=question.stride * point_s,
            points=question.points,
            lines_max=question.lines_max,
        )
        shown = sorted(lines.items(), key=lambda line: (line[0].metric, line[0].shard or 0, str(line[0][2:])))
        series = [merging.shown(place, values) for place, values in shown]
        return found | {"series": series, "left_out": left_out, "source": "prometheus"}

    def question(
        self,
        *,
        metrics: list[str],
        span_s: float,
        step_s: float,
        by: str,
        shard: ShardNo | None,
        namespace: str | None,
        topic: str | None,
    ) -> Question:
        """A question for the time until now, in whole points, of what one answer holds."""
        point_s = self.history.point_s
        stride = max(1, round(step_s / point_s))
        remembered = round(self.told_s_max / point_s)
        points = max(1, min(remembered, round(span_s / point_s)) // stride)
        end = self.history.slot_now() // stride * stride + stride
        lines_max = max(1, self._settings.history_values_max // points)
        return Question(metrics, end - points * stride, points, stride, by, shard, namespace, topic, lines_max)

    def number_of(self, text: str) -> ShardNo:
        """The number of a shard that stands in a path.

        Raises:
            NotFound: the map has no such shard.
        """
        if (
            not text.isdecimal()
            or not text.isascii()
            or len(text) > 4
            or self._shards.get(ShardNo(int(text))) is None
        ):
            raise NotFound("no shard has this number; see GET /v1/shards")
        return ShardNo(int(text))

    async def inspect(self, number: ShardNo) -> dict[str, Any]:
        """One shard: what its server tells, and how each process sees it.

        Raises:
            NotFound: the map has no such shard.
        """
        shard = self._shards.get(number)
        own = await self._view(number)
        if shard is None or own is None:
            raise NotFound("no shard has this number; see GET /v1/shards")
        heard, shown = await asyncio.gather(
            self.peers.ask("view", number), inspection.looked_at(shard, _LOOK_S_MAX)
        )
        views = {self.peers.name: own} | {name: said for name, said in heard.answers.items() if said is not None}
        sides = [{"process": name, **views[name]} for name in sorted(views)]
        silent = heard.asked - len(heard.answers)
        return {"shard": number, "why": inspection.why(shown, views), "views": sides, "silent": silent, **shown}

    async def commands(self) -> list[dict[str, Any]]:
        """The last changes of the map that pages began, of all processes that answer, newest first."""
        heard = await self.peers.ask("map_commands", None)
        own = await self._commands(None)
        return sorted(
            (each for part in (own, *heard.answers.values()) for each in part),
            key=lambda each: str(each["begun_at"]),
            reverse=True,
        )

    async def _commands(self, _question: Any) -> Any:
        return [each | {"process": self.peers.name} for each in msgspec.to_builtins(self.map_commands.known())]

    async def _view(self, number: Any) -> dict[str, Any] | None:
        shard = self._shards.get(ShardNo(number)) if isinstance(number, int) else None
        if shard is None or shard.is_retired:
            return None
        return inspection.view(shard, self._shards, self._ownership, self._settings.pool_connections_max)

    async def _answer(self, question: Any) -> Any:
        return msgspec.to_builtins(merging.tell(self.history, msgspec.convert(question, Question)))
