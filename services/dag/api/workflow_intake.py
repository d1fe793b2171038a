"""Workflows, from wire models to the service's values: what a turn asks for is judged here, command by command."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from headgate import wire
from headgate.wire.workflow import ResetRun, ResumeRun, UpdateSpec
from services.dag.api import intake
from services.dag.build import run_spec
from services.dag.build.run_spec import RunSpec
from services.dag.errors import BadCommand, ValueTooLarge
from services.dag.model import NewNode
from services.dag.queue_items import canonical, encode
from services.dag.settings import DagSettings
from services.dag.workflows.control import new_signal_id
from services.dag.workflows.values import Command, NewRun, Replacing, Reset, Result, RunEnd, Signal, Turn
from shared.errors import FieldError, Forbidden, Invalid, ServiceError, invalid
from shared.http.edge import validate

_ITEM_FIELDS: Final = frozenset(
    {"topic", "payload", "priority", "max_attempts", "backoff", "lease_s", "delay_s", "ttl_s", "metadata"}
    | {"timeout_s", "deadline_s", "start_to_close_s", "schedule_to_start_s", "fairness_key"}
)
# What a call's times are of the item that it becomes.
_TIMES: Final = {"start_to_close_s": "timeout_s", "schedule_to_start_s": "ttl_s"}
# What a command's spec may hold, by its kind.
_FIELDS: Final = {
    "item": _ITEM_FIELDS,
    "sub": frozenset({"dag"}),
    "timer": frozenset({"at"}),
    "child": frozenset(wire.WorkflowNode.model_fields),
    "start": frozenset(wire.WorkflowNode.model_fields) - {"parent_close"},
    "send": frozenset({"workflow", "name", "data"}),
    "step": frozenset({"name", "args", "max_attempts", "backoff", "timeout_s"}),
    "marker": frozenset[str](),
    "cancel": frozenset[str](),
    "publish": frozenset({"value"}),
    "answer": frozenset({"id", "state", "output", "error"}),
}
# Kinds whose spec is one field of a node.
_WITHIN: Final = {"timer": "timer", "child": "workflow"}
_INNER: Final = re.compile(r"^(?:/nodes/0)?(?:/timer|/workflow)?")
_NUMBERED: Final = re.compile(r"#[0-9]+(?:~[0-9]+)?\Z").search
_PATH_NAME: Final = re.compile(wire.PATH_NAME_PATTERN).fullmatch
_END_FIELDS: Final = {
    "succeeded": frozenset({"state", "output"}),
    "failed": frozenset({"state", "error"}),
    "cancelled": frozenset({"state"}),
    "continued": frozenset({"state", "input"}),
}
_PREFIXES: Final = {
    "marker": "marker:",
    "timer": "timer#",
    "step": "step:",
    "sub": "dag:",
    "child": "child:",
    "start": "start:",
    "send": "send:",
    "answer": "signal:",
}
_ANSWERS: Final = frozenset({"done", "failed", "rejected"})


def new_run(body: wire.StartWorkflow, settings: DagSettings) -> NewRun:
    """A run to begin.

    Raises:
        ValueTooLarge: its input, metadata or signal is over a limit.
    """
    if body.type.startswith("_"):
        raise Forbidden("types that begin with `_` are the system's; use another name")
    return NewRun(
        type=body.type,
        workflow_id=body.id or new_signal_id(),
        input=None if body.input is None else intake.checked(body.input, settings.payload_bytes_max, "/input"),
        version=body.version,
        deadline_s=body.deadline_s,
        priority=body.priority,
        metadata=None
        if body.metadata is None
        else intake.checked(body.metadata, settings.metadata_bytes_max, "/metadata"),
        reuse=body.reuse,
        signal=None if body.signal is None else signal(body.signal, settings, "/signal/data"),
        request=body.request_id,
    )


def signal(body: wire.SignalSpec, settings: DagSettings, at: str = "/data") -> Signal:
    """A signal.

    Raises:
        ValueTooLarge: its data is over the limit.
    """
    data = intake.checked(body.data, settings.data_bytes_max, at)
    return Signal(body.name, body.id or new_signal_id(), data, asks=isinstance(body, UpdateSpec))


def reset(body: ResetRun, by: str | None) -> Reset:
    """A reset."""
    return Reset(body.event, body.id or new_signal_id(), body.reason, by)


def replacing(body: ResumeRun, settings: DagSettings, by: str | None) -> Replacing:
    """With which ends a run is to go on.

    Raises:
        Invalid: a key is to be retried and is given an output.
        ValueTooLarge: one of them is over the limit.
    """
    outputs = {
        key: intake.checked(output, settings.payload_bytes_max, f"/outputs/{key}")
        for key, output in body.outputs.items()
    }
    if both := sorted(set(outputs).intersection(body.retry)):
        raise invalid(f"/retry/{body.retry.index(both[0])}", f"{both[0]!r} is given an output, too")
    return Replacing(outputs, body.id or new_signal_id(), body.retry, body.reason, by)


def turn(body: wire.TakeTurn, settings: DagSettings) -> Turn:
    """A turn.

    Raises:
        Invalid: it says that the run is stuck, and more.
        BadCommand: a command means nothing.
        ValueTooLarge: a value is over its limit.
    """
    said = body.model_dump(mode="json", exclude={"wait_s"})
    digest = hashlib.sha256(canonical(said).encode()).digest()
    if body.stuck is not None:
        if body.commands or body.results:
            raise invalid("/commands" if body.commands else "/results", "a run that is stuck asks for nothing")
        stuck = encode(body.stuck.model_dump(exclude_none=True))
        return Turn(body.generation, body.secret, body.turn, body.last, digest, stuck=stuck)
    results = []
    for i, result in enumerate(body.results or ()):
        output = None
        if result.output is not None:
            output = intake.checked(result.output, settings.payload_bytes_max, f"/results/{i}/output")
        results.append(Result(result.key, result.state, output, result.error))
    return Turn(
        body.generation,
        body.secret,
        body.turn,
        body.last,
        digest,
        body.seen,
        [_command(i, command, settings) for i, command in enumerate(body.commands or ())],
        results,
        body.received,
        intake.checked(body.by, settings.metadata_bytes_max, "/by"),
        wait_s=body.wait_s,
    )


def _command(i: int, command: wire.TurnCommand, settings: DagSettings) -> Command:
    kind, spec, at = command.kind, command.spec, f"/commands/{i}"
    shown = {"shown": command.shown} if command.shown else {}
    made = Command(kind, command.key, command.after, encode({"fingerprint": command.fingerprint} | shown))
    if kind == "end":
        return made._replace(end=_end(spec, at, settings))
    _check_key(kind, command.key, at)
    unknown = sorted(spec.keys() - _FIELDS[kind])
    if unknown:
        raise _bad(f"{at}/spec/{unknown[0]}", f"a command of kind {kind} has no such field")
    if kind == "publish":
        if "value" not in spec:
            raise _bad(f"{at}/spec/value", "is required")
        value = intake.checked(spec.get("value"), settings.value_bytes_max, f"{at}/spec/value")
        return made._replace(value=value)
    if kind == "answer":
        return made._replace(answer=_answer(spec, at, settings))
    if kind in ("item", "sub", "timer", "child", "start", "send"):
        return made._replace(node=_node(command, at, settings))
    return made


def _check_key(kind: str, key: str, at: str) -> None:
    if not 1 <= len(key.encode()) <= wire.KEY_BYTES_MAX or wire.unclean(key) or not key.isprintable():
        raise _bad(f"{at}/key", f"must be 1 to {wire.KEY_BYTES_MAX} bytes of UTF-8, no control characters")
    if kind in ("cancel", "publish"):
        return
    if not key.startswith(_PREFIXES.get(kind, "")):
        raise _bad(f"{at}/key", f"the key of a {kind} begins with {_PREFIXES[kind]!r}")
    if kind == "item" and key.startswith(_PREFIXES["timer"]):
        raise _bad(f"{at}/key", "the key of a task of topic timer begins with 'item:'")
    if kind != "marker" and not _NUMBERED(key):
        raise _bad(f"{at}/key", "must end with # and a number, and, after a reset, with ~ and another")


def _node(command: wire.TurnCommand, at: str, settings: DagSettings) -> NewNode:
    spec: dict[str, Any] = command.spec
    try:
        if command.kind == "send":
            return _run_node(command.key, _sent(spec, at, settings))
        if command.kind == "start":
            said = validate(wire.WorkflowNode, spec)
            return _run_node(command.key, intake.run_of(said, f"{at}/spec", settings, does="start"))
        fields = {_WITHIN[command.kind]: spec} if command.kind in _WITHIN else _in_time(spec, at)
        node = validate(wire.NodeSpec, {"key": command.key, **fields})
        if command.kind == "sub" and node.dag is None:
            raise _bad(f"{at}/spec/dag", "is required")
        [made] = intake.new_nodes([node], settings)
    except ServiceError as error:
        pointers = tuple(
            FieldError(f"{at}/spec{_asked_for(spec, _INNER.sub('', fault.pointer))}", fault.detail)
            for fault in error.errors
            if not fault.pointer.startswith(at)
        )
        if isinstance(error, Invalid) and not isinstance(error, BadCommand):
            raise BadCommand(f"{command.kind} {command.key}: {error.detail}", errors=pointers) from None
        error.errors = pointers or error.errors
        raise
    return made


def _asked_for(spec: dict[str, Any], pointer: str) -> str:
    """The field that a call has given in the place of a node's."""
    given = {f"/{of_node}": f"/{name}" for name, of_node in _TIMES.items() if spec.get(name) is not None}
    return given.get(pointer, pointer)


