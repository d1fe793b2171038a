"""A worker: takes items of some topics, runs a handler on each, and tells the service how it ended.

    worker = Worker()

    @worker.task("mail", slots=8)
    async def send(job: Job) -> None:
        ...

    worker.main()

Items are taken for free slots, and before a backlog for those that will be free in a moment (`prefetch`);
how a job ended goes with the next dequeue, where one is about to be made. Leases are extended while handlers
run and while items wait for them; what a handler returns is the item's output; what it raises is a nack, after
which the item's backoff and attempts decide (`Retry` and `Fail` say more). An item that says nothing of attempts
is given up with its 20th, or as many as the task says. A worker outlives restarts of the services. SIGTERM and
SIGINT drain it: it takes nothing more, hands back what it has not begun, lets handlers finish for `drain_s`, and
hands back what is left, at no cost of an attempt. A second signal does not wait. It logs as `headgate._worker`.
"""

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar, Unpack, overload

from headgate._backoff import pause_s
from headgate._calls.elements import Leased
from headgate._client.aio.client import AsyncClient
from headgate._client.blocking.client import Client
from headgate._error_text import is_of
from headgate._worker import supervisor
from headgate._worker.attempts import ATTEMPTS_MAX, Attempts
from headgate._worker.bridge import beside, client_like
from headgate._worker.deciders import Deciders, W, WorkflowOptions, decorator
from headgate._worker.dequeues import Dequeues
from headgate._worker.ends import (
    CUT_OFF_S_MAX,
    Keeper,
    again,
    cancels_from_here,
    end,
    exit_beside,
    first,
    in_process,
    none_left,
    outlive,
    takes_cancel,
    was_cancelled,
)
from headgate._worker.job import Handler, Job, run_handler
from headgate._worker.job_logs import JobLogs
from headgate._worker.leases import Leases
from headgate._worker.metrics import WorkerMetrics
from headgate._worker.presence import Presence
from headgate._worker.program_log import log
from headgate._worker.settler import Settler
from headgate._worker.signals import on_signals
from headgate._worker.task import Task, check_options, check_task, in_loop
from headgate._worker.verdicts import (
    Ending,
    ended_by_exit,
    handed_back,
    verdict_of,
    verdict_of_failure,
    verdict_of_task,
)
from headgate.errors import (
    BadRequest,
    Conflict,
    Fail,
    Forbidden,
    HeadgateError,
    Invalid,
    NotFound,
    Retry,
    TooLarge,
    Unauthorized,
)
from headgate.wire import BATCH_MAX

__all__ = ["Fail", "Job", "Retry", "Worker"]


F = TypeVar("F", bound=Handler)
SETTLE_S_MAX: Final = 10.0
# What a dequeue is refused for that waiting does not mend; 404: the token does not lead to the namespace.
_ENDS: Final = (BadRequest, Unauthorized, Forbidden, NotFound, Conflict, TooLarge, Invalid)


