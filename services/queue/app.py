"""The composition root: builds the parts of a queue process, starts its loops, and takes them down."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Protocol

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from services.queue.api.parts import QueueProcess
from services.queue.api.routes import add_verbs, router
from services.queue.api.routes_logs import router as logs_router
from services.queue.api.routes_operations import router as operations_router
from services.queue.api.routes_reasons import router as reasons_router
from services.queue.api.routes_workers import router as workers_router
from services.queue.api.verbs import Verbs
from services.queue.dispatch.announcements import Announcer
from services.queue.dispatch.dequeue import Dequeues
from services.queue.dispatch.dispatcher import Dispatch
from services.queue.duties.empty_topics import EmptyTopics
from services.queue.duties.fairness_keys import FairnessKeys
from services.queue.duties.far_keys import FarKeys
from services.queue.duties.gauges import Gauges
from services.queue.duties.hints import Hearer, Messenger
from services.queue.duties.idle_gates import IdleGates
from services.queue.duties.notices import Notices
from services.queue.duties.reaper import Reaper
from services.queue.duties.retention import Retention
from services.queue.enqueue.enqueue import Enqueues
from services.queue.enqueue.placement import Placement
from services.queue.gates.topic_gates import Gates
from services.queue.leases.ack import Acks
from services.queue.leases.ack_flushes import AckFlushes
from services.queue.leases.cancel import Cancels
from services.queue.leases.dag_news import DagNews
from services.queue.leases.doubts import Doubts
from services.queue.leases.expiry import Expiry
from services.queue.leases.extend import Extends
from services.queue.leases.hand_backs import HandBacks
from services.queue.leases.item_states import ItemStates
from services.queue.leases.job_logs import JobLogs
from services.queue.leases.nack import Nacks
from services.queue.leases.revive import Revives
from services.queue.operations.agreement import Agreement
from services.queue.operations.bulk import Operations
from services.queue.operations.cancel_news import CancelNews
from services.queue.operations.dead_items import DeadItems
from services.queue.operations.health import Health
from services.queue.operations.known_workers import KnownWorkers
from services.queue.operations.topics import Topics
from services.queue.quotas import Quotas
from services.queue.settings import QueueSettings
from services.queue.store.dequeue_encoding import Unused
from services.queue.store.shard_store import Store
from shared.admission.delay import SAMPLE_S, LoopLag
from shared.admission.token_buckets import Buckets
from shared.clock import Clock, SystemClock
from shared.console.audit_log import Audited
from shared.console.relay import ServiceRelay
from shared.console.routes import router as console_router
from shared.console.site import add_relay
from shared.console.site import router as site_router
from shared.console.watch import Watch
from shared.http.access import access_of
from shared.http.edge import install
from shared.http.hot_path import HotPath, Verb
from shared.http.pages import add_pages
from shared.ids import ShardNo
from shared.loop import Loop
from shared.metrics import ACKED, DEAD, DEQUEUED, ENQUEUED, LEASE_EXPIRED, NACKED
from shared.redis import connect
from shared.shards.ownership import Ownership
from shared.shards.shard_map import MapListener, Shard, ShardMap

# How often it is looked whose row is to be written.
WORKERS_S = 1.0

_COUNTERS = {
    "enqueued_per_s": ENQUEUED,
    "dequeued_per_s": DEQUEUED,
    "acked_per_s": ACKED,
    "nacked_per_s": NACKED,
    "dead_per_s": DEAD,
    "expired_per_s": LEASE_EXPIRED,
}


class _Talking(Protocol):
    """Tells other processes, or is told, from start to stop."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


