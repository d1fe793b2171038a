"""Jobs and runs of flows that have been sent: their state, their results, and what can be done to them.

Each verb is written once, as a generator of calls to the services (and of what blocks), and driven in a thread
or in a coroutine.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from headgate import wire
from headgate._app.failures import raised_by
from headgate._app.results import filled
from headgate._calls import verbs
from headgate._calls.flows import listed
from headgate._calls.verbs import Call, present
from headgate.errors import JobCancelled, JobSkipped, NoResult, NotDone, NotFound, ResultGone

if TYPE_CHECKING:
    from headgate._app.call import JobCall
    from headgate._app.flow import Flow
    from headgate._app.function import JobFunction
    from headgate._app.sending import Sender

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

JobStatus = Literal["waiting", "queued", "delayed", "running", "succeeded", "failed", "skipped", "cancelled"]

# What a verb yields: a call of a service, or something that blocks.
Steps = Generator[Call[Any] | Callable[[], Any], Any, T]

_LOOK_S_MIN: Final = 0.1
_LOOK_S_MAX: Final = 2.0
# So many nodes of one result are asked for one by one.
_SINGLY_MAX: Final = 8
# Of an item; one that the queue has not been given yet, or has no more, is told to its DAG in a moment.
_STANDINGS: Final[dict[wire.ItemState | None, JobStatus]] = {
    "leased": "running",
    "delayed": "delayed",
    "disabled": "waiting",
    "dead": "failed",
}
_ENDED: Final = ("succeeded", "failed", "skipped", "cancelled")


class _Unfinished(Exception):
    """A node that a result needs has not ended yet."""


def _one(call: Call[T]) -> Steps[T]:
    """The answer of one call."""
    answer: T = yield call
    return answer


class Sent(Generic[R_co]):
    """What both have in common: the DAG that they are."""

    def __init__(self, app: "Sender", dag_id: str | None) -> None:
        self.app = app
        self._id = dag_id
        self._sending: Coroutine[Any, Any, str] | Any = None

    @property
    def id(self) -> str:
        """What names it to the services; a DAG's id.

        Raises:
            RuntimeError: it is still being sent; await it.
        """
        if self._id is None:
            raise RuntimeError(f"{self!r} is still being sent: `await` what enqueue or start returned")
        return self._id

    def _call(self, verb: verbs.Verb, body: Any = None, **query: Any) -> Call[wire.Dag]:
        parse = wire.Dag.model_validate
        wait_s = query.get("timeout_s", 0.0)
        return verbs.call(verb, parse, body=body, query=query, wait_s=wait_s, ns=self.app.namespace, dag=self.id)

    def _asked(self, steps: Steps[T]) -> Steps[T]:
        """What calls about it are answered.

        Raises:
            ResultGone: it is not kept any longer.
        """
        try:
            return (yield from steps)
        except NotFound:
            raise ResultGone(f"there is no {self!r}; what has ended is kept for a while only") from None

    def _show(self) -> Steps[wire.Dag]:
        return (yield from self._asked(_one(self._call(verbs.DAG))))

    def _wait_once(self, wait_s: float, node: str | None = None) -> Steps[wire.WaitedDag]:
        """The DAG, and how a node of it stands then, with what it gave."""
        query = {"timeout_s": round(wait_s, 3), "node": node}
        parse, ns = wire.WaitedDag.model_validate, self.app.namespace
        call = verbs.call(verbs.DAG_WAIT, parse, query=query, wait_s=wait_s, ns=ns, dag=self.id)
        return (yield from self._asked(_one(call)))

    def _waited(self, timeout_s: float | None) -> Steps[bool]:
        ends_at = None if timeout_s is None else self.app.monotonic_s() + timeout_s
        while True:
            left_s = wire.WAIT_S_MAX if ends_at is None else max(0.0, ends_at - self.app.monotonic_s())
            dag = yield from self._wait_once(min(wire.WAIT_S_MAX, left_s))
            if dag.finished:
                return True
            if ends_at is not None and left_s <= wire.WAIT_S_MAX:
                return False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended, whatever it has come to; False if it has not within `timeout_s`."""
        return self.app.drive(self._waited(timeout_s))

    async def await_end(self, timeout_s: float | None = None) -> bool:
        """`wait` in a coroutine."""
        await self._be_sent()
        return await self.app.adrive(self._waited(timeout_s))

    async def _be_sent(self) -> None:
        if self._id is None:
            self._id = await self._sending

    def _result_of(
        self,
        node: str,
        timeout_s: float | None,
        *,
        alone: bool,
        inner: tuple[str, ...] = (),
        gives_nothing: bool = False,
    ) -> Steps[Any]:
        """The result of a node as JSON, when it is there.

        Raises:
            NotDone: it is not there in time.
            BaseException: what the function raised.
        """
        ends_at = None if timeout_s is None else self.app.monotonic_s() + timeout_s
        look_s = float(wire.WAIT_S_MAX) if alone else 0.0
        while True:
            left_s = float(wire.WAIT_S_MAX) if ends_at is None else max(0.0, ends_at - self.app.monotonic_s())
            dag = yield from self._wait_once(min(look_s, left_s), None if gives_nothing else node)
            if gives_nothing and dag.state == "succeeded":
                return None  # without another call
            if dag.finished or not alone:
                try:
                    return (yield from self._look(node, inner, dag.node))
                except _Unfinished:
                    pass  # another call of the flow is at work, or this one again
            if ends_at is not None and left_s <= look_s:
                raise NotDone(f"{self!r} has not ended within {timeout_s:g} s; it goes on")
            look_s = look_s if alone else min(max(2 * look_s, _LOOK_S_MIN), _LOOK_S_MAX)

    def _look(self, key: str, inner: tuple[str, ...], end: wire.NodeEnd | None) -> Steps[Any]:
        opening, answer = filled(None, [[[], key, *inner]]), None
        read = 0
        known: dict[str, wire.NodeView | wire.NodeEnd] = {} if end is None else {key: end}
        while True:
            try:
                kind, needed = opening.send(answer)
            except StopIteration as stop:
                return stop.value
            if kind == "stored":
                answer = yield self.app.loader(needed)
                continue
            read += 1
            if read == _SINGLY_MAX:
                known = dict((yield from self._nodes()))
            node = known.get(needed)
            answer = yield from self._output_of(node if node is not None else (yield from self._node_of(needed)))

    def _nodes(self) -> Steps[dict[str, wire.NodeView]]:
        """All nodes of the DAG, by key: a result of many is read page by page."""
        parse = verbs.page_of(wire.NodeView)
        ns, dag_id = self.app.namespace, self.id
        pages = listed(lambda page: verbs.call(verbs.DAG_NODES, parse, query=page, ns=ns, dag=dag_id))
        return {node.key: node for node in (yield from self._asked(pages))}

    def _output_of(self, node: wire.NodeView | wire.NodeEnd) -> Steps[Any]:
        if node.state == "succeeded":
            return node.output
        if node.state not in _ENDED:
            raise _Unfinished
        yield from self._raise(node)
        raise AssertionError("it has raised")

    def _node_of(self, key: str) -> Steps[wire.NodeView]:
        parse, ns = wire.NodeView.model_validate, self.app.namespace
        call = verbs.call(verbs.DAG_NODE, parse, query={"key": key}, ns=ns, dag=self.id)
        return (yield from self._asked(_one(call)))

    def _raise(self, node: wire.NodeView | wire.NodeEnd) -> Steps[None]:
        """Raise what a node has come to that has no result."""
        where = f"job {node.key!r} ({self.id})"
        if node.state == "failed":
            raise raised_by(node.error, where)
        dag = yield from self._show()
        if node.state == "cancelled":
            raise JobCancelled(f"{where} was cancelled{f': {dag.reason}' if dag.reason else ''}")
        query = {"state": "failed", "limit": 20}
        parse = verbs.page_of(wire.NodeView)
        call = verbs.call(verbs.DAG_NODES, parse, query=query, ns=self.app.namespace, dag=self.id)
        failed = (yield from self._asked(_one(call)))[0]
        counting = [one for one in failed if not one.tolerate] or failed
        if counting:
            error = raised_by(counting[0].error, f"job {counting[0].key!r} ({self.id})")
            error.add_note(f"so {where} did not run")
            raise error
        raise JobSkipped(f"{where} was skipped: its condition was not met, or that of what it waits for")

    def _status(self, key: str) -> Steps[JobStatus]:
        node = yield from self._node_of(key)
        if node.state == "blocked":
            return "waiting"
        if node.state != "released":
            return node.state
        return (yield from self._standing(node.item_id))

    def _standing(self, item_id: str, *, kept: bool = True) -> Steps[JobStatus]:
        parse = verbs.results_of(wire.ItemStanding)
        states = yield verbs.call(verbs.ITEM_STATES, parse, ns=self.app.namespace, body={"ids": [item_id]})
        if states[0].state is None and not kept:
            raise ResultGone(
                f"{self!r} has ended, and nothing is kept of how: it was sent without its result (result=False)"
            )
        return _STANDINGS.get(states[0].state, "queued")