class Worker:
    """Runs handlers on leased items.

    `name` tells workers apart; `version` is that of the code, shown with it (or `HEADGATE_CODE_VERSION`).
    `lease_s` is how long a killed worker's items are held back, and twice the time between extensions. `wait_s`
    is how long one dequeue waits for items. With `keep_logs` the service keeps what handlers log, with each job.
    With `processes` `main` runs this program so many times, each with the slots of its tasks: for plain functions
    that need the processor. A process that ends is started again; all end with this one. With `metrics_port`
    Prometheus may scrape it there (`headgate[prometheus]`).
    """

    def __init__(
        self,
        client: AsyncClient | Client | None = None,
        *,
        namespace: str | None = None,
        name: str | None = None,
        version: str | None = None,
        lease_s: float = 60.0,
        drain_s: float = 30.0,
        wait_s: float = 20.0,
        prefetch: int | None = None,
        keep_logs: bool = True,
        processes: int = 1,
        metrics_port: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_options(wait_s, prefetch, processes, metrics_port)
        self.processes = processes
        self._own = not isinstance(client, AsyncClient)
        self.client = client if isinstance(client, AsyncClient) else beside(client)
        self.namespace = namespace or self.client.namespace
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        if name and supervisor.parent() is not None:
            self.name = f"{name}-{os.getpid()}"
        self.lease_s, self.drain_s, self.wait_s, self.prefetch = lease_s, drain_s, wait_s, prefetch
        self.finished = 0
        self._clock = clock
        self._tasks: dict[str, Task] = {}
        self._metrics = None if metrics_port is None else WorkerMetrics(metrics_port, self._tasks)
        self._jobs: dict[asyncio.Task[Ending], Job] = {}
        self._left: list[asyncio.Task[Ending]] = []  # they take no cancel
        self._is_cancelled: Callable[[], bool] = lambda: False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._blocking_client: Client | None = client if isinstance(client, Client) else None
        self._lock = threading.Lock()
        self.deciders = Deciders(self.client, self.namespace, self._tasks, self._begin)
        self._leases = Leases(self.client, self.namespace, clock, partial(in_loop, self._tasks))
        self._presence = Presence(
            self.client, self.namespace, self.name, version, self._tasks, self._leases, clock
        )
        self._attempts = Attempts(self.client, self.namespace)
        self._logs = JobLogs(self.client, self.namespace) if keep_logs else None
        self._settler = Settler(self.client, self.namespace, self._leases, rides=self._asks_soon)
        self._dequeues = Dequeues(self.client, self.namespace, self.name, self._settler)

    def task(
        self,
        topic: str,
        *,
        slots: int = 1,
        lease_s: float | None = None,
        max_attempts: int = ATTEMPTS_MAX,
        prefetch: int | None = None,
    ) -> Callable[[F], F]:
        """Handle items of `topic` with this function, up to `slots` at a time.

        A coroutine function runs in the event loop, any other in a thread. It gets the `Job`.
        `max_attempts` is for items that have none of their own: after so many failures one is dead. 0 is no end.
        `prefetch` is how many items may wait here for a slot while others work; by default the worker's, else as
        many as handlers will begin within a moment.
        """
        check_task(topic, slots, max_attempts, prefetch)
        ahead = self.prefetch if prefetch is None else prefetch
        if ahead is not None:
            ahead = min(ahead, BATCH_MAX - slots)

        def register(handler: F) -> F:
            if topic in self._tasks:
                raise ValueError(f"topic {topic!r} has a handler already")
            self._tasks[topic] = Task(topic, handler, slots, lease_s or self.lease_s, max_attempts, ahead)
            return handler

        return register

    @overload
    def workflow(self, type: W, /) -> W: ...
    @overload
    def workflow(self, type: str | None = None, **options: Unpack[WorkflowOptions]) -> Callable[[W], W]: ...
    def workflow(
        self,
        type: Any = None,
        *,
        version: str | None = None,
        only_pinned: bool = False,
        slots: int = 8,
        lease_s: float | None = None,
        replay_rate: float = 0.0,
    ) -> Any:
        """Run workflows of `type`, by default the function's name, with this async function, up to `slots` at a
        time; it gets a `Workflow`, and its input. Runs that wait take no slot; up to a hundred stay for a moment.

        `version` names the code: it takes runs that are pinned to it, up to as many at a time, and those that are
        pinned to none; with `only_pinned` not those, so that old code ends what it began.

        `replay_rate` is the part of turns, 0 to 1, before which the run is replayed from its beginning: code that
        asks for something else leaves its run stuck. It costs reading all of the history; production can pay 0.01.

        Raises:
            ValueError: the type, or this version of it, has a function already.
        """

        def register(name: str, function: W) -> W:
            handlers = self.deciders.add(name, function, version, only_pinned=only_pinned, replay_rate=replay_rate)
            for topic, decide in handlers.items():
                self.task(topic, slots=slots, lease_s=lease_s, max_attempts=0)(decide)
            return function

        return decorator(type, register)

    def main(self) -> None:
        """Run until a signal, in an event loop of its own; with `processes`, start this program in so many.

        What a program does before it calls this each process does, too.
        """
        if (parent := supervisor.parent()) is not None:
            supervisor.end_with(parent)
        elif self.processes > 1:
            sys.exit(supervisor.this_program(self.processes))
        asyncio.run(in_process(self.run, self._left))

    def stop(self) -> None:
        """Drain, then let `run` return. The second call hurries. From any thread."""
        loop = self._loop
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if loop is None or loop is here:
            self._stop_here()
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended: so has the worker
                loop.call_soon_threadsafe(self._stop_here)

    def _stop_here(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self, *, signals: bool = True) -> None:
        """Work until `stop` or a signal, or until this is cancelled, which hurries it. A coroutine that takes no
        cancel is left to itself in the end: asyncio would wait for it, `main` does not.

        Raises:
            HeadgateError: the services refuse this worker (token, namespace or topic); it has drained.
            RuntimeError: something else in its event loop has cancelled a part of it; it has drained.
            Exception: the part that keeps leases, or the one that tells how jobs ended, has ended by a defect;
                what was running has been cut off, and comes again when its lease has run out.
        """
        if not self._tasks:
            raise ValueError("this worker has no task; add one with @worker.task(topic)")
        log.info("%s takes items of %s in %s", self.name, ", ".join(self._tasks), self.namespace)
        self._loop = asyncio.get_running_loop()
        self._is_cancelled = cancels_from_here()
        present = asyncio.create_task(self._presence.run())
        keeping = [one for one in (self._leases, self._logs, self._settler) if one is not None]
        keepers = [asyncio.create_task(keeper.run()) for keeper in keeping]
        pollers = [asyncio.create_task(self._poll(task)) for task in self._tasks.values()]
        stopped: asyncio.Task[Any] = asyncio.create_task(self._stop.wait())
        try:
            heard: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if signals:
                heard = on_signals(self._stop_here, is_looked_after=supervisor.parent() is not None)
            with heard, self._metrics or contextlib.nullcontext():
                try:
                    parts = [*pollers, present, *keepers]
                    await asyncio.wait([stopped, *parts], return_when=asyncio.FIRST_COMPLETED)
                    cut = [part for part in parts if part.cancelled()]
                    self._stop.set()
                    keepers[:] = await again(keeping, keepers)
                    await self._drain(pollers, [present, *keepers])
                except asyncio.CancelledError:
                    self._stop.set()
                    self._hurry.set()
                    await outlive(partial(self._hand_back, pollers, keeping, keepers))
                    raise
        finally:
            ended = [task for task in (present, *keepers) if task.done()]
            await end([*pollers, present, *keepers, stopped])
            await self._cut_off()
            if self._own:
                await self.client.aclose()
            self._loop = None
        for task in (*ended, *pollers):
            if not task.cancelled() and (error := task.exception()):
                raise error
        if cut:
            raise RuntimeError("something in this worker's event loop has cancelled a part of it; it has drained")

    async def _poll(self, task: Task) -> None:
        failures = 0
        while not self._stop.is_set():
            count = task.room()
            if not count:
                task.freed.clear()
                await task.freed.wait()
                continue
            settling = self._settler.take()
            task.asked_s, task.is_settling = self._clock(), bool(settling)
            try:
                items = await self._dequeues.ask(task, count, settling, self.wait_s)
            except _ENDS:
                raise
            except HeadgateError as error:
                failures += 1
                log.warning("cannot dequeue %s, trying again: %s", task.topic, error)
                await asyncio.sleep(pause_s(failures))
                continue
            finally:
                task.asked_s, task.is_settling = None, False
            failures = 0
            task.has_backlog = len(items) >= count
            for leased in items:
                self._hold(task, leased)
            self._begin(task)

    def _hold(self, task: Task, leased: Leased) -> None:
        """Keep an item's lease until a slot is free for it."""
        job = Job(
            leased,
            client=self.client,
            blocking=self._blocking,
            lease_s=task.lease_s,
            lease_ends_at=self._clock() + task.lease_s,
            namespace=self.namespace,
        )
        job.logs, job.is_cut_off = self._logs, self._is_cut_off
        self._leases.hold(job)
        task.waiting.append(job)

    def _begin(self, task: Task) -> None:
        """Start handlers on what waits, as slots are free; once the worker stops, hand it back."""
        while task.waiting and (task.running < task.slots or self._stop.is_set()):
            job = task.waiting.popleft()
            if job.lost is not None:
                continue
            if self._stop.is_set():
                self._settler.add(job, *handed_back(job))
            else:
                self._start(task, job)

    def _start(self, task: Task, job: Job) -> None:
        task.running += 1
        begun_s = self._clock()
        job.task = working = asyncio.create_task(self._work(task, job))
        self._jobs[working] = job
        # Whatever becomes of the task, even if it is cancelled before it begins, the job gets a verdict.
        working.add_done_callback(lambda _: self._ended(task, job, working, begun_s))

    async def _work(self, task: Task, job: Job) -> Ending:
        if (given_up := await self._attempts.given_up(task, job)) is not None:
            return given_up
        # In this very coroutine: a GeneratorExit passes those that it awaits, whatever they catch.
        try:
            verdict = verdict_of(job, await run_handler(task.handler, job))
        except BaseException as error:
            # `sys.exit` too, and a panic of an extension: it is the end of the job, not of the worker.
            if self._is_left_undone(job, error):
                return handed_back(job, error)
            if is_of(error, KeyboardInterrupt):
                self._stop_here()
            verdict = verdict_of_failure(job, error)
        if await takes_cancel() and verdict[0] == "ack" and not self._is_cut_off():
            log.warning("the handler of %r was cancelled as it returned", job)
            verdict = "nack", job.nack(error="the handler's task was cancelled, by itself, as it returned")
        return await self._attempts.last(verdict, task, job)

    def _ended(self, task: Task, job: Job, working: asyncio.Task[Ending], begun_s: float) -> None:
        self._jobs.pop(working, None)
        task.running -= 1
        self.finished += 1
        took_s = self._clock() - begun_s
        task.handled(took_s)
        outcome = "lost"
        if job.lost is None:
            outcome = self._tell_end(job, working)
        elif self._logs is not None:
            self._logs.drop(job)
        if self._metrics is not None:
            self._metrics.ended(job, outcome, took_s)
        self._begin(task)
        if task.room():
            task.freed.set()

    def _tell_end(self, job: Job, working: asyncio.Task[Ending]) -> str:
        """Say how a job ended: as what. One of which nothing can be said loses its lease."""
        try:
            ending = self._unbegun(job) if working.cancelled() else verdict_of_task(job, working)
            if ending[0] == "nack" and ending[1].get("costs_attempt") is False:
                ending = ended_by_exit(job, exit_beside()) or ending
            self._tell(job, ending)
        except BaseException:
            log.exception("a job of %r has no verdict, so its lease runs out", self.name)
            self._leases.drop(job)
            return "lost"
        return ending[0]

    def _tell(self, job: Job, ending: Ending) -> None:
        """Say how a job ended; what gives up the lease, behind the job's log, which is its holder's to write."""
        if self._logs is not None and ending[0] == "nack":
            self._logs.end(job, lambda: self._settler.add(job, *ending))
            return
        self._settler.add(job, *ending)
        if self._logs is not None:
            self._logs.end(job)

    def _asks_soon(self) -> bool:
        """Whether what is to be settled may go with a dequeue."""
        now_s = self._clock()
        return not self._stop.is_set() and any(task.asks_soon(now_s) for task in self._tasks.values())

    def _unbegun(self, job: Job) -> Ending:
        """What is told of a job that was cancelled before its handler was called."""
        if self._is_cut_off():
            return handed_back(job)
        return "nack", job.nack(error="its task was cancelled before its handler was called")

    def _is_left_undone(self, job: Job, error: BaseException) -> bool:
        """Whether a handler has raised because it was cancelled, its job being another's, or to be. A library may
        make another error of a cancel; who says `Fail` or `Retry` then means it."""
        if is_of(error, asyncio.CancelledError):
            return job.lost is not None or self._is_cut_off()
        return self._is_cut_off() and was_cancelled() and not is_of(error, Retry, Fail)

    def _is_cut_off(self) -> bool:
        """Whether jobs are cancelled because the worker goes. It may hear later than they do that it is to."""
        return self._hurry.is_set() or self._is_cancelled()

    async def _end_asking(self, pollers: Sequence[asyncio.Task[None]]) -> None:
        """Take nothing more."""
        await self._dequeues.end(dict(zip(pollers, self._tasks.values(), strict=True)), self._hurry)
        for task in self._tasks.values():
            self._begin(task)

    async def _drain(self, pollers: Sequence[asyncio.Task[None]], keepers: Sequence[asyncio.Task[None]]) -> None:
        """Let jobs end and be settled. Without its keepers a worker neither holds nor settles anything."""
        self.deciders.leave()
        for task in self._tasks.values():
            self._begin(task)
        self._settler.hurry()
        await self._end_asking(pollers)
        if any(keeper.done() for keeper in keepers):
            log.critical("a keeper of this worker has ended; so does the worker")
            self._hurry.set()
        if self._jobs:
            log.info("draining: %d jobs are running", len(self._jobs))
            hurry: asyncio.Task[Any] = asyncio.create_task(self._hurry.wait())
            finished: asyncio.Task[Any] = asyncio.create_task(none_left(self._jobs))
            await first([hurry, finished, *keepers], self.drain_s)
            await end([hurry, finished])
        self._hurry.set()
        await self._cut_off()
        if self._logs is not None:
            logged: asyncio.Task[Any] = asyncio.create_task(self._logs.sent())
            await first([logged, *keepers], SETTLE_S_MAX)
            await end([logged])
        settled: asyncio.Task[Any] = asyncio.create_task(self._settler.settled())
        await first([settled, keepers[-1]], SETTLE_S_MAX)  # the settler
        if not settled.done():
            log.error("how %d jobs ended could not be told: they come again", len(self._leases.held()))
        await end([settled])

    async def _hand_back(
        self, pollers: Sequence[asyncio.Task[None]], keeping: Sequence[Keeper], keepers: list[asyncio.Task[None]]
    ) -> None:
        """Drain in a hurry. Where `sys.exit` in any task has ended the loop, asyncio cancels all, also those
        that keep leases and settle: they are there again until what is held has been handed back."""
        keepers[:] = await again(keeping, keepers)
        await self._drain(pollers, keepers)

    async def _cut_off(self) -> None:
        """Cancel what runs. What takes no cancel is left: it may be at work, so it is not handed back, but comes
        again when its lease has run out."""
        for working in await end(self._jobs, CUT_OFF_S_MAX):
            job = self._jobs.pop(working)
            self._left.append(working)
            self._leases.drop(job)
            log.error(
                "the handler of %r has not ended %g s after it was cancelled, so it is left: its lease is not "
                "extended, and it comes again. A coroutine must let CancelledError pass",
                *(job, CUT_OFF_S_MAX),
            )

    def _blocking(self) -> Client:
        with self._lock:
            if self._blocking_client is None:
                self._blocking_client = client_like(self.client, self._loop)
            return self._blocking_client