def create_app(settings: QueueSettings) -> HotPath:
    """The queue service as an ASGI app; its lifespan checks the schema and starts the background loops."""
    clock = SystemClock()
    shards = ShardMap(settings.plan(), settings, clock)
    redis = connect(settings.redis_url) if settings.redis_url else None
    buckets = Buckets(f"{settings.redis_prefix}:queue", redis, clock)
    messenger = _messenger(settings, clock)
    process = _process(shards, buckets, messenger or Announcer(), settings, clock)
    stores, dispatch, ownership, agreement = (
        process.stores,
        process.dispatch,
        process.ownership,
        process.agreement,
    )
    talking: list[_Talking] = [process.dag_news.endings, process.dag_news.changes]
    if messenger is not None:
        talking = [messenger, Hearer(dispatch, messenger), *talking]
    lanes = FairnessKeys(stores, dispatch, settings)
    notices = Notices(stores, process.quotas, process.topics, lanes, process.workers.news, process.gates)
    lag = LoopLag(settings.standing_wait_s_max)
    gauges = Gauges(stores, ownership.owns, settings, clock)
    relay = ServiceRelay("dag", settings.dag_url)
    watch = Watch(
        "queue",
        settings,
        shards,
        ownership,
        clock,
        counters=_COUNTERS,
        more=gauges.latest,
        operation=process.operations.get,
    )
    access = access_of(settings)
    loops = [
        *access.loops(),
        *_loops(dispatch, process.health),
        Loop("notices", notices.step, interval_s=settings.quota_refresh_s),
        Loop("workers", process.workers.step, interval_s=WORKERS_S),
        Loop("gauges", gauges.step, interval_s=settings.metrics_interval_s),
        watch.loop,
        Loop("lag", lag.step, interval_s=SAMPLE_S),
        *(loop for store in stores.values() for loop in _duties(store, process)),
    ]
    follow_map = partial(shards.reload, _map_listener(process, loops, watch))
    loops += [
        Loop("agreement", agreement.step, interval_s=agreement.pause_s, waker=agreement.waker),
        Loop("shard map", follow_map, interval_s=1.0),
    ]

    async def leave() -> None:
        dispatch.leave()
        process.workers.news.leave()
        await ownership.leave()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await shards.check_schema()
        await ownership.start()
        for begin in (agreement.step, process.quotas.step, process.topics.read_shares, process.gates.read):
            await begin()
        for loop in loops:
            loop.start()
        watch.peers.start()
        async with _all(talking):
            yield
            await leave()
            await dispatch.ended()
        for loop in loops:
            await loop.stop()
        for end in (watch.stop, relay.close, buckets.close, ownership.stop, shards.close):
            await end()

    app = _described(lifespan)
    verbs = Verbs(process).by_name()
    app.state.access = access
    app.state.process = process
    app.state.loops = loops
    app.state.follow_map = follow_map
    app.state.leave = leave
    app.state.watch = watch
    app.add_middleware(Audited, watch.audit_log, access)
    install(app, settings, lag, ready=ownership.ready)
    _add_routes(app, verbs, relay)
    return HotPath(app, verbs, access, settings, lag)


def _messenger(settings: QueueSettings, clock: Clock) -> Messenger | None:
    if not settings.redis_url:
        return None
    return Messenger(settings.redis_url, settings.redis_prefix, clock, poll_s=settings.poll_s)


def _process(
    shards: ShardMap, buckets: Buckets, announcer: Announcer, settings: QueueSettings, clock: Clock
) -> QueueProcess:
    """Every part, each given those below it."""
    stores = {shard.number: Store(shard, settings) for shard in shards}
    ownership = Ownership("queue", shards, settings, clock)

    def hand_back(namespace: str, unused: Sequence[Unused]) -> Awaitable[None]:
        return hand_backs.hand_back(namespace, unused)

    def doubt(shard: ShardNo, namespace: str, token: str) -> None:
        doubts.note(shard, namespace, token)

    dispatch = Dispatch(
        list(stores.values()),
        settings,
        clock,
        announcer=announcer,
        owns=ownership.owns,
        hand_back=hand_back,
        doubt=doubt,
    )
    placement = Placement(list(stores), settings, clock, avoids=shards.avoids, owns=ownership.owns)
    dag_news = DagNews(settings)
    ack_flushes = AckFlushes(dispatch, dag_news, settings)
    expiry = Expiry(dispatch, dag_news, settings)
    gates = Gates(stores, shards, clock, wake=dispatch.look_again, keep=dispatch.keep)
    nacks = Nacks(stores, dispatch, gates, expiry, dag_news, settings)
    hand_backs = HandBacks(nacks.nack, dispatch.keep, clock)
    doubts = Doubts(stores, hand_backs.hand_back, dispatch.keep, clock)
    quotas = Quotas(stores, buckets, clock)
    operations = Operations(stores, dispatch, settings, clock)
    agreement = Agreement(stores, settings.given_rows_max, dispatch.release)
    workers = KnownWorkers(stores, CancelNews(stores, settings, clock), settings, clock)
    process = QueueProcess(
        settings=settings,
        shards=shards,
        stores=stores,
        dispatch=dispatch,
        placement=placement,
        enqueues=Enqueues(shards, dispatch, placement, settings),
        dequeues=Dequeues(stores, dispatch, gates, settings, clock),
        acks=Acks(stores, ack_flushes),
        ack_flushes=ack_flushes,
        dag_news=dag_news,
        nacks=nacks,
        hand_backs=hand_backs,
        extends=Extends(stores, workers.note),
        revives=Revives(stores, dispatch, settings),
        cancels=Cancels(stores, dispatch, settings, workers.news.hear),
        expiry=expiry,
        topics=Topics(stores, dispatch, operations, quotas, agreement, gates, settings),
        item_states=ItemStates(stores, dispatch.asked, settings),
        job_logs=JobLogs(stores, settings),
        workers=workers,
        operations=operations,
        dead=DeadItems(stores, settings),
        health=Health(stores, shards, clock, ownership),
        ownership=ownership,
        quotas=quotas,
        gates=gates,
        agreement=agreement,
    )
    for store in stores.values():
        process.take_calls_of(store)
    return process


