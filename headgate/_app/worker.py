"""The worker of an app: its functions, each on its topic, and its raw tasks beside them."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from headgate._app.function import Limits
from headgate._app.running import Runner
from headgate._app.unserved import Unserved
from headgate._backoff import pause_s
from headgate._client.aio.client import AsyncClient
from headgate._worker.program_log import log
from headgate._worker.worker import Worker
from headgate.errors import HeadgateError
from headgate.wire import BATCH_MAX

if TYPE_CHECKING:
    from headgate._app.app import App
    from headgate._app.function import JobFunction

    AnyFunction = JobFunction[..., Any, ..., Any]


LEASE_S: Final = 30.0


class AppWorker(Worker):
    """Runs an app's functions. Tasks of topics may be added beside them, with `@worker.task(topic)`."""

    def __init__(
        self,
        app: "App",
        *,
        client: AsyncClient | None = None,
        only: Iterable[str] | None = None,
        lease_s: float = LEASE_S,
        **options: Any,
    ) -> None:
        super().__init__(client or app.client, namespace=app.namespace, lease_s=lease_s, **options)
        self.app = app
        self._all = only is None
        chosen = _chosen(app, only)
        topics: dict[str, list[JobFunction[..., Any, ..., Any]]] = defaultdict(list)
        for function in app.versions.values():
            if function.name in chosen:
                topics[function.topic].append(function)
        self.limits = _limits(app, topics)
        for topic, functions in topics.items():
            runner = Runner(app, {(one.name, one.version): one for one in functions})
            slots = max(one.settings.slots * (one.settings.batch or 1) for one in functions)
            leases = [one.settings.lease_s for one in functions if one.settings.lease_s is not None]
            self.task(topic, slots=min(slots, BATCH_MAX), lease_s=min(leases, default=None))(runner.run)
        for topic, handler, settings in app.tasks if only is None else ():
            self.task(topic, **settings)(handler)
        for type, workflow, how in app.deciders if only is None else ():
            self.workflow(type, **how)(workflow)

    async def run(self, *, signals: bool = True) -> None:
        """Work until `stop` or a signal, with what the app's lifespan makes."""
        for function in self.app.versions.values():
            function.signature.check()
        for schedule in self.app.schedules.values():
            schedule.check()
        self.app.use(self.client)
        await self._bring_limits()
        async with self.app.alive():
            beside = [asyncio.create_task(self._bring_schedules())]
            if self._all:
                unserved = Unserved(
                    self.client, self.namespace, self._tasks.keys, after_s=self.app.unknown_after_s
                )
                beside.append(asyncio.create_task(unserved.run()))
            try:
                await super().run(signals=signals)
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)

    async def _bring_limits(self) -> None:
        """See to it that the limits of the functions stand, before anything of them is taken.

        Raises:
            HeadgateError: they do not, and the worker may not set them.
        """
        for topic, limits in self.limits.items():
            failures = 0
            while not self._stop.is_set():
                try:
                    found = await self.client.limits.get(topic, namespace=self.namespace)
                    if found is None or Limits(*(getattr(found, name) for name in Limits._fields)) != limits:
                        given = limits._asdict()
                        given["burst"] = None if limits.rate is None else limits.burst
                        given["key_burst"] = None if limits.key_rate is None else limits.key_burst
                        await self.client.limits.put(topic, namespace=self.namespace, **given)
                    break
                except HeadgateError as error:
                    if not error.retryable:
                        log.error(
                            "the worker does not start: it cannot set the limits of %s: %s; a token with scope "
                            "`admin` can, also beforehand: `headgate limits %s`",
                            *(topic, error, topic),
                        )
                        raise
                    failures += 1
                    log.warning("could not set the limits of %s, trying again: %s", topic, error)
                    await asyncio.sleep(pause_s(failures))

    async def _bring_schedules(self) -> None:
        """Bring the app's schedules to the service, however long it is away."""
        for schedule in self.app.schedules.values():
            function = schedule.function
            if function is None or function.topic not in self._tasks:
                continue
            failures = 0
            while True:
                try:
                    await self.client.schedules.put(schedule.name, namespace=self.namespace, **schedule.options())
                    break
                except HeadgateError as error:
                    if not error.retryable:
                        log.error("schedule %s is not taken: %s", schedule.name, error)
                        break
                    failures += 1
                    log.warning("could not bring schedule %s, trying again: %s", schedule.name, error)
                    await asyncio.sleep(pause_s(failures))


def _limits(app: "App", topics: Mapping[str, Iterable["AnyFunction"]]) -> dict[str, Limits]:
    """The limits of topics: of each function its newest version says them.

    Raises:
        ValueError: functions of one topic say different ones.
    """
    found: dict[str, Limits] = {}
    for topic, functions in topics.items():
        for limits in {app.functions[one.name].settings.limits() for one in functions} - {None}:
            if limits is not None and found.setdefault(topic, limits) != limits:
                raise ValueError(f"functions of topic {topic!r} have different limits; give all of them the same")
    return found


def _chosen(app: "App", only: Iterable[str] | None) -> set[str]:
    if only is None:
        return set(app.functions)
    chosen = set(only)
    app.check_names(chosen)
    return chosen
