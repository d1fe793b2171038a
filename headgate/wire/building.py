"""What DAGs are built of: the bodies that create them and add to them."""

from typing import Annotated, Any, Final, Optional, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from headgate.wire.base import (
    INT32_MAX,
    LEASE_S_DEFAULT,
    NAME_BYTES_MAX,
    TTL_S_MAX,
    Attempts,
    Batch,
    DelayS,
    Instant,
    Json,
    JsonObject,
    Key,
    Label,
    LeaseS,
    Lift,
    MaybeNone,
    OnFailure,
    Priority,
    Request,
    RunOn,
    TimeoutS,
    Topic,
    Trigger,
    TtlS,
    fault,
    label,
)
from headgate.wire.names import ParentClose, PathName, WorkflowType, WorkflowVersion, check_version
from headgate.wire.queue import Backoff, check_deadline


class Dependency(Request):
    """An edge: `downstream` waits for `upstream`. Both are node keys."""

    upstream: Key
    downstream: Key


class _ExternalSpec(Request):
    """Something that a node waits for; with `deadline_s`, counted from when the node is added, it counts as failed
    when it has not been resolved by then."""

    name: Label
    deadline_s: Annotated[float, Field(gt=0, le=TTL_S_MAX)] | None = None


def _named(value: Any) -> Any:
    return {"name": label(value)} if isinstance(value, str) else value


# A name alone, or with a deadline.
ExternalSpec = Annotated[
    _ExternalSpec,
    BeforeValidator(_named),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX},
                {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX},
                        "deadline_s": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": TTL_S_MAX},
                    },
                    "required": ["name"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class TimerSpec(Request):
    """When a timer ends: `delay_s` after it was released, or `at` a time, at once where that is past."""

    delay_s: Annotated[float, Field(ge=0, le=TTL_S_MAX)] | None = None
    at: Instant | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.delay_s is None) == (self.at is None):
            raise fault("", "give one of delay_s and at")
        return self


class WorkflowNode(Request):
    """A run of a workflow: it begins when its node is released, and its end ends the node. `parent_close` says
    what becomes of it when the node is cancelled: it is asked to end, ended, or left to itself. Without an `id`
    one is made; with a `version` only workers of that one go on with it."""

    type: WorkflowType
    input: Json = None
    id: PathName | None = None
    version: WorkflowVersion | None = None
    deadline_s: Annotated[float, Field(gt=0, le=TTL_S_MAX)] | None = None
    priority: Priority = 0
    metadata: JsonObject | None = None
    parent_close: ParentClose = "cancel"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_version(self.type, self.version)
        return self


class NodeSpec(Request):
    """A node to add: an item, a timer, a DAG or a run of a workflow in its place, and what it waits for."""

    key: Key
    topic: Topic | None = None
    dag: Optional["SubDag"] = None
    timer: TimerSpec | None = None
    workflow: WorkflowNode | None = None
    payload: Json = None
    metadata: JsonObject | None = None
    priority: Priority = 0
    upstream: MaybeNone[Key] | None = None
    external: MaybeNone[ExternalSpec] | None = None
    trigger: Trigger = "all_succeeded"
    max_attempts: Attempts = 0
    backoff: Backoff | None = None
    lease_s: LeaseS = float(LEASE_S_DEFAULT)
    delay_s: DelayS | None = None
    ttl_s: TtlS | None = None
    timeout_s: TimeoutS | None = None
    deadline_s: TtlS | None = None
    fairness_key: Label | None = None
    pass_outputs: bool = False
    run_on: RunOn | None = None
    compensates: Key | None = None
    tolerate: bool = False

    @model_validator(mode="after")
    def _compensation(self) -> Self:
        if self.compensates is not None:
            for name in ("run_on", "upstream", "external"):
                if getattr(self, name):
                    raise fault(f"/{name}", "a node that compensates another has its own turn")
            if self.trigger != "all_succeeded":
                raise fault("/trigger", "a node that compensates another has its own turn")
        return self

    @model_validator(mode="after")
    def _tolerance(self) -> Self:
        if self.tolerate and (self.run_on is not None or self.compensates is not None):
            raise fault("/tolerate", "no failure of cleanup fails the DAG; leave it out")
        return self

    @model_validator(mode="after")
    def _item_or_other(self) -> Self:
        others = [name for name in ("dag", "timer", "workflow") if getattr(self, name) is not None]
        if not others:
            if self.topic is None:
                raise fault("/topic", "is required, unless `dag`, `timer` or `workflow` is given")
            return self
        other = others[0]
        if others[1:]:
            raise fault(f"/{others[1]}", f"a node with `{other}` is no {others[1]}")
        if self.workflow is not None and self.pass_outputs:
            raise fault("/pass_outputs", "a workflow is given its input, and nothing else")
        if said := [name for name in _ITEM_FIELDS & self.model_fields_set if getattr(self, name) is not None]:
            raise fault(f"/{min(said)}", f"belongs to an item; a node with `{other}` has none")
        if self.timer is not None:
            for name in ("pass_outputs", "run_on", "compensates"):
                if getattr(self, name):
                    raise fault(f"/{name}", "a timer is given nothing, and takes no part in cleanup")
        return self

    @model_validator(mode="after")
    def _deliverable(self) -> Self:
        check_deadline(self.deadline_s, self.ttl_s, self.delay_s)
        if self.ttl_s is not None and self.delay_s is not None and self.ttl_s < self.delay_s:
            raise fault("/ttl_s", "must not be shorter than delay_s: the item could never be delivered")
        deadlines: dict[str, float | None] = {}
        for position, external in enumerate(self.external or ()):
            if deadlines.setdefault(external.name, external.deadline_s) != external.deadline_s:
                raise fault(f"/external/{position}", "is named twice, with different deadlines")
        return self


