"""Drives runs on a worker: a page of history in, a turn out, until the run is parked or over.

A delivery of a decider's item is one `work`. The core of a parked run is kept, so that its next event is told
without a replay; dropping it costs nothing but that. What code asks for is written in turns; steps run here,
beside the turns.
"""

import asyncio
import inspect
import json
import platform
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, Final

from headgate._program_log import ProgramLog
from headgate._threads import in_thread
from headgate.workflow.commands import Command, canonical
from headgate.workflow.driving.threads import CoreThreads
from headgate.workflow.errors import Nondeterministic, TurnFailed, TurnRefused
from headgate.workflow.events import Event
from headgate.workflow.lines import text_of
from headgate.workflow.replay import Replay
from headgate.workflow.turns import Diverged, Lease, Page, RunFinished, Runs, Turn, TurnAnswer, TurnLost, stuck_of

# Changes when the same history may make an older core ask for something else.
CORE_VERSION: Final = 1
COMMANDS_MAX: Final = 1_000
RESULTS_MAX: Final = 1_000
# Of the commands of a turn, and of its results, so that both together are far below what a service takes.
PART_BYTES_MAX: Final = 4 * 1024 * 1024
# What a command takes in a turn beside its key and its spec.
_COMMAND_BYTES: Final = 512
EVENT_LIMIT_S: Final = 2.0
CORES_BYTES_MAX: Final = 64 * 1024 * 1024
WAIT_S: Final = 20.0
# For how long a turn waits for events before its run is parked, and how many of a worker do.
TURN_WAIT_S: Final = 1.0
AWAKE_MAX: Final = 100
SHORT_STEP_S: Final = 1.0
_STEP_THREAD: Final = "headgate-step"
# What a step returns stands three levels deep in a turn, whose body may have 32.
LEVELS_MAX: Final = 29
# Rough sizes of what a parked core holds.
_CORE_BYTES: Final = 16 * 1024
_OPEN_BYTES: Final = 4 * 1024

log: Final = ProgramLog("headgate.workflow")

Resting = Callable[[], AbstractContextManager[None]]


class UnknownWorkflow(TurnFailed):
    """No workflow of that type is registered with this worker."""

    code = "unknown_workflow"


