"""The composition root: builds the parts of a DAG process, starts its loops, and takes them down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from services.dag.api import (
    routes,
    routes_events,
    routes_explain,
    routes_export,
    routes_quotas,
    routes_schedules,
    routes_subdags,
    routes_values,
    routes_workflows,
    verbs,
)
from services.dag.api.parts import Orchestrator
from services.dag.duties.completion_poll import Results
from services.dag.duties.duty_poll import DutyPoll
from services.dag.duties.long_steps import Walker
from services.dag.duties.queue_events import QueueEvents
from services.dag.duties.relay import Relay
from services.dag.duties.retention import Retention
from services.dag.duties.slots import Slots
from services.dag.duties.sweeper import Sweeper
from services.dag.duties.timers import SKIP_LOOK_S, Timers
from services.dag.queue_client import HeadgateQueue, Queue
from services.dag.read.samples import ShardSamples
from services.dag.run.context import Context
from services.dag.settings import DagSettings
from shared.admission.delay import SAMPLE_S
from shared.clock import Clock, SystemClock
from shared.console.audit_log import Audited
from shared.console.relay import ServiceRelay
from shared.console.routes import router as console_router
from shared.console.site import add_relay
from shared.console.site import router as site_router
from shared.console.watch import Watch
from shared.http.access import access_of
from shared.http.edge import install
from shared.http.hot_path import HotPath
from shared.http.pages import add_pages
from shared.ids import ShardNo
from shared.loop import Loop, Waker
from shared.metrics import RELEASED
from shared.shards.ownership import SELDOM_S, Ownership
from shared.shards.shard_map import MapListener, Shard, ShardMap

# Between two samples of the shards for `/metrics`.
GAUGES_S = 5.0


class Loops:
    """The background duties of one process, and what wakes them."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        context = orchestrator.context
        self._orchestrator = orchestrator
        self._ownership = context.ownership
        self._settings = context.settings
        self.results: dict[ShardNo, Results] = {}
        self.relay = Relay(context, orchestrator.completer, orchestrator.sub_dags, self._drain)
        self.sweeper = Sweeper(context, orchestrator.registrar, orchestrator.controller)
        self.retention = Retention(context)
        self.walker = Walker(context)
        self.queue_events = QueueEvents(context)
        self.timers = Timers(context)
        self.slots = Slots(context, orchestrator.ticker)
        self._polls: list[Loop] = []
        self._others: list[Loop] = [
            Loop("lag", context.lag.step, interval_s=SAMPLE_S),
            Loop("gauges", orchestrator.shard_health.step, interval_s=GAUGES_S),
            Loop("homes", context.look_for_homes, interval_s=self._settings.shards_refresh_s),
        ]
        self._walks: dict[ShardNo, Loop] = {}
        for shard in context.shards:
            self._serve(shard)

    def start(self) -> None:
        """Start all loops."""
        for loop in (*self._polls, *self._walks.values(), *self._others):
            loop.start()
        self.queue_events.start()

    def join(self, shard: Shard) -> None:
        """Serve a shard that is new in the map."""
        begun = self._serve(shard)
        if self._others[0].is_running:
            for loop in begun:
                loop.start()

    def _serve(self, shard: Shard) -> list[Loop]:
        context, number = self._orchestrator.context, shard.number
        results = self.results[number] = Results(context, self._orchestrator.completer, shard)
        polls = [
            self._ownership.duty(f"results {i}", number, results.step, interval_s=0.2)
            for i in range(self._settings.completion_pollers)
        ]
        wakers = context.wakers[number]
        walks = self._walks[number] = self._loop("walks", shard, self.walker.step, wakers.walks)
        outbox = self._loop("outbox", shard, self.relay.step)
        sweeper = self._loop("sweeper", shard, self.sweeper.step)
        look_s = SKIP_LOOK_S if self._settings.skip_time else SELDOM_S
        timers = self._loop("timers", shard, self.timers.step, wakers.timers, interval_s=look_s)
        slots = self._loop("slots", shard, self.slots.step, wakers.slots)
        woken = {"walks": walks, "outbox": outbox, "sweep": sweeper, "timers": timers, "slots": slots}
        poll = DutyPoll(context, shard, woken)
        others = [
            outbox,
            sweeper,
            timers,
            slots,
            self._ownership.duty("duty_poll", number, poll.step, interval_s=self._settings.sweep_s),
            Loop("watches", partial(context.watches.step, shard), interval_s=self._settings.watch_s, shard=number),
            self._loop("retention", shard, self.retention.step, interval_s=self._settings.keep_interval_s),
        ]
        self._polls += polls
        self._others += others
        return [*polls, walks, *others]

    def stop_polling(self) -> None:
        """Leave completions to other processes."""
        for results in self.results.values():
            results.stop_polling()

    async def stop(self) -> None:
        """Stop taking completions, finish what is at hand, then stop the rest."""
        self.stop_polling()
        self.walker.leave()
        await self.queue_events.stop()
        await asyncio.gather(*(loop.stop() for loop in self._polls))
        await asyncio.gather(*(loop.stop() for loop in (*self._walks.values(), *self._others)))
        # The last that is applied is still told to the queue.
        for results in self.results.values():
            await results.applied()
        await self.relay.close()
        for results in self.results.values():
            await results.close()

    def _loop(
        self,
        name: str,
        shard: Shard,
        step: Callable[[Shard], Awaitable[int]],
        waker: Waker | None = None,
        *,
        interval_s: float = SELDOM_S,
    ) -> Loop:
        return self._ownership.duty(name, shard.number, partial(step, shard), interval_s=interval_s, waker=waker)

    async def _drain(self, shard: Shard) -> None:
        await self.results[shard.number].drain()