# What a node says of its item.
_ITEM_FIELDS: Final = frozenset(
    {"topic", "payload", "metadata", "priority", "max_attempts", "backoff", "lease_s", "delay_s", "ttl_s"}
    | {"timeout_s", "deadline_s", "fairness_key"}
)


class _Build(Request):
    """Nodes and edges of one call. An `any_*` node has its upstream here, or could never fire."""

    nodes: MaybeNone[NodeSpec] | None = None
    dependencies: MaybeNone[Dependency] | None = None

    @model_validator(mode="after")
    def _can_fire(self) -> Self:
        waiting = [
            (position, node)
            for position, node in enumerate(self.nodes or ())
            if node.trigger.startswith("any_") and not node.upstream
        ]
        if waiting:
            downstream = {edge.downstream for edge in self.dependencies or ()}
            for position, node in waiting:
                if node.key not in downstream:
                    raise fault(f"/nodes/{position}/trigger", f"{node.trigger} needs at least one upstream")
        return self


class DagPriority(Request):
    """By how much priorities of a DAG's items are lowered (lower is served first): `inherit` once any of its
    nodes has ended, and `critical_path` for each node of the longest chain behind the item's node. 0: not at all.
    """

    inherit: Lift = 0
    critical_path: Lift = 0


class SubDag(_Build):
    """A DAG that runs in the place of a node: made when the node is released, and its end ends the node."""

    name: Label | None = None
    open: bool = False
    on_failure: OnFailure = "continue"
    deadline_s: Annotated[float, Field(gt=0, le=TTL_S_MAX)] | None = None
    priority: DagPriority | None = None
    metadata: JsonObject | None = None

    @model_validator(mode="after")
    def _can_end(self) -> Self:
        if not self.nodes and not self.open:
            raise fault("/nodes", "is required, unless the DAG is `open`: it could never end")
        return self


NodeSpec.model_rebuild()


class DagSpec(_Build):
    """A DAG to create. The same `key` again answers the first DAG, and whether this body asks for the same; with
    `unique` only while that has not ended."""

    name: Label | None = None
    key: Key | None = None
    unique: bool = False
    open: bool = False
    hold: bool = False
    on_failure: OnFailure = "continue"
    deadline_s: Annotated[float, Field(gt=0, le=TTL_S_MAX)] | None = None
    priority: DagPriority | None = None
    metadata: JsonObject | None = None

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if self.unique and self.key is None:
            raise fault("/unique", "belongs to key")
        return self


class AddNodes(_Build):
    nodes: Batch[NodeSpec]


class ExpandNode(AddNodes):
    """Children of `node`, which runs: what waits for it waits for them too. With `generation` only that one of
    the node may add them."""

    node: Key
    generation: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None


class AddDependencies(Request):
    dependencies: Batch[Dependency]
