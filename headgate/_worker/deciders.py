"""Workflows on a worker: a run's deliveries are driven by its core, through the service's turns."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

from headgate._calls import run_verbs, verbs
from headgate._worker.job import Job
from headgate._worker.task import Task
from headgate.errors import BadRequest, Conflict, Fail, Forbidden, Invalid, NotFound, TooLarge
from headgate.wire.names import WORKFLOW_VERSION_PATTERN
from headgate.workflow.driving.driver import TURN_WAIT_S, Driver, Resting
from headgate.workflow.errors import TurnRefused
from headgate.workflow.lines import takes_input
from headgate.workflow.turns import Diverged, Lease, Page, RunFinished, Turn, TurnAnswer, TurnLost

if TYPE_CHECKING:
    from headgate._client.aio.client import AsyncClient

W = TypeVar("W", bound=Callable[..., Any])

TOPIC: Final = "wf/"
PINNED_TOPIC: Final = "wfv/"

_is_version = re.compile(WORKFLOW_VERSION_PATTERN).fullmatch


class WorkflowOptions(TypedDict, total=False):
    """What `Worker.workflow` takes beside the type."""

    version: str | None
    only_pinned: bool
    slots: int
    lease_s: float | None
    replay_rate: float


def decorator(type: Any, register: Callable[[str, W], W]) -> Any:
    """What registers a function as workflow of the type, or of its own name; or the function, registered, where it
    stands in the type's place: the decorator has no parentheses.

    Raises:
        TypeError: what it decorates is no `async def`, or cannot be called with a `Workflow` and one input.
    """

    def decorate(function: W) -> W:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"a workflow is an `async def`, which {function!r} is not")
        try:
            inspect.signature(function).bind(*(None, None) if takes_input(function) else (None,))
        except TypeError as unfit:
            raise TypeError(
                f"a workflow is given a Workflow and one input: {function.__name__}() has {unfit}"
            ) from None
        return register(type if isinstance(type, str) else function.__name__, function)

    return decorate if type is None or isinstance(type, str) else decorate(type)


_OUTPUT: Final = re.compile(r"/results/(\d+)/output")


class RestRuns:
    """The service's calls of a decider."""

    def __init__(self, client: "AsyncClient", namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def history(self, lease: Lease, after: int, wait_s: float = 0.0) -> Page:
        query = {"after": after, "wait_s": wait_s or None}
        call = verbs.call(
            run_verbs.RUN_HISTORY, run_verbs.page, ns=self._namespace, run=lease.run, query=query, wait_s=wait_s
        )
        try:
            return await self._client._send(call)
        except NotFound as error:
            raise RunFinished(f"the run is gone: {error}") from error

    async def turn(self, lease: Lease, turn: Turn) -> TurnAnswer:
        call = verbs.call(
            run_verbs.RUN_TURN,
            run_verbs.turn_answer,
            ns=self._namespace,
            run=lease.run,
            body=turn.body(),
            wait_s=turn.wait_s,
        )
        try:
            return await self._client._send(call)
        except NotFound as error:
            raise RunFinished(f"the run is gone: {error}") from error
        except (BadRequest, Forbidden, Invalid, TooLarge) as error:
            # Sent again it would be refused again; mended code asks for something else.
            places = ((_OUTPUT.fullmatch(fault.pointer or ""), fault.detail) for fault in error.errors)
            raise TurnRefused(str(error), {int(place[1]): why for place, why in places if place}) from error
        except Conflict as error:
            match error.code:
                case "turn_lost":
                    raise TurnLost(str(error)) from error
                case "workflow_finished":
                    raise RunFinished(str(error)) from error
                case "history_mismatch":
                    raise Diverged(str(error)) from error
            raise


class Deciders:
    """The workflows of one worker, and what they share."""

    def __init__(
        self, client: "AsyncClient", namespace: str, tasks: Mapping[str, Task], begin: Callable[[Task], None]
    ) -> None:
        """`tasks` are the worker's, by topic; `begin` starts what waits for their slots."""
        self.workflows: dict[str, Callable[..., Any]] = {}
        self._tasks = tasks
        self._begin = begin
        self._driver = Driver(self.workflows, RestRuns(client, namespace), turn_wait_s=TURN_WAIT_S)

    def leave(self) -> None:
        """The worker stops: no run waits any longer."""
        self._driver.leave()

    def add(
        self,
        type: str,
        function: Callable[..., Any],
        version: str | None = None,
        *,
        only_pinned: bool = False,
        replay_rate: float = 0.0,
    ) -> dict[str, Callable[[Job], Any]]:
        """Run workflows of this type with this function; handlers of their deciders' items, by topic.

        Raises:
            ValueError: the type, or this version of it, has a function already; or that is no version.
        """
        if version is not None and not _is_version(version):
            raise ValueError(f"{version!r} is no version: 1 to 64 letters, digits and . _ -")
        if only_pinned and version is None:
            raise ValueError("only runs of which version?")
        if not 0 <= replay_rate <= 1:
            raise ValueError("replay_rate must be 0 to 1")
        names = {} if only_pinned else {type: f"{TOPIC}{type}"}
        if version is not None:
            names[f"{type}@{version}"] = f"{PINNED_TOPIC}{version}/{type}"
        for name in names:
            if name in self.workflows:
                raise ValueError(f"workflow {name!r} has a function already")
        self._driver.replay_rates |= dict.fromkeys(names, replay_rate)
        return {
            topic: self._handler(name, function, version, partial(self._resting, topic))
            for name, topic in names.items()
        }

    @contextmanager
    def _resting(self, topic: str) -> Iterator[None]:
        """A run of this topic waits; meanwhile its slot is another's."""
        task = self._tasks[topic]
        task.running -= 1
        self._begin(task)
        if task.room():
            task.freed.set()
        try:
            yield
        finally:
            task.running += 1

    def _handler(
        self, name: str, function: Callable[..., Any], version: str | None, resting: Resting
    ) -> Callable[[Job], Any]:
        self.workflows[name] = function
        if version is not None:
            self._driver.versions[name] = version

        async def decide(job: Job) -> None:
            await self._driver.work(name, _lease(job), resting)

        return decide


def _lease(job: Job) -> Lease:
    secret = job.payload.get("secret") if isinstance(job.payload, dict) else None
    if job.dag is None or not isinstance(secret, str):
        raise Fail(f"this is no delivery of a workflow's decider; topics that begin with {TOPIC!r} are for those")
    return Lease(job.dag.id, job.dag.generation, secret)