def _described(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    app: FastAPI = FastAPIOffline(
        redoc_url=None,
        title="Headgate queue",
        version="1",
        description="A multi-tenant priority queue on sharded Postgres.",
        lifespan=lifespan,
    )
    return app


@asynccontextmanager
async def _all(talking: Sequence[_Talking]) -> AsyncIterator[None]:
    for party in talking:
        party.start()
    yield
    for party in reversed(talking):
        await party.stop()


def _add_routes(app: FastAPI, verbs: dict[str, Verb], relay: ServiceRelay) -> None:
    add_verbs(app, verbs)
    app.include_router(router)
    app.include_router(operations_router)
    app.include_router(reasons_router)
    app.include_router(console_router)
    app.include_router(logs_router)
    app.include_router(site_router)
    add_relay(app, relay)
    app.include_router(workers_router)
    add_pages(app, "queue")


def _loops(dispatch: Dispatch, health: Health) -> list[Loop]:
    async def forget_idle() -> int:
        return dispatch.forget_idle()

    return [
        Loop("rates", health.step, interval_s=1.0),
        Loop("idle lines", forget_idle, interval_s=10.0),
    ]


def _map_listener(process: QueueProcess, loops: list[Loop], watch: Watch) -> MapListener:
    """A shard that joins is served, nothing is kept of where one was, and one that left is asked nothing."""
    agreement, dispatch = process.agreement, process.dispatch

    def join(shard: Shard) -> None:
        store = Store(shard, process.settings)
        process.take_calls_of(store)
        dispatch.join(store)
        dispatch.hold(store.number)  # until it has what was set before it came
        agreement.join(store)
        watch.sampling.join(shard)
        process.placement.join(store.number)
        begun = _duties(store, process)
        for loop in begun:
            if loops[0].is_running:
                loop.start()
        loops.extend(begun)

    def drop(shard: Shard) -> None:
        process.placement.drop(shard.number)
        dispatch.drop(shard.number)
        process.ownership.drop(shard.number)
        loops[:] = [loop for loop in loops if loop.shard != shard.number]

    return MapListener(join, moved=lambda _shard: dispatch.forget_keys(), left=drop)


async def _when(sees: Callable[[], bool], step: Callable[[], Awaitable[int]]) -> int:
    return await step() if sees() else 0


def _duties(store: Store, process: QueueProcess) -> list[Loop]:
    """What is done in the background on one shard."""
    number, settings, ownership = store.number, process.settings, process.ownership
    reaper = Reaper(store, process.dispatch, process.expiry, settings)
    retention = Retention(store, settings)
    far_keys = FarKeys(store, process.stores, settings)
    idle_gates = IdleGates(store, process.gates.of_keys, settings)
    empty_topics = EmptyTopics(store, settings)
    delays, leases = reaper.delays, reaper.leases
    return [
        ownership.duty("reaper", number, reaper.look, interval_s=reaper.pause_s, waker=reaper.look_waker),
        ownership.duty("delays", number, reaper.promote_step, interval_s=delays.pause_s, waker=delays.waker),
        ownership.duty("leases", number, reaper.sweep_step, interval_s=leases.pause_s, waker=leases.waker),
        ownership.duty(
            "operations",
            number,
            partial(_when, reaper.sees_operations, partial(process.operations.step, store)),
            interval_s=settings.operation_poll_s,
        ),
        ownership.duty("ttl", number, partial(_when, reaper.sees_past_ttl, reaper.expire_step), interval_s=0.5),
        ownership.duty("counts", number, retention.fold_step, interval_s=2.0),
        *(ownership.duty(name, number, step, interval_s=15.0) for name, step in retention.steps().items()),
        ownership.duty("far keys", number, far_keys.step, interval_s=15.0),
        ownership.duty("idle gates", number, idle_gates.step, interval_s=15.0),
        ownership.duty("empty topics", number, empty_topics.step, interval_s=empty_topics.pause_s),
    ]
