"""Runs and their histories, as people and deciders read them; nothing here takes a lock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from services.dag import store
from services.dag.build import run_spec
from services.dag.queue_items import encode
from services.dag.run.context import Context, shutting_down
from services.dag.run.watches import NEWS
from services.dag.store.runs import Run, SentSignal, ShownRun, StoredEvent
from services.dag.workflows.control import unknown
from services.dag.workflows.values import Update
from shared.errors import NotFound, invalid
from shared.http import cursors
from shared.shards.asking import Listed, ask_all
from shared.shards.shard_map import Shard

T = TypeVar("T")

_LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"


class History(NamedTuple):
    """A page of a run's log, and the run as it is."""

    run: Run
    events: list[StoredEvent]
    more: bool


class RunReader:
    """Reads; everything here may be asked again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings

    async def run(self, namespace: str, workflow_id: str) -> ShownRun:
        """The run that an id means.

        Raises:
            NotFound
        """
        return await self.of_dag(namespace, await self._dag_of(namespace, workflow_id))

    async def _dag_of(self, namespace: str, workflow_id: str) -> str:
        shard = run_spec.home_of(self._context.shards, namespace, workflow_id)
        dag_id = await store.runs.dag_of_id(shard, namespace, workflow_id)
        if dag_id is None:
            raise unknown()
        return dag_id

    async def of_dag(self, namespace: str, dag_id: str) -> ShownRun:
        """The run that a DAG is.

        Raises:
            NotFound
        """
        shard, dag_id = self._context.shard_of(dag_id)
        return await self._shown(shard, namespace, dag_id)

    async def _shown(self, shard: Shard, namespace: str, dag_id: str) -> ShownRun:
        found = await store.runs.shown(shard, [dag_id], namespace)
        if not found:
            raise NotFound("there is no such run in this namespace")
        return found[0]

    async def wait(self, namespace: str, workflow_id: str, timeout_s: float) -> ShownRun:
        """The run that an id means, when that is over or at the timeout; of one that goes on as new, the next.

        Raises:
            ShuttingDown: before either, the process does.
        """
        clock = self._context.clock
        until_s = clock.monotonic_s() + timeout_s
        while True:
            shard, dag_id = self._context.shard_of(await self._dag_of(namespace, workflow_id))
            with self._context.watches.watching(shard, dag_id) as watch:
                found = await self._shown(shard, namespace, dag_id)
                left_s = until_s - clock.monotonic_s()
                if found.run.state != "continued" and (found.run.over or left_s <= 0):
                    return found
                if self._context.watches.leaving:
                    raise shutting_down()
                if not found.run.over:
                    await _or_timeout(watch.event, left_s)

    async def update(self, namespace: str, workflow_id: str, update_id: str, wait_s: float = 0.0) -> Update:
        """What became of an update, once it is answered or after `wait_s`; of a run that goes on as new, the next
        one's answer.

        Raises:
            NotFound: the run was sent no such update.
            ShuttingDown: before either, the process does.
        """
        clock = self._context.clock
        until_s = clock.monotonic_s() + wait_s
        while True:
            shard, dag_id = self._context.shard_of(await self._dag_of(namespace, workflow_id))
            with self._context.watches.watching(shard, dag_id, NEWS) as watch:
                # The run first: what is over by then is answered no more.
                run = (await self._shown(shard, namespace, dag_id)).run
                sent = await store.runs.update_of(shard, run.dag_no, update_id)
                left_s = until_s - clock.monotonic_s()
                if run.state == "continued":
                    continue
                if sent is None or not sent.asks:
                    raise NotFound("the run was sent no such update")
                if sent.answer is not None or run.over or left_s <= 0:
                    return _update(update_id, sent, run)
                if self._context.watches.leaving:
                    raise shutting_down()
                # What other processes have told may be lost.
                await _or_timeout(watch.event, min(left_s, self._settings.watch_s))

    async def history(self, namespace: str, dag_id: str, after: int, wait_s: float = 0.0) -> History:
        """A page of a run's log behind `after`; where there is none, after up to `wait_s`.

        Raises:
            NotFound
        """
        clock = self._context.clock
        until_s = clock.monotonic_s() + wait_s
        shard, dag_id = self._context.shard_of(dag_id)
        while True:
            with self._context.watches.watching(shard, dag_id, NEWS) as watch:
                found = await self._page(shard, namespace, dag_id, after)
                left_s = until_s - clock.monotonic_s()
                if found.events or found.run.over or left_s <= 0 or self._context.watches.leaving:
                    return found
                await _or_timeout(watch.event, min(left_s, self._settings.watch_s))

    async def history_of(self, namespace: str, workflow_id: str, after: int, wait_s: float = 0.0) -> History:
        """The same, of the run that an id means."""
        return await self.history(namespace, await self._dag_of(namespace, workflow_id), after, wait_s)

    async def _page(self, shard: Shard, namespace: str, dag_id: str, after: int) -> History:
        # The run first: what it has seen is then not beyond the events that are read.
        run = await store.runs.of_dag(shard, dag_id, namespace)
        if run is None:
            raise NotFound("there is no such run in this namespace")
        page = await store.runs.history(
            shard.pool,
            run.dag_no,
            after,
            rows_max=self._settings.history_events_max,
            bytes_max=self._settings.page_bytes_max,
        )
        if run.over and await store.runs.of_dag(shard, dag_id, namespace) is None:
            raise NotFound("there is no such run in this namespace")  # it was dropped meanwhile
        return History(run, page.events, page.more)

    async def page(
        self,
        namespace: str,
        *,
        type: str | None,
        state: str | None,
        version: str | None,
        stuck: bool,
        limit: int,
        cursor: str | None,
    ) -> Listed[ShownRun, str]:
        """A page of runs, newest first: of no more than `limit`, and of bounded bytes."""
        query = f"workflows|{namespace}|{type}|{state}|{version}|{stuck}"
        before_id = _LAST_ID if cursor is None else cursors.decode(query, cursor)
        if cursor is not None and len(before_id) != len(_LAST_ID):
            raise invalid("/cursor", "this is not a cursor of this list")

        async def part(shard: Shard) -> dict[str, int]:
            ids = await store.runs.page(
                shard,
                namespace,
                type=type,
                state=state,
                version=version,
                stuck=stuck,
                before_id=before_id,
                rows_max=limit + 1,
            )
            return await store.runs.bytes_of(shard, ids) if ids else {}

        parts, away = await ask_all(list(self._context.shards), part)
        sizes = {dag_id: size for part in parts for dag_id, size in part.items()}
        newest = sorted(sizes, reverse=True)
        fitting = _fitting(newest[:limit], sizes, self._settings.page_bytes_max)

        async def whole(shard: Shard) -> list[ShownRun]:
            ids = [dag_id for dag_id in fitting if self._context.shard_of(dag_id)[0] is shard]
            return await store.runs.shown(shard, ids, namespace) if ids else []

        wholes, gone = await ask_all(list(self._context.shards), whole)
        shown = {run.run.dag_id: run for part in wholes for run in part}
        more = len(newest) > len(fitting)
        found = [shown[dag_id] for dag_id in fitting if dag_id in shown]
        return Listed(found, cursors.encode(query, fitting[-1]) if more else None, sorted({*away, *gone}))


def _update(update_id: str, sent: SentSignal, run: Run) -> Update:
    if sent.answer is None:
        ended = f"the run has ended before it was answered: {run.state}" if run.over else None
        return Update(update_id, "failed" if ended else "pending", error=ended)
    answer: dict[str, Any] = json.loads(sent.answer)
    output = encode(answer["output"]) if "output" in answer else None
    return Update(update_id, answer["state"], output, answer.get("error"))


def _fitting(dag_ids: Sequence[str], sizes: Mapping[str, int], bytes_max: int) -> list[str]:
    """The first that have no more bytes together; one at least, if there is any."""
    totals = accumulate(sizes[dag_id] for dag_id in dag_ids)
    return [
        dag_id
        for nth, (dag_id, total) in enumerate(zip(dag_ids, totals, strict=True))
        if not nth or total <= bytes_max
    ]


async def _or_timeout(event: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