def _in_time(spec: dict[str, Any], at: str) -> dict[str, Any]:
    """What a call asks for, by the names of a node's fields."""
    fields = dict(spec)
    for name, of_node in _TIMES.items():
        if fields.get(name) is None:
            fields.pop(name, None)
        elif fields.get(of_node) is not None:
            raise _bad(f"{at}/spec/{name}", f"means what {of_node} does: give one of them")
        else:
            fields[of_node] = fields.pop(name)
    return fields


def _run_node(key: str, item: str) -> NewNode:
    return NewNode(
        key=key,
        topic="",
        trigger="all_succeeded",
        pass_outputs=False,
        upstream=(),
        external=(),
        item=item,
        fingerprint=hashlib.blake2b(item.encode(), digest_size=16).digest(),
        levels=1,
    )


def _sent(spec: dict[str, Any], at: str, settings: DagSettings) -> str:
    to, name = spec.get("workflow"), spec.get("name")
    if not isinstance(to, str) or not _PATH_NAME(to):
        raise _bad(f"{at}/spec/workflow", wire.PATH_NAME_WORDS)
    told = validate(wire.SignalSpec, {"name": name, "data": spec.get("data")})
    data = intake.checked(told.data, settings.data_bytes_max, f"{at}/spec/data")
    return run_spec.dump(RunSpec("send", to, name=told.name, data=data))