def create_app(settings: DagSettings, *, queue: Queue | None = None, clock: Clock | None = None) -> FastAPI:
    """The DAG service as an ASGI app; its lifespan checks the schema and starts the background loops."""
    clock = clock or SystemClock()
    shards = ShardMap(settings.plan(), settings, clock)
    if queue is None:
        queue = HeadgateQueue(
            settings.queue_url, settings.dag_token, clock=clock, shards_refresh_s=settings.shards_refresh_s
        )
    ownership = Ownership("dag", shards, settings, clock)
    orchestrator = Orchestrator(Context(shards, queue, settings, clock, ownership))
    loops = Loops(orchestrator)
    relay = ServiceRelay("queue", settings.queue_url)
    watch = Watch(
        "dag",
        settings,
        shards,
        ownership,
        clock,
        counters={"released_per_s": RELEASED},
        more=ShardSamples(orchestrator.context, orchestrator.shard_health).latest,
    )

    def join(shard: Shard) -> None:
        orchestrator.context.join(shard)
        loops.join(shard)
        watch.sampling.join(shard)

    access = access_of(settings)
    following = Loop("shard map", partial(shards.reload, MapListener(joined=join)), interval_s=1.0)
    own = [*access.loops(), following, watch.loop]  # of the process, not of a shard

    async def leave() -> None:
        orchestrator.context.watches.leave()
        loops.stop_polling()
        await ownership.leave()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await shards.check_schema()
        await ownership.start()
        for loop in own:
            loop.start()
        loops.start()
        watch.peers.start()
        yield
        for loop in own:
            await loop.stop()
        await watch.stop()
        await relay.close()
        await leave()
        await loops.stop()
        await ownership.stop()
        await queue.close()
        await shards.close()

    app = FastAPIOffline(
        redoc_url=None,
        title="Headgate DAG",
        version="1",
        description="Items that wait for other items.",
        lifespan=lifespan,
    )
    app.state.access = access
    app.state.orchestrator = orchestrator
    app.state.loops = loops
    app.state.leave = leave
    app.state.watch = watch
    app.add_middleware(Audited, watch.audit_log, access)
    install(app, settings, orchestrator.context.lag, ready=ownership.ready)
    app.state.hot = HotPath(app, verbs.Hot(orchestrator).by_path(), access, settings, orchestrator.context.lag)
    _add_routes(app, relay)
    return app


def _add_routes(app: FastAPI, relay: ServiceRelay) -> None:
    for module in (
        routes,
        routes_explain,
        routes_subdags,
        routes_values,
        routes_schedules,
        routes_workflows,
        routes_quotas,
        routes_events,
        routes_export,
    ):
        app.include_router(module.router)
    app.include_router(console_router)
    app.include_router(site_router)
    add_relay(app, relay)
    add_pages(app, "dag")
