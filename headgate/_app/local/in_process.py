"""`app.testing()`: the app's functions, flows and schedules in this process, without servers and without
waiting."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from headgate._app.local.services import LocalServices
from headgate._app.schedules import Every, ticks
from headgate._app.worker import AppWorker
from headgate._client.blocking.client import Client
from headgate._worker.job import Job

if TYPE_CHECKING:
    from headgate._app.app import App

# When time begins in a test, unless it says otherwise.
START: Final = datetime(2030, 1, 1, tzinfo=UTC)


class InProcess:
    """What a test has of `app.testing()`: the clock, and what has run."""

    def __init__(self, services: LocalServices, schedules: dict[str, Every]) -> None:
        self._services = services
        self._schedules = schedules

    @property
    def now(self) -> datetime:
        """The time that functions, delays and schedules go by."""
        return self._services.now

    @property
    def ran(self) -> list[Job]:
        """Each attempt that has begun, in that order."""
        return list(self._services.ran)

    def advance(self, seconds: float | timedelta = 0.0, **more: float) -> None:
        """Let time go on, and run all that becomes due: `tests.advance(30)` seconds, `tests.advance(hours=1)`."""
        first = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        span_s = (first + timedelta(**more)).total_seconds()
        if span_s < 0:
            raise ValueError("time does not go back")
        loop = self._services.loop
        end_s = loop.time() + span_s
        start = self.now - timedelta(seconds=loop.time())
        for moment, schedule in ticks(self._schedules.values(), self.now, start + timedelta(seconds=end_s)):
            self._services.do(self._services.until((moment - start).total_seconds()))
            self._run(schedule, moment)
        self._services.do(self._services.until(end_s))
        self._services.do(self._services.loop.quiet())

    def run(self) -> None:
        """Run all that has been sent to its end, however long it is to wait. Schedules are left alone."""
        self._services.do(self._services.settled())

    def trigger(self, schedule: str) -> None:
        """Run a schedule's function as if its time had come."""
        if schedule not in self._schedules:
            known = ", ".join(self._schedules) or "none"
            raise ValueError(f"the app has no schedule {schedule!r}; it has {known}")
        self._run(self._schedules[schedule], self.now)

    def _run(self, schedule: Every, moment: datetime) -> None:
        function = schedule.function
        assert function is not None
        given: Any = {"at": moment} if "at" in function.signature.parameters else {}
        function.options(key=f"{schedule.name}/{moment.isoformat()}").enqueue(**given)


class Testing(contextlib.AbstractContextManager[InProcess], contextlib.AbstractAsyncContextManager[InProcess]):
    """What `app.testing()` returns: for `with`, and for `async with` in a coroutine, which is the same."""

    def __init__(self, app: "App", start: datetime | None) -> None:
        self._running = in_process(app, start)

    def __enter__(self) -> InProcess:
        return self._running.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.__exit__(kind, error, trace)

    async def __aenter__(self) -> InProcess:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


@contextlib.contextmanager
def in_process(app: "App", start: datetime | None = None) -> Iterator[InProcess]:
    """Run an app in memory for a while."""
    client, store, now, monotonic_s = app._client, app.store, app.now, app.monotonic_s
    services = LocalServices(app, {}, start or START)
    try:
        app._client = Client(transport=services, namespace=app.namespace)
        app.now, app.monotonic_s = lambda: services.now, services.loop.time
        worker = AppWorker(app)
        for schedule in app.schedules.values():
            schedule.check()
        at_once = {topic: limits.concurrency for topic, limits in worker.limits.items()}
        handlers = {
            task.topic: (task.handler, min(task.slots, at_once.get(task.topic) or task.slots))
            for task in worker._tasks.values()
        }
        services.serve(handlers, worker.limits)
        with services.running():
            stack = contextlib.AsyncExitStack()
            services.do(stack.enter_async_context(app.alive()))
            try:
                yield InProcess(services, app.schedules)
            finally:
                services.do(stack.aclose())
    finally:
        app._client, app.store, app.now, app.monotonic_s = client, store, now, monotonic_s
        app._clients.clear()


__all__ = ["START", "InProcess", "Testing"]