class JobHandle(Sent[R_co]):
    """A job that was sent. In a coroutine, await what `enqueue` returned before anything else, and use the
    verbs that begin with `a`."""

    def __init__(
        self,
        app: "Sender",
        function: "JobFunction[..., R_co, ..., Any] | None",
        job_id: str | None,
        *,
        call: "JobCall[R_co] | None" = None,
        node: str | None = None,
        kept: bool = True,
    ) -> None:
        super().__init__(app, job_id)
        self._call_made = call
        self.function = function
        self.kept = kept
        self._alone = node is None
        self._node = node

    def __repr__(self) -> str:
        name = self.function.name if self.function is not None else "job"
        return f"<{name} {self._id or '(being sent)'}>"

    def __await__(self) -> Generator[Any, None, "JobHandle[R_co]"]:
        yield from self._be_sent().__await__()
        return self

    def result(self, timeout_s: float | None = None) -> R_co:
        """What the function returned, when it has ended; raises what it raised, with its traceback.

        Raises:
            NotDone: it has not ended within `timeout_s` (a TimeoutError); it goes on.
            JobCancelled, JobSkipped: it did not run to its end.
            JobFailed: it failed with an exception that is not known here.
            NoResult, ResultGone: its result was not kept, or is no longer.
        """
        return self.app.drive(self._result(timeout_s))

    async def aresult(self, timeout_s: float | None = None) -> R_co:
        """`result` in a coroutine."""
        await self._be_sent()
        return await self.app.adrive(self._result(timeout_s))

    def status(self) -> JobStatus:
        """Where it stands.

        Raises:
            ResultGone: it has ended and is not kept any longer, or never was (`result=False`).
        """
        return self.app.drive(self._job_status())

    async def astatus(self) -> JobStatus:
        await self._be_sent()
        return await self.app.adrive(self._job_status())

    def logs(self) -> list[wire.LogEntry]:
        """What it has logged, over all workers, in the order of time."""
        return self.app.drive(self._logged())

    async def alogs(self) -> list[wire.LogEntry]:
        await self._be_sent()
        return await self.app.adrive(self._logged())

    def cancel(self, reason: str | None = None) -> None:
        """Do not run it, or stop it; its `result` raises JobCancelled. One that has ended stays as it is."""
        self.app.drive(self._cancelled(reason))

    async def acancel(self, reason: str | None = None) -> None:
        await self._be_sent()
        await self.app.adrive(self._cancelled(reason))

    def retry(self) -> None:
        """Run it again, if it has failed.

        Raises:
            NothingToRetry: it has not failed.
        """
        self.app.drive(self._retried())

    async def aretry(self) -> None:
        await self._be_sent()
        await self.app.adrive(self._retried())

    def _key(self) -> Steps[str]:
        if not self.kept:
            raise NoResult(f"{self!r} was sent without keeping its result (result=False)")
        if self._node is None and self.function is not None:
            self._node = self.function.name
        if self._node is None:
            dag = yield from self._show()
            self._node = dag.name or ""
            self.function = self.app.functions.get(self._node)
        return self._node

    def _result(self, timeout_s: float | None) -> Steps[R_co]:
        key = yield from self._key()
        inner = self._call_made.inner if self._call_made is not None else ()
        nothing = self._alone and self.function is not None and self.function.signature.gives_nothing
        value = yield from self._result_of(key, timeout_s, alone=self._alone, inner=inner, gives_nothing=nothing)
        decoded = self._call_made.decoded if self._call_made is not None else None
        if decoded is None and self.function is not None:
            decoded = self.function.decoded
        found: R_co = value if decoded is None else decoded(value)
        return found

    def _job_status(self) -> Steps[JobStatus]:
        if not self.kept:
            return (yield from self._standing(self.id, kept=False))
        return (yield from self._status((yield from self._key())))

    def _logged(self) -> Steps[list[wire.LogEntry]]:
        item_id = self.id
        if self.kept:
            node = yield from self._node_of((yield from self._key()))
            item_id = node.item_id
        ns, parse = self.app.namespace, verbs.page_of(wire.LogEntry)
        return (
            yield from listed(lambda page: verbs.call(verbs.ITEM_LOGS, parse, query=page, ns=ns, item=item_id))
        )

    def _cancelled(self, reason: str | None) -> Steps[None]:
        if not self.kept:
            yield verbs.batch(verbs.CANCEL, self.app.namespace, [self.id], field="ids")
        elif self._alone:
            yield self._call(verbs.DAG_CANCEL, present(reason=reason))
        else:
            body = {"nodes": [self._node], **present(reason=reason)}
            yield verbs.call(verbs.DAG_NODES_CANCEL, verbs.as_is, body=body, ns=self.app.namespace, dag=self.id)

    def _retried(self) -> Steps[None]:
        if not self.kept:
            raise NoResult(
                f"{self!r} was sent without keeping its result: `headgate redrive` runs dead items again"
            )
        yield self._call(verbs.DAG_RETRY, {} if self._alone else {"nodes": [self._node]})


