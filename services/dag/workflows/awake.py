"""Turns that wait: a run that has nothing to be told is not parked at once, and the answer has what comes.

The turn is written, and the queue given what it asks for, before anybody waits. What a waiting turn is told is no
more than that it should look: by commits of this process, and over Redis by those of others (`run.watches`). It
ends with the events that are in the log then; or it parks the run by what a turn without a wait would have
done, the same turn again. So a process that dies meanwhile leaves a run that is awake, whose worker sends its turn
again, or whose item comes again.

It waits where it would hear: without Redis, or with as many turns that wait as a process may hold, it parks.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from services.dag import store
from services.dag.run.context import Context
from services.dag.run.watches import NEWS, Watch
from services.dag.store.turns import AwakeRun, News
from services.dag.workflows.plain_turns import PlainTurns
from services.dag.workflows.turn_commits import TurnCommits
from services.dag.workflows.values import Turn, TurnAnswer
from shared.admission.connection_priority import Urgency
from shared.crash import crash_point
from shared.fallback import Fallback
from shared.ids import ShardNo
from shared.postgres.batcher import Batcher, BatcherLimits
from shared.shards.shard_map import Shard

_RUNS_PER_LOOK_MAX = 100


class Client(Protocol):
    """Who waits for an answer; see `shared.http.hot_path`."""

    def gone(self) -> asyncio.Future[None]:
        """A future that is done once the client has hung up."""
        ...

    def step_aside(self) -> None:
        """The call is not worked on until it ends."""
        ...


class AwakeTurns:
    """Takes turns, and answers those that may wait when there is something to be told."""

    def __init__(self, context: Context, commits: TurnCommits) -> None:
        self._context = context
        self._settings = context.settings
        self._commits = commits
        self._plain = PlainTurns(context)
        self._looking: dict[ShardNo, Batcher[AwakeRun, News]] = {}
        self.waiting = 0

    async def take(self, namespace: str, dag_id: str, turn: Turn, client: Client | None = None) -> TurnAnswer:
        """Write a turn, and wait up to its `wait_s` for events, as long as its client does.

        Raises:
            As `TurnCommits.take`.
        """
        if not self._may_wait(turn):
            return await self._commits.take(namespace, dag_id, turn)
        shard, dag_id = self._context.shard_of(dag_id)
        self.waiting += 1
        try:
            with self._context.watches.watching(shard, dag_id, NEWS) as watch:
                answer = await self._write(shard, namespace, dag_id, turn, watch)
                until_s = self._context.clock.monotonic_s() + turn.wait_s
                is_gone = _following(client, watch) if answer.waits else None
                while answer.waits:
                    crash_point("turn_waits")
                    asked = AwakeRun(answer.dag_no, turn.generation, turn.turn, turn.last)
                    found = await self._next(shard, asked, watch, until_s)
                    if is_gone is not None and is_gone.done():
                        found = None
                    answer = found or await self._commits.take(namespace, dag_id, turn)
                return answer
        finally:
            self.waiting -= 1

    def _may_wait(self, turn: Turn) -> bool:
        context = self._context
        return (
            turn.wait_s > 0
            and context.news.is_heard
            and not context.watches.leaving
            and self.waiting < self._settings.turns_waiting_max
        )

    async def _write(self, shard: Shard, namespace: str, dag_id: str, turn: Turn, watch: Watch) -> TurnAnswer:
        # What it was told before it is written, it sees.
        watch.event.clear()
        answer = await self._plain.take(shard, namespace, dag_id, turn, watch)
        if isinstance(answer, Fallback):
            answer.counted("run_turn")
            return await self._commits.take(namespace, dag_id, turn, watch)
        crash_point("after_turn")
        return answer

    async def _next(self, shard: Shard, asked: AwakeRun, watch: Watch, until_s: float) -> TurnAnswer | None:
        """What there is to be told, once something is; None where the turn is to wait no longer."""
        left_s = until_s - self._context.clock.monotonic_s()
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await watch.event.wait()
        if not watch.event.is_set() or self._context.watches.leaving:
            return None
        watch.event.clear()
        [news] = await self._looks_at(shard).submit([asked])
        if not news.is_awake:
            return None
        return TurnAnswer(asked.turn, news.events, news.more, waits=not news.events, dag_no=asked.dag_no)

    def _looks_at(self, shard: Shard) -> Batcher[AwakeRun, News]:
        if shard.number not in self._looking:
            settings = self._settings

            async def flush(asked: list[AwakeRun]) -> list[News]:
                return await store.turns.news(
                    shard,
                    asked,
                    rows_max=settings.history_events_max,
                    bytes_max=settings.page_bytes_max // len(asked),
                )

            limits = BatcherLimits(_RUNS_PER_LOOK_MAX, wait_s=settings.standing_wait_s_max)
            self._looking[shard.number] = Batcher(flush, limits, Urgency.SETTLE, shard.pool)
        return self._looking[shard.number]


def _following(client: Client | None, watch: Watch) -> asyncio.Future[None] | None:
    """When the client has hung up, which wakes the watch."""
    if client is None:
        return None
    client.step_aside()
    gone = client.gone()
    gone.add_done_callback(lambda _: watch.event.set())
    return gone
