"""A call in a worker: its arguments are checked, the function runs, and what it came to is told.

What cannot get better ends the job at once: a payload that is no call, a function or a version of it that this
code does not have, arguments that do not fit. What the function raises ends it too, unless it was said how
often to try.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from headgate._app.batches import Batches
from headgate._app.call import AddOptions, JobCall, holds, references, without_calls
from headgate._app.failures import ended_by, text_of
from headgate._app.flow import Flow, Plan
from headgate._app.function import JobFunction
from headgate._app.results import MARK, Opening, filled, opened, sealed, series
from headgate._app.sending import in_loop
from headgate._app.tracing import Carrier, tell, upstream_of
from headgate._app.typed import Signature, StateOf, faults, shown
from headgate._calls.dag import Node
from headgate._calls.verbs import encode, present
from headgate._error_text import is_of
from headgate._worker.ends import was_cancelled
from headgate._worker.job import Job, _in_thread
from headgate._worker.program_log import log
from headgate._worker.verdicts import traced
from headgate.errors import Fail, Invalid, JobTimedOut, NodeExists, Retry, TooLarge, WrongArguments
from headgate.wire import OUTPUT_BYTES_MAX

if TYPE_CHECKING:
    from headgate._app.app import App


AnyFunction = JobFunction[..., Any, ..., Any]
# How long a worker leaves jobs of a newer version than its own to others, and how often it looks at them.
NEWER_S: Final = 300.0
NEWER_LOOK_S: Final = 5.0

# Under which name a job of a schedule finds the time that it is for.
SLOT: Final = "external:schedule"


class Unrunnable(Fail):
    """A job that no attempt makes better; what to do is in the text."""


class Runner:
    """Runs the calls of one topic: functions of one name, by version."""

    def __init__(self, app: "App", functions: Mapping[tuple[str, int], AnyFunction]) -> None:
        self._app = app
        self._functions = functions
        self._names = sorted({name for name, _ in functions})
        self._batches: dict[int, Batches] = {}

    async def run(self, job: Job) -> Any:
        """The handler of the topic."""
        payload = await self._payload(job)
        function = self._function(job, payload)
        job.app = self._app
        tries = bool(function.settings.max_attempts or payload.get("tries"))
        match payload:
            case {"undo": key}:
                return await self._undo(job, function, str(key))
            case {"when": test}:
                return await self._decide(job, payload, test)
            case {"map": name, "fixed": fixed}:
                args = await self._filled(job, payload)
                each = [{name: item, **fixed} for item in _items(function, args)]
                calls = [JobCall(function, self._decoded(function, args, tries=tries)) for args in each]
                return await self._grown(job, calls)
        args = await self._filled(job, payload)
        if payload.get("slot") and "at" in function.signature.given.parameters:
            args = {**args, "at": job.inputs[SLOT]["at"]}
        arguments = self._decoded(function, args, tries=tries)
        with self._traced(job, function, payload) as carrier:
            if function.settings.batch is not None:
                batches = self._batches.setdefault(function.version, Batches(self, function))
                value = await batches.result(job, arguments, one=bool(payload.get("one")), tries=tries)
            else:
                value = await self.called(job, function, function.function, arguments, tries=tries)
        if isinstance(value, Flow):
            value = value.as_call()
        try:
            grows = any(references(value))
        except WrongArguments as error:
            raise _unfit(function, error) from None
        if grows:
            return await self._grown(job, value)
        return await self._output(function, value, carrier, tries=tries)

    def _traced(
        self, job: Job, function: AnyFunction, payload: Mapping[str, Any]
    ) -> AbstractContextManager[Carrier | None]:
        """A span around a run, if the app is traced."""
        tracing = self._app.tracing
        if tracing is None:
            return contextlib.nullcontext()
        told = {"messaging.message.id": job.id, "headgate.attempt": job.attempt}
        if job.dag is not None:
            told |= {"headgate.dag": job.dag.id, "headgate.node": job.dag.node}
        sent_with = payload.get("trace") or job.headers
        return tracing.running(function.name, sent_with, upstream_of(job.inputs, MARK), told)

    # What is to run

    async def _payload(self, job: Job) -> dict[str, Any]:
        payload = job.payload
        if isinstance(payload, dict) and MARK in payload:
            payload = {**await self._stored(payload["key"]), **present(trace=payload.get("trace"))}
        if not (isinstance(payload, dict) and isinstance(payload.get("fn"), str)):
            raise Unrunnable(
                f"this item of topic {job.topic} is no call of a function: enqueue it with "
                f"{self._names[0]}.enqueue(...), or handle its topic with @app.task"
            )
        return payload

    def _function(self, job: Job, payload: Mapping[str, Any]) -> AnyFunction:
        name, version = str(payload["fn"]), payload.get("v", 1)
        function = self._functions.get((name, version))
        if function is not None:
            return function
        versions = sorted(number for known, number in self._functions if known == name)
        if not versions:
            raise Unrunnable(
                f"this worker has no function {name!r} (it has {', '.join(self._names)}): start a worker "
                "with code "
                "that has it and retry the job, or cancel it"
            )
        if isinstance(version, int) and version > versions[-1]:
            age_s = (self._app.now() - (job.leased.enqueued_at or self._app.now())).total_seconds()
            if age_s < NEWER_S:
                raise Retry(
                    f"{name} is wanted in version {version}, this worker has {versions[-1]}: left to "
                    "newer workers",
                    delay_s=NEWER_LOOK_S,
                    costs_attempt=False,
                )
            raise Unrunnable(
                f"{name} is wanted in version {version}, and workers have {versions[-1]}: deploy the newer code "
                "to the workers, and retry the job"
            )
        raise Unrunnable(
            f"this job is of version {version} of {name}, and workers have {', '.join(map(str, versions))}: keep "
            f"the older function beside, as @app.job(name={name!r}, version={version}), and retry the job; or "
            "cancel it"
        )

    async def _filled(self, job: Job, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as JSON, with the results of other calls in them."""
        filling = filled(payload.get("args") or {}, payload.get("from") or ())
        found: dict[str, Any] = await self._answered(filling, job.inputs)
        return found

    async def _answered(self, opening: Opening, inputs: Any) -> Any:
        answer: Any = None
        given = inputs if isinstance(inputs, dict) else {}
        while True:
            try:
                kind, key = opening.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = given.get(key) if kind == "output" else await self._stored(key)

    async def _stored(self, key: str) -> Any:
        try:
            return await asyncio.to_thread(self._app.loader(key))
        except KeyError:
            raise Unrunnable(
                f"the store of this app has nothing under {key!r}: give this worker the store that the caller "
                "has, App(store=...); or it has been dropped there"
            ) from None

    def _decoded(self, function: AnyFunction, args: Mapping[str, Any], *, tries: bool) -> dict[str, Any]:
        signature = function.signature
        try:
            found = signature.arguments.decode(args)
        except ValidationError as error:
            raise Unrunnable(f"{_misfit(function)}: {faults(error)}") from None
        except BaseException as error:  # of a validator or a codec of the user's
            raise ended_by(error, tries=tries) from None
        if missing := signature.missing(found):
            raise Unrunnable(f"{_misfit(function)}: `{missing[0]}` is missing")
        return found

    # Running it

    async def called(
        self,
        job: Job,
        function: AnyFunction,
        code: Callable[..., Any],
        arguments: Mapping[str, Any],
        *,
        tries: bool,
    ) -> Any:
        """What the function, or its undo, returns.

        Raises:
            Retry, Fail: it raised; which of them says whether it is tried again.
        """
        signature = function.signature if code is function.function else self._app.signature_of(code)
        run = partial(
            _run, job, code, *self._given(job, signature, arguments), is_coroutine=signature.is_coroutine
        )
        timeout_s = function.settings.timeout_s
        # Not `timeout(None)`, which costs as much as all the rest of a short call.
        limit = None if timeout_s is None else asyncio.timeout(timeout_s)
        try:
            if limit is None:
                return await run()
            async with limit:
                return await run()
        except Retry:
            raise
        except BaseException as error:
            is_late = limit is not None and limit.expired()
            if _is_of_a_cancel(job, error) and (job.is_cut_off() or not is_late):
                raise  # it is the worker that knows what for
            failure = error
            if is_late and is_of(error, TimeoutError, asyncio.CancelledError):
                failure = JobTimedOut(f"attempt {job.attempt} took longer than {timeout_s:g} s")
            log.warning("%s of %r raised %s", function.name, job, shown(failure), exc_info=traced(error))
            raise ended_by(failure, tries=tries) from None

    def _given(
        self, job: Job, signature: Signature, arguments: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        filled_in: dict[str, Any] = {}
        for name, what in signature.injected.items():
            filled_in[name] = self._app.state_of(what.kind) if isinstance(what, StateOf) else job
        return signature.call_with(arguments, filled_in)

    async def _output(
        self, function: AnyFunction, value: Any, carrier: Carrier | None = None, *, tries: bool
    ) -> Any:
        """A result as an output.

        Raises:
            Fail: it is not of the type that the function is annotated with.
            Retry, Fail: a validator or a codec of the user's raised.
        """
        signature = function.signature
        try:
            is_nothing = value is None and signature.gives_nothing
            encoded = None if is_nothing else signature.result.encode({"value": value})["value"]
        except (ValidationError, PydanticSerializationError, UnicodeError, RecursionError) as error:
            raise _unfit(function, error) from None
        except BaseException as error:
            raise ended_by(error, tries=tries) from None
        try:
            output = sealed(encoded, carrier)
            return output if isinstance(output, (int, float, None.__class__)) else await self._packed(output)
        except (Invalid, TooLarge) as error:
            raise Fail(text_of(error)) from None

    async def _packed(self, output: Any) -> Any:
        """An output as it may be kept: a large one in the store."""
        text = encode(output)
        if len(text) <= OUTPUT_BYTES_MAX:
            return output
        return await asyncio.to_thread(self._app.stored, text, "result", OUTPUT_BYTES_MAX)

    # Growing, deciding, undoing

    async def _grown(self, job: Job, value: Any) -> Any:
        """Calls that a function returned become nodes below its own; its result will be theirs."""
        found = list(references(value))
        if job.dag is None:
            raise Fail(
                f"{job.topic} returned calls, and was sent without keeping its result, so there is no flow to add "
                "them to: send it with its result (result=True)"
            )
        if not found:
            return sealed(without_calls(value))
        plan = job.plan = job.plan or Plan(self._app, f"{job.dag.node}/")
        known = {node.key for node in plan}
        keys = [plan.add(call) for _, call in found]
        places = [[list(path), key, *call.inner] for (path, call), key in zip(found, keys, strict=True)]
        await _adding(job, _sent_as(job, [node for node in plan if node.key not in known]))
        if isinstance(value, list) and len(value) == len(found) and not any(call.inner for _, call in found):
            short = series(keys) if all(len(path) == 1 for path, _ in found) else None
            if short is not None:
                return short
        try:
            return await self._packed({MARK: "calls", "value": without_calls(value), "from": places})
        except (Invalid, TooLarge) as error:
            raise Fail(text_of(error)) from None

    async def _decide(self, job: Job, payload: Mapping[str, Any], test: Mapping[str, Any]) -> Any:
        """Skip a call whose condition does not hold."""
        if job.dag is None:
            raise Unrunnable("a condition belongs to a flow")
        value = (await self._filled(job, payload))["value"]
        met = holds(test["operator"], value, test["path"], test["other"])
        if not met:
            await job.client.dag(job.dag.id, namespace=job.namespace).skip([test["skip"]])
        return {MARK: "when", "met": met}

    async def _undo(self, job: Job, function: AnyFunction, key: str) -> None:
        """Take back what a call has done."""
        if function.undoing is None:
            raise Unrunnable(
                f"{function.name} has no undo in this worker's code, and had one where the flow was made: "
                "bring it "
                f"back, as @{function.name}.undo, and retry"
            )
        given = job.inputs if isinstance(job.inputs, dict) else {}
        payload = given.get(f"payload:{key}") or {}
        if MARK in payload:
            payload = await self._stored(payload["key"])
        inputs = given.get(f"inputs:{key}") or {}
        args = await self._answered(filled(payload.get("args") or {}, payload.get("from") or ()), inputs)
        wanted = self._app.signature_of(function.undoing).parameters
        tries = bool(function.settings.max_attempts)
        arguments = self._decoded(function, args, tries=tries)
        if "result" in wanted:
            output = await self._answered(opened(given.get(key)), inputs)
            arguments["result"] = function.signature.result.decode({"value": output})["value"]
        named = {name: value for name, value in arguments.items() if name in wanted}
        await self.called(job, function, function.undoing, named, tries=tries)


def add(job: Job, call: JobCall[Any], how: AddOptions) -> Any:
    """Add a call below a job. In a coroutine this is awaited; elsewhere it is done when it returns."""
    if job.dag is None:
        raise Fail(f"{job.topic} adds calls, and was sent without keeping its result: send it with result=True")
    if job.plan is None:
        job.plan = Plan(job.app, f"{job.dag.node}/")
    key = how.get("key")
    known = key is not None and key in job.plan.nodes
    nodes = [] if known else _sent_as(job, job.plan.fresh(call, how))
    if in_loop():
        return _adding(job, nodes, named=key is not None)
    if nodes:
        with _same_as_before(named=key is not None):
            job.blocking_client.dag(job.dag.id, namespace=job.namespace).expand(
                job.dag.node, nodes, generation=job.dag.generation
            )
    return None


def _sent_as(job: Job, nodes: list[Node]) -> list[Node]:
    """Nodes with the trace context of the job itself, which is the same in each attempt."""
    carrier = job.payload.get("trace") if isinstance(job.payload, dict) else None
    tell(nodes, carrier)
    return nodes


async def _adding(job: Job, nodes: list[Node], *, named: bool = False) -> None:
    if nodes:
        with _same_as_before(named=named):
            await job.expand(nodes)


@contextlib.contextmanager
def _same_as_before(*, named: bool) -> Iterator[None]:
    """Of a call that is named by a key there is one in the flow: whoever adds it later is content with that."""
    try:
        yield
    except NodeExists as error:
        if named:
            return
        raise Unrunnable(
            f"{error}: the calls that this job made in an earlier attempt were others; make the same calls in "
            "every attempt, as from its arguments alone"
        ) from None


async def _run(
    job: Job, code: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], *, is_coroutine: bool
) -> Any:
    if is_coroutine:
        return await code(*args, **kwargs)
    found = await _in_thread(lambda _: code(*args, **kwargs), job)
    return await found if inspect.isawaitable(found) else found


def _is_of_a_cancel(job: Job, error: BaseException) -> bool:
    """Whether a function has raised because its task was cancelled, of which a library may make another error.

    Whether the task was is not enough: up to Python 3.12 what fails in a `TaskGroup` that is being left marks its
    task for good, so that the end of a `timeout` around it, too, is a cancel.
    """
    return was_cancelled() and (
        is_of(error, asyncio.CancelledError) or (job.is_cut_off() and not is_of(error, Fail))
    )


def _unfit(function: AnyFunction, error: Exception) -> Fail:
    """How a job ends whose function has returned what cannot be its result."""
    said = faults(error) if isinstance(error, ValidationError) else str(error)
    return Fail(text_of(TypeError(f"{function.name} returned what it is not annotated with: {said}")))


def _items(function: AnyFunction, args: Mapping[str, Any]) -> list[Any]:
    items = args.get("items")
    if not isinstance(items, list):
        raise Unrunnable(
            f"{function.name} is to be called for each element of a list, and was given {items!r:.80}"
        )
    return items


def _misfit(function: AnyFunction) -> str:
    return (
        f"{function.name} cannot be called with what this job has. The code that sent it has another "
        "signature: give "
        "new parameters a default, or the changed function a new version (version=2) beside the old one"
    )