def _answer(spec: dict[str, Any], at: str, settings: DagSettings) -> tuple[str, str]:
    """An update's id, and what it is answered, as JSON text."""
    update_id, state = spec.get("id"), spec.get("state")
    if not isinstance(update_id, str) or not _PATH_NAME(update_id):
        raise _bad(f"{at}/spec/id", "must be the id of an update")
    if not isinstance(state, str) or state not in _ANSWERS:
        raise _bad(f"{at}/spec/state", f"must be one of {', '.join(sorted(_ANSWERS))}")
    told: dict[str, Any] = {"state": state}
    if spec.get("output") is not None:
        intake.checked(spec["output"], settings.payload_bytes_max, f"{at}/spec/output")
        told["output"] = spec["output"]
    if (error := _error(spec, at)) is not None:
        told["error"] = error
    return update_id, encode(told)


def _error(spec: dict[str, Any], at: str) -> str | None:
    error = spec.get("error")
    if error is not None and (not isinstance(error, str) or wire.unclean(error)):
        raise _bad(f"{at}/spec/error", "must be a text")
    if error is not None and len(error) > wire.ERROR_CHARS_MAX:
        raise ValueTooLarge(f"{at}/spec/error: it has over {wire.ERROR_CHARS_MAX} characters")
    return error


def _end(spec: dict[str, Any], at: str, settings: DagSettings) -> RunEnd:
    state = spec.get("state")
    if not isinstance(state, str) or state not in _END_FIELDS:
        raise _bad(f"{at}/spec/state", f"must be one of {', '.join(_END_FIELDS)}")
    unknown = sorted(spec.keys() - _END_FIELDS[state])
    if unknown:
        raise _bad(f"{at}/spec/{unknown[0]}", f"an end that is {state} has no such field")
    values: dict[str, str | None] = {"output": None, "input": None}
    for name in values:
        if spec.get(name) is not None:
            values[name] = intake.checked(spec[name], settings.payload_bytes_max, f"{at}/spec/{name}")
    error = _error(spec, at)
    if state == "failed" and error is None:
        error = "it failed"
    return RunEnd(state, values["output"], error, values["input"])


def _bad(pointer: str, detail: str) -> BadCommand:
    return BadCommand(f"{pointer}: {detail}", errors=[FieldError(pointer, detail)])