class Cores:
    """Cores of parked runs, the last used kept, bounded by what they hold."""

    def __init__(self, bytes_max: int = CORES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[str, tuple[Replay, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, run: str) -> Replay | None:
        found = self._kept.pop(run, None)
        if found is None:
            return None
        self._bytes -= found[1]
        return found[0]

    def keep(self, run: str, core: Replay) -> None:
        if (older := self.take(run)) is not None:
            older.close()
        size = _CORE_BYTES + _OPEN_BYTES * core.open_count
        self._kept[run] = core, size
        self._bytes += size
        while self._bytes > self._bytes_max:
            _, (dropped, dropped_bytes) = self._kept.popitem(last=False)
            self._bytes -= dropped_bytes
            dropped.close()


class Driver:
    """`workflows` by type. `replay_rate` is the part of turns before which the run is replayed from its beginning
    and compared, `replay_rates` that of a type with a rate of its own. A turn waits for events up to
    `turn_wait_s`, if no more than `awake_max` do."""

    def __init__(
        self,
        workflows: Mapping[str, Callable[..., Any]],
        runs: Runs,
        *,
        cores: Cores | None = None,
        threads: CoreThreads | None = None,
        replay_rate: float = 0.0,
        event_limit_s: float = EVENT_LIMIT_S,
        commands_max: int = COMMANDS_MAX,
        part_bytes_max: int = PART_BYTES_MAX,
        turn_wait_s: float = 0.0,
        awake_max: int = AWAKE_MAX,
    ) -> None:
        self.workflows = workflows
        self.versions: dict[str, str] = {}
        self.replay_rates: dict[str, float] = {}
        self.runs = runs
        self.cores = cores or Cores()
        self.threads = threads or CoreThreads()
        self.replay_rate = replay_rate
        self.event_limit_s = event_limit_s
        self.commands_max = commands_max
        self.part_bytes_max = part_bytes_max
        self.turn_wait_s = turn_wait_s
        self.awake_max = awake_max
        self._leaving = False
        self._waiting: set[asyncio.Future[TurnAnswer]] = set()

    def leave(self) -> None:
        """The worker takes nothing more: runs that wait are parked now, and none waits from now on."""
        self._leaving = True
        for asking in self._waiting:
            asking.cancel()

    async def write(self, lease: Lease, turn: Turn, resting: Resting) -> TurnAnswer:
        """Send a turn. While it waits its run takes no slot: it is `resting`."""
        if self._leaving or not self.turn_wait_s or len(self._waiting) >= self.awake_max:
            return await self.runs.turn(lease, turn)
        asking = asyncio.ensure_future(self.runs.turn(lease, replace(turn, wait_s=self.turn_wait_s)))
        self._waiting.add(asking)
        try:
            with resting():
                return await asking
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if not self._leaving or here is None or here.cancelling():
                raise
        finally:
            self._waiting.discard(asking)
        # The same turn again, which does not wait.
        return await self.runs.turn(lease, turn)

    def by(self, type: str) -> dict[str, Any]:
        """What a run's turns are made by, for people who look at one that does not replay."""
        found: dict[str, Any] = {"python": platform.python_version(), "core": CORE_VERSION}
        return found | ({"version": self.versions[type]} if type in self.versions else {})

    async def work(self, type: str, lease: Lease, resting: Resting = nullcontext) -> None:
        """Everything that there is to do for this generation of a run's decider; then its item may be acked. While
        the run waits it is within `resting()`.

        Raises:
            headgate.HeadgateError: the service could not be asked; the item is to be delivered again.
        """
        core = self.cores.take(lease.run)
        while True:
            was_kept = core is not None
            driving = _Driving(self, type, lease, core, resting)
            try:
                await driving.run()
                return
            except (TurnLost, RunFinished) as error:
                log.info("%s: %s", lease.run, error)
                driving.drop()
                return
            except (TurnFailed, Diverged) as error:
                driving.drop()
                if was_kept:  # what was kept may be what is wrong
                    core = None
                    continue
                await self._write_stuck(lease, error)
                return
            except BaseException:
                driving.drop()
                raise

    async def _write_stuck(self, lease: Lease, error: TurnFailed | Diverged) -> None:
        log.error("%s is stuck: %s", lease.run, error)
        if isinstance(error, Diverged):
            error = Nondeterministic(f"the service has refused what the code asks for: {error}")
        try:
            page = await self.runs.history(lease, 0)
            turn = Turn(lease.generation, lease.secret, page.turn + 1, 0, page.seen, stuck=stuck_of(error))
            await self.runs.turn(lease, turn)
        except (TurnLost, RunFinished) as lost:
            log.info("%s: %s", lease.run, lost)


class _Driving:
    """One generation of one run."""

    def __init__(
        self, driver: Driver, type: str, lease: Lease, core: Replay | None, resting: Resting = nullcontext
    ) -> None:
        self.driver = driver
        self.resting = resting
        self.runs = driver.runs
        self.type = type
        self.lease = lease
        self.core = core
        self.turn = 0
        self.steps: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def run(self) -> None:
        core = await self._read()
        while True:
            asked = core.unrecorded()
            self._begin_steps(core)
            if self.steps and await self._steps_first(core, asked):
                continue
            answer = await self._send(core, asked)
            if answer.parked:
                self._stop_steps()
                self.driver.cores.keep(self.lease.run, core)
                return
            if answer.ended:
                self.drop()
                return
            await self._feed(core, answer.events)
            if answer.more:
                await self._read()

    def drop(self) -> None:
        self._stop_steps()
        if self.core is not None:
            self.core.close()

    # Events

    async def _read(self) -> Replay:
        """All events that there are behind those that the core knows."""
        core, more = self.core, True
        while more:
            page = await self._ask(core.last if core else 0)
            if core is None:
                core = self.core = self._new_core(page)
            await self._take(core, page)
            more = page.more
        assert core is not None
        core.check()
        return core

    async def _ask(self, after: int, wait_s: float = 0.0) -> Page:
        return await self.runs.history(self.lease, after, wait_s)

    async def _take(self, core: Replay, page: Page) -> None:
        core.learn(page.seen, page.markers)
        self.turn = page.turn
        await self._feed(core, page.events)

    def _new_core(self, page: Page) -> Replay:
        function = self.driver.workflows.get(self.type)
        if function is None:
            raise UnknownWorkflow(
                f"this worker has no workflow {self.type!r}; register it with @worker.workflow({self.type!r})"
            )
        return Replay(function, seen=page.seen, markers=page.markers)

    async def _feed(self, core: Replay, events: Sequence[Event]) -> None:
        """Each event's code has its time."""

        def feed(begin: Callable[[], None]) -> None:
            core.loop.keeps_traces = False
            for event in events:
                begin()
                core.feed(event)

        if events:
            limit_s = self.driver.event_limit_s
            await self.driver.threads.run(feed, limit_s=limit_s, stop=core.loop.stop_running)

    # Steps

    def _is_running(self, key: str) -> bool:
        """Whether the step that asks is still wanted: who gives one up takes it from these in the same turn of the
        event loop as it cancels it. Any other cancel is of other code."""
        return self.steps.get(key) is asyncio.current_task()

    def _begin_steps(self, core: Replay) -> None:
        waiting = core.steps()
        for command in waiting:
            if command.key not in self.steps:
                is_wanted = partial(self._is_running, command.key)
                self.steps[command.key] = asyncio.create_task(_step(command, is_wanted))
        wanted = {command.key for command in waiting}
        for key in [key for key in self.steps if key not in wanted]:
            _give_up(self.steps.pop(key))

    async def _steps_first(self, core: Replay, asked: Sequence[Command]) -> bool:
        """Wait for steps where nothing else is to be written; whether there were events meanwhile instead."""
        if any(step.done() for step in self.steps.values()) or any(command.kind != "step" for command in asked):
            return False
        if asked or core.told > core.seen:
            # What is short is written with its end, in one commit.
            await asyncio.wait(self.steps.values(), timeout=SHORT_STEP_S)
            return False
        # Only the question is given up when a step ends first: what was answered is told as a whole.
        asking = asyncio.create_task(self._ask(core.last, WAIT_S))
        try:
            await asyncio.wait([asking, *self.steps.values()], return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return False
            page = asking.result()
        finally:
            await _ended(asking)
        await self._take(core, page)
        await self._read()
        return True

    def _stop_steps(self) -> None:
        for step in self.steps.values():
            _give_up(step)
        self.steps.clear()

    # Turns

    async def _send(self, core: Replay, asked: Sequence[Command]) -> TurnAnswer:
        driver = self.driver
        rate = driver.replay_rates.get(self.type, driver.replay_rate)
        if rate and random.random() < rate:  # noqa: S311 (a sample)
            await self._doubt(core, asked)
        sizes = [_COMMAND_BYTES + len(command.key.encode()) + len(command.text.encode()) for command in asked]
        count = _fitting(sizes, driver.commands_max, driver.part_bytes_max)
        sent, left = asked[:count], asked[count:]
        seen = left[0].after - 1 if left else core.told
        known = {command.key for command in left}
        ended = [key for key, step in self.steps.items() if step.done() and key not in known]
        # Those that there is no room for go with the next turn: until then the run waits for them.
        results = [self.steps[key].result() for key in ended]
        sizes = [len(canonical(result, "a result").encode()) for result in results]
        ended = ended[: _fitting(sizes, RESULTS_MAX, driver.part_bytes_max)]
        turn = Turn(
            self.lease.generation,
            self.lease.secret,
            self.turn + 1,
            core.last,
            seen,
            [command.body() for command in sent],
            results[: len(ended)],
            dict(core.received),
            driver.by(self.type),
        )
        answer = await self._written(turn)
        for key in ended:
            del self.steps[key]
        self.turn = turn.turn
        core.learn(seen, {})
        return answer

    async def _written(self, turn: Turn) -> TurnAnswer:
        """A step whose result is not taken has failed: else the run would be stuck, and call it each time anew."""
        while True:
            try:
                return await self.driver.write(self.lease, turn, self.resting)
            except TurnRefused as refusal:
                results = [
                    _failed(result, refusal.results[nth])
                    if nth in refusal.results and "output" in result
                    else result
                    for nth, result in enumerate(turn.results)
                ]
                if results == list(turn.results):
                    raise
                turn = replace(turn, results=results)

    async def _doubt(self, core: Replay, asked: Sequence[Command]) -> None:
        """Raises Nondeterministic if the run, replayed from its beginning, asks for something else."""
        again = Replay(core.function, seen=core.seen)
        try:
            more = True
            while more and again.last < core.last:
                page = await self.runs.history(self.lease, again.last, 0.0)
                again.learn(core.seen, page.markers)
                events, more = [event for event in page.events if event.event <= core.last], page.more
                await self._feed(again, events)
            first = [command.identity for command in asked]
            second = [command.identity for command in again.unrecorded()]
        finally:
            again.close()
        if first != second:
            differ = [str(pair) for pair in (set(first) ^ set(second))][:4]
            raise Nondeterministic(f"the run asks for something else when it is replayed: {', '.join(differ)}")


def _fitting(sizes: Sequence[int], count_max: int, bytes_max: int) -> int:
    """How many go in one turn, from the first on: one at least, if there is any."""
    totals = accumulate(sizes[:count_max])
    return max(sum(total <= bytes_max for total in totals), min(len(sizes), 1))


async def _ended(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _give_up(step: "asyncio.Task[Any]") -> None:
    """Cancel a step. What its code makes of that is nobody's, and asyncio is not to log it."""
    step.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
    step.cancel()


async def _step(command: Command, is_wanted: Callable[[], bool]) -> dict[str, Any]:
    """The result of a step, after up to its `max_attempts`."""
    assert command.call is not None
    spec = command.spec
    backoff = {"base_s": 1.0, "factor": 2.0, "max_s": 300.0, **(spec.get("backoff") or {})}
    attempts_max, pause_s, text = spec.get("max_attempts", 1), 0.0, ""
    for attempt in range(1, attempts_max + 1):
        try:
            if attempt > 1:
                await asyncio.sleep(pause_s)
            async with asyncio.timeout(spec.get("timeout_s")):
                found = await _called(command.call)
            return {"key": command.key, "state": "succeeded", "output": _output(found, spec["name"])}
        except BaseException as error:
            # `sys.exit` too, a panic of an extension, a cancel of this task by others: it is the end of the step,
            # not of the run or its worker.
            if not is_wanted():
                raise
            log.warning("step %s failed at attempt %d of %d: %r", command.key, attempt, attempts_max, error)
            text = text_of(error)
        pause_s = min(backoff["base_s"] * backoff["factor"] ** (attempt - 1), backoff["max_s"])
    return {"key": command.key, "state": "failed", "error": text}


def _output(found: Any, name: str) -> Any:
    """What a step returned, as JSON has it.

    Raises:
        TypeError: it has no JSON form.
        ValueError: no turn has room for it.
    """
    what = f"what the step {name} returned"
    text = canonical(found, what)
    if len(text.encode()) > PART_BYTES_MAX:
        raise ValueError(f"{what} has over {PART_BYTES_MAX} bytes as JSON")
    output = json.loads(text)
    if text.count("[") + text.count("{") > LEVELS_MAX and (levels := _nests(output)) > LEVELS_MAX:
        raise ValueError(f"{what} nests {levels} levels deep; at most {LEVELS_MAX} are taken")
    return output


def _nests(value: Any) -> int:
    """How many levels of arrays and objects a value has."""
    levels, parts = 0, [value]
    while nesting := [part for part in parts if isinstance(part, dict | list)]:
        levels += 1
        parts = [part for each in nesting for part in (each.values() if isinstance(each, dict) else each)]
    return levels


def _failed(result: Mapping[str, Any], why: str) -> dict[str, Any]:
    return {"key": result["key"], "state": "failed", "error": f"what the step returned is not taken: {why}"}


async def _called(call: Callable[[], Any]) -> Any:
    """A coroutine function in this loop, any other in a thread."""
    if inspect.iscoroutinefunction(call):
        return await _in_task(call)
    found = await in_thread(_STEP_THREAD, call)
    return await _in_task(lambda: found) if inspect.isawaitable(found) else found


async def _in_task(call: Callable[[], Awaitable[Any]]) -> Any:
    """In a task of its own: that is the one which code cancels that cancels itself."""
    found, failure = await asyncio.create_task(_awaited(call))
    if failure is not None:
        raise failure
    return found


async def _awaited(call: Callable[[], Awaitable[Any]]) -> tuple[Any, BaseException | None]:
    """What it comes to, or what it raises: `sys.exit` in a task would end the loop."""
    try:
        return await call(), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error