class FlowRun(Sent[Any]):
    """A flow that was started."""

    def __init__(self, app: "Sender", flow: "Flow", dag_id: str | None) -> None:
        super().__init__(app, dag_id)
        self.flow = flow

    def __repr__(self) -> str:
        return f"<flow {self.flow.name} {self._id or '(being sent)'}>"

    def __await__(self) -> Generator[Any, None, "FlowRun"]:
        yield from self._be_sent().__await__()
        return self

    def result(self, call: "JobCall[T]", timeout_s: float | None = None) -> T:
        """The result of one of the flow's calls, when it has ended; raises what it raised, or what kept it from
        running."""
        return self.job(call).result(timeout_s)

    async def aresult(self, call: "JobCall[T]", timeout_s: float | None = None) -> T:
        await self._be_sent()
        return await self.job(call).aresult(timeout_s)

    def job(self, call: "JobCall[T]") -> JobHandle[T]:
        """The job of one of the flow's calls."""
        return JobHandle(self.app, call.function, self.id, call=call, node=self.flow.key_of(call))

    def status(self) -> wire.DagState:
        """running, succeeded, failed, cancelling or cancelled."""
        return self.app.drive(self._show()).state

    async def astatus(self) -> wire.DagState:
        await self._be_sent()
        return (await self.app.adrive(self._show())).state

    def cancel(self, reason: str | None = None) -> None:
        """Stop it; what its calls have done is taken back where they have an undo."""
        self.app.drive(self._done(verbs.DAG_CANCEL, present(reason=reason)))

    async def acancel(self, reason: str | None = None) -> None:
        await self._be_sent()
        await self.app.adrive(self._done(verbs.DAG_CANCEL, present(reason=reason)))

    def retry(self) -> None:
        """Run what failed again, and what did not run because of it; what succeeded is kept.

        Raises:
            NothingToRetry: nothing failed.
        """
        self.app.drive(self._done(verbs.DAG_RETRY, {}))

    async def aretry(self) -> None:
        await self._be_sent()
        await self.app.adrive(self._done(verbs.DAG_RETRY, {}))

    def _done(self, verb: verbs.Verb, body: Any) -> Steps[None]:
        yield self._call(verb, body)
