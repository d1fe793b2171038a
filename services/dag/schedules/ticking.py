"""Due slots become ticks and runs, each in one transaction, under the lock of their schedule's row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from services.dag import store
from services.dag.build import subdag_spec
from services.dag.build.create import Builder, Written
from services.dag.model import Resolved
from services.dag.queue_items import encode
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.schedules import policy, spec
from services.dag.schedules.policy import Situation
from services.dag.store.schedules import Schedule, ScheduleStanding, Tick
from shared import ids
from shared.errors import NotFound, ServiceError, Unavailable
from shared.ids import ShardNo
from shared.log import log
from shared.metrics import SCHEDULE_TICKS
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

# The external that runs find resolved with what they were started for.
GIVEN: Final = "schedule"
# Slots that one transaction counts, where that is one by one; runs that it forgets.
_SLOTS_PER_STEP: Final = 250
_RUNS_PER_STEP: Final = 100
# Runs that are cancelled with the decision of a slot whose overlap policy ends others.
_ENDED_PER_STEP: Final = 100
_OTHER: Final = "the schedule's next slot takes its place"


class _Done(NamedTuple):
    """What a transaction did: a tick, if there was one, and the run that it made."""

    tick: Tick | None = None
    run: Written | None = None


class _Slot(NamedTuple):
    """What a run is to be started for; `tick` where it has one already."""

    kind: str
    at: datetime
    request: str | None = None
    tick: int | None = None


class _Turn:
    """One transaction about one schedule. `refusal`: the code with which its run was refused before."""

    def __init__(
        self,
        tx: Transaction,
        shard: Shard,
        context: Context,
        builder: Builder,
        schedule: Schedule,
        standing: ScheduleStanding,
        queue_shard: ShardNo,
        *,
        refusal: str | None,
        kept: int,
    ) -> None:
        self._tx = tx
        self._shard = shard
        self._builder = builder
        self._context = context
        self._schedule = schedule
        self._standing = standing
        self._queue_shard = queue_shard
        self._refusal = refusal
        self._kept = kept
        self._situation = Situation(standing.now, standing.unfinished, standing.buffered)
        self.settlement: Settlement | None = None

    async def next(self) -> _Done:
        """What waits has its turn before what is due."""
        schedule, waiting = self._schedule, self._standing.waiting
        if waiting is not None and not schedule.paused:
            overlap = waiting.overlap if waiting.kind == "backfill" else "skip"
            if overlap == "allow" or not self._standing.unfinished:
                await store.schedules.delete_waiting(self._tx, schedule.no, waiting.no)
                return await self.start(_Slot(waiting.kind, waiting.at, waiting.request, waiting.tick))
        due = None if schedule.next_at is None else self._due(schedule.next_at)
        if due is None or due > self._standing.now:
            return _Done()
        return await self._decide(due)

    async def trigger(self, at: datetime | None, request: str | None) -> _Done:
        """A run now, by the overlap policy; the same call again is told what became of it."""
        if request is not None:
            known = await store.schedules.tick_of_request(self._tx, self._schedule.no, request)
            if known is not None:
                return _Done(known)
        decision, reason = policy.overlapping(self._schedule.overlap, self._situation)
        slot = _Slot("trigger", at or self._standing.now, request)
        if decision == "started":
            return await self._start_alone(slot)
        tick = await self._note(slot, decision, reason)
        if decision == "buffered":
            await self._buffer(tick)
        return _Done(tick)

    async def start(self, slot: _Slot) -> _Done:
        """Make the run of a slot."""
        schedule = self._schedule
        if self._refusal is not None:
            return _Done(await self._note(slot, "skipped", self._refusal))
        made_of = subdag_spec.load(schedule.plan)
        no = slot.tick or schedule.ticks + 1
        said = {"id": schedule.id, "at": slot.at.isoformat(), "kind": slot.kind, "tick": no}
        facts = [
            Resolved(node.key, GIVEN, encode(said), False) for node in made_of.nodes if GIVEN in node.external
        ]
        run_id = ids.new_id(self._shard.number)
        self.settlement, made = await self._builder.make_within(
            self._tx, self._shard, run_id, schedule.namespace, made_of, facts, self._queue_shard
        )
        await store.schedules.insert_run(self._tx, schedule.no, made.dag.no)
        return _Done(await self._note(slot, "started", None, run=run_id), made)

    async def _start_alone(self, slot: _Slot) -> _Done:
        """Make the run of a slot, and have others end where the overlap policy says so."""
        ends_others = self._schedule.overlap == "terminate_other" and self._refusal is None
        others = await self._end_others() if ends_others else None
        done = await self.start(slot)
        if others is not None and self.settlement is not None:
            others.join(self.settlement)
        self.settlement = others or self.settlement
        return done

    async def _end_others(self) -> Settlement | None:
        """Cancel the runs that are unfinished, so many of them; None where there are none. Nobody who holds a DAG
        waits for a schedule, so that their locks may come after its."""
        numbers = await store.schedules.unfinished_runs(self._tx, self._schedule.no, _ENDED_PER_STEP)
        dags = await store.dags.lock_dag_nos(self._tx, numbers)
        dags = [dag for dag in dags if not dag.over]
        if not dags:
            return None
        settlement = Settlement(self._tx, dags, self._context.settings, self._context.home(self._shard))
        for dag in dags:
            settlement.cancel_rest(dag, "call", _OTHER)
        await settlement.run()
        return settlement

    async def _decide(self, due: datetime) -> _Done:
        schedule, standing = self._schedule, self._standing
        assert schedule.next_at is not None, "it is due"
        slot = _Slot("slot", schedule.next_at)
        times = spec.load(schedule.spec)
        decision, reason = policy.decide(
            self._situation,
            due=due,
            paused=schedule.paused,
            overlap=schedule.overlap,
            catchup_s=schedule.catchup_s,
        )
        if reason in ("paused", "missed"):
            late_s = schedule.jitter_s + (schedule.catchup_s if reason == "missed" else 0)
            before = standing.now - timedelta(seconds=late_s)
            passed = times.passed(schedule.next_at, before, _SLOTS_PER_STEP)
            schedule.next_at = passed.following
            return _Done(await self._skip(slot, reason, passed))
        schedule.next_at = times.after(schedule.next_at)
        if decision == "started":
            return await self._start_alone(slot)
        if decision == "buffered":
            tick = await self._note(slot, decision, reason)
            await self._buffer(tick)
            return _Done(tick)
        assert reason is not None, "it is skipped"
        return _Done(await self._skip(slot, reason, spec.Passed(1, slot.at, schedule.next_at)))

    async def _skip(self, slot: _Slot, reason: str, passed: spec.Passed) -> Tick:
        """Slots in a row that are skipped for one reason are one tick."""
        last = self._standing.last
        if last is None or (last.kind, last.decision, last.reason) != ("slot", "skipped", reason):
            return await self._note(slot, "skipped", reason, passed=passed)
        await store.schedules.extend_tick(self._tx, self._schedule.no, last.no, passed.through, passed.slots)
        await self._advance()
        return Tick(last.no, slot.kind, slot.at, passed.through, passed.slots, "skipped", reason, None)

    async def _note(
        self,
        slot: _Slot,
        decision: str,
        reason: str | None,
        *,
        run: str | None = None,
        passed: spec.Passed | None = None,
    ) -> Tick:
        schedule = self._schedule
        if slot.tick is not None:
            await store.schedules.start_tick(self._tx, schedule.no, slot.tick, decision, reason, run)
            await self._advance()
            return Tick(slot.tick, slot.kind, slot.at, slot.at, 1, decision, reason, run)
        schedule.ticks += 1
        through, slots = (passed.through, passed.slots) if passed is not None else (slot.at, 1)
        tick = Tick(schedule.ticks, slot.kind, slot.at, through, slots, decision, reason, run)
        decided_at = await store.schedules.insert_tick(
            self._tx, schedule.no, tick, request=slot.request, kept=self._kept
        )
        await self._advance()
        return tick._replace(decided_at=decided_at)

    async def _buffer(self, tick: Tick) -> None:
        if self._schedule.overlap == "cancel_other":
            self.settlement = await self._end_others()
        await store.schedules.insert_waiting(
            self._tx, self._schedule.no, "slot", [tick.at], self._schedule.overlap, tick=tick.no
        )

    async def _advance(self) -> None:
        schedule = self._schedule
        look_at = None if schedule.next_at is None else self._due(schedule.next_at)
        await store.schedules.advance(self._tx, schedule, look_at)

    def _due(self, slot: datetime) -> datetime:
        return policy.due_at(self._schedule.no, slot, self._schedule.jitter_s)


class Ticker:
    """Decides slots of the shards' schedules."""

    def __init__(self, context: Context, builder: Builder) -> None:
        self._context = context
        self._settings = context.settings
        self._builder = builder

    async def step(self, shard: Shard, no: int, namespace: str) -> bool:
        """Decide what a schedule has to be decided now, at most one run of it; whether there was anything."""

        async def act(turn: _Turn) -> _Done:
            return await turn.next()

        async def find(tx: Transaction) -> Schedule | None:
            return await store.schedules.lock_no(tx, no)

        done = await self._run(shard, namespace, find, act)
        return done is not None and done.tick is not None

    async def trigger(
        self, shard: Shard, namespace: str, schedule_id: str, at: datetime | None, request: str | None
    ) -> Tick:
        """A run now, or what the overlap policy makes of it.

        Raises:
            NotFound: there is no such schedule.
        """

        async def act(turn: _Turn) -> _Done:
            return await turn.trigger(at, request)

        async def find(tx: Transaction) -> Schedule | None:
            return await store.schedules.lock(tx, namespace, schedule_id)

        done = await self._run(shard, namespace, find, act)
        if done is None:
            raise NotFound("there is no such schedule in this namespace")
        assert done.tick is not None, "a trigger is decided"
        return done.tick

    async def _run(
        self,
        shard: Shard,
        namespace: str,
        find: Callable[[Transaction], Awaitable[Schedule | None]],
        act: Callable[[_Turn], Awaitable[_Done]],
    ) -> _Done | None:
        """One transaction; once more without a run where that is refused. None where there is no schedule."""
        queue_shard = await self._context.queue_shard(shard)
        await self._builder.quotas.look(namespace)
        try:
            done = await self._attempt(shard, find, act, queue_shard, None)
        except Unavailable:
            raise
        except ServiceError as error:
            done = await self._attempt(shard, find, act, queue_shard, error.code)
        if done is not None and done.tick is not None:
            tick = done.tick
            SCHEDULE_TICKS.labels(tick.decision, tick.reason or "").inc(tick.slots)
        if done is not None and done.run is not None:
            try:
                await self._builder.give_made(shard, done.run)
            except Unavailable as error:
                log.warning("a run's items are given to the queue later", error=error.detail)
        return done

    async def _attempt(
        self,
        shard: Shard,
        find: Callable[[Transaction], Awaitable[Schedule | None]],
        act: Callable[[_Turn], Awaitable[_Done]],
        queue_shard: ShardNo,
        refusal: str | None,
    ) -> _Done | None:
        async def work(tx: Transaction) -> tuple[Settlement | None, _Done | None]:
            schedule = await find(tx)
            if schedule is None:
                return None, None
            standing = await store.schedules.standing(tx, schedule.no, _RUNS_PER_STEP)
            turn = _Turn(
                tx,
                shard,
                self._context,
                self._builder,
                schedule,
                standing,
                queue_shard,
                refusal=refusal,
                kept=self._settings.schedule_ticks_max,
            )
            done = await act(turn)
            return turn.settlement, done

        return await self._context.settle(shard, work)
