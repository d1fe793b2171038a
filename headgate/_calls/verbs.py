"""Every verb of both services once, as data; and the calls made from them.

`safe` says that sending the call twice leaves what sending it once leaves, and answers so that the caller
can tell: such calls are sent again also when nobody knows whether the first one arrived. Others are sent
again only after an answer of `outcome: none`, or when no connection could be made. Enqueue and create are
safe where the caller's ids or keys make them so, which is decided per call.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from headgate._calls.elements import Dequeued, Leased, Part, Result
from headgate.errors import Invalid

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Service = Literal["queue", "dag"]


@dataclass(frozen=True, slots=True)
class Verb:
    service: Service
    method: str
    path: str
    safe: bool


_NS: Final = "/v1/namespaces/{ns}"
_DAG: Final = _NS + "/dags/{dag}"

ENQUEUE = Verb("queue", "POST", _NS + "/enqueue", safe=False)
DEQUEUE = Verb("queue", "POST", _NS + "/dequeue", safe=False)
ACK = Verb("queue", "POST", _NS + "/ack", safe=True)
NACK = Verb("queue", "POST", _NS + "/nack", safe=False)
EXTEND = Verb("queue", "POST", _NS + "/extend", safe=True)
REVIVE = Verb("queue", "POST", _NS + "/revive", safe=True)
CANCEL = Verb("queue", "POST", _NS + "/cancel", safe=True)
ITEM = Verb("queue", "GET", _NS + "/items/{item}", safe=True)
ITEMS = Verb("queue", "GET", _NS + "/items", safe=True)
ITEM_ATTEMPTS = Verb("queue", "GET", _NS + "/items/{item}/attempts", safe=True)
ITEMS_ATTEMPTS = Verb("queue", "POST", _NS + "/items/attempts", safe=True)
ITEM_LOGS = Verb("queue", "GET", _NS + "/items/{item}/logs", safe=True)
LOGS_WRITE = Verb("queue", "POST", _NS + "/logs", safe=True)
ITEM_STATES = Verb("queue", "POST", _NS + "/items/states", safe=True)
TOPICS = Verb("queue", "GET", _NS + "/topics", safe=True)
WORKERS = Verb("queue", "GET", _NS + "/workers", safe=True)
WORKER_REPORT = Verb("queue", "POST", _NS + "/workers", safe=True)
TOPIC_PAUSE = Verb("queue", "POST", _NS + "/topics/pause", safe=True)
TOPIC_RESUME = Verb("queue", "POST", _NS + "/topics/resume", safe=True)
TOPIC_PURGE = Verb("queue", "POST", _NS + "/topics/purge", safe=False)
TOPIC_REDRIVE = Verb("queue", "POST", _NS + "/topics/redrive", safe=False)
TOPIC_LIMITS = Verb("queue", "GET", _NS + "/topics/limits", safe=True)
TOPIC_UNTHROTTLE = Verb("queue", "POST", _NS + "/topics/unthrottle", safe=True)
TOPIC_LIMITS_PUT = Verb("queue", "PUT", _NS + "/topics/limits", safe=True)
TOPIC_CONFIGURE = Verb("queue", "POST", _NS + "/topics/configure", safe=True)
OPERATION_BEGIN = Verb("queue", "POST", _NS + "/operations", safe=False)
OPERATIONS = Verb("queue", "GET", _NS + "/operations", safe=True)
OPERATION = Verb("queue", "GET", _NS + "/operations/{operation}", safe=True)
OPERATION_CANCEL = Verb("queue", "POST", _NS + "/operations/{operation}/cancel", safe=True)
DEAD = Verb("queue", "GET", _NS + "/dead", safe=True)
NAMESPACE_PUT = Verb("queue", "PUT", _NS, safe=True)
NAMESPACE = Verb("queue", "GET", _NS, safe=True)
NAMESPACES = Verb("queue", "GET", "/v1/namespaces", safe=True)
DAG_QUOTA_PUT = Verb("dag", "PUT", _NS, safe=True)
DAG_QUOTA = Verb("dag", "GET", _NS, safe=True)
SHARD = Verb("queue", "GET", "/v1/shards/{shard}", safe=True)
WHY = Verb("queue", "GET", _NS + "/why", safe=True)
SHARDS = Verb("queue", "GET", "/v1/shards", safe=True)

DAG_CREATE = Verb("dag", "POST", _NS + "/dags", safe=False)
DAGS = Verb("dag", "GET", _NS + "/dags", safe=True)
DAG = Verb("dag", "GET", _DAG, safe=True)
DAG_NODES_ADD = Verb("dag", "POST", _DAG + "/nodes", safe=True)
DAG_DEPENDENCIES_ADD = Verb("dag", "POST", _DAG + "/dependencies", safe=True)
DAG_RESOLVE = Verb("dag", "POST", _DAG + "/resolve", safe=True)
DAG_RELEASE = Verb("dag", "POST", _DAG + "/release", safe=True)
DAG_CLOSE = Verb("dag", "POST", _DAG + "/close", safe=True)
DAG_PAUSE = Verb("dag", "POST", _DAG + "/pause", safe=True)
DAG_RESUME = Verb("dag", "POST", _DAG + "/resume", safe=True)
DAG_CANCEL = Verb("dag", "POST", _DAG + "/cancel", safe=True)
DAG_NODES_CANCEL = Verb("dag", "POST", _DAG + "/nodes/cancel", safe=True)
DAG_RETRY = Verb("dag", "POST", _DAG + "/retry", safe=False)
DAG_SKIP = Verb("dag", "POST", _DAG + "/skip", safe=True)
DAG_NODES = Verb("dag", "GET", _DAG + "/nodes", safe=True)
DAG_NODE = Verb("dag", "GET", _DAG + "/node", safe=True)
DAG_EXPAND = Verb("dag", "POST", _DAG + "/expand", safe=True)
DAG_OUTPUTS = Verb("dag", "GET", _DAG + "/outputs", safe=True)
DAG_NODE_INPUTS = Verb("dag", "GET", _DAG + "/node/inputs", safe=True)
DAG_NODE_OUTPUT = Verb("dag", "GET", _DAG + "/node/output", safe=True)
DAG_WAIT = Verb("dag", "GET", _DAG + "/wait", safe=True)
DAG_EVENTS = Verb("dag", "GET", _DAG + "/events", safe=True)
DAG_GRAPH = Verb("dag", "GET", _DAG + "/graph", safe=True)
DAG_VALUE_PUT = Verb("dag", "PUT", _DAG + "/values/{key}", safe=True)
DAG_VALUE = Verb("dag", "GET", _DAG + "/values/{key}", safe=True)
DAG_VALUES = Verb("dag", "GET", _DAG + "/values", safe=True)
DAG_FRONTIER = Verb("dag", "GET", _DAG + "/frontier", safe=True)
EXTERNALS = Verb("dag", "GET", _NS + "/externals", safe=True)
DAG_WHY = Verb("dag", "GET", _DAG + "/why", safe=True)
DAG_TIMELINE = Verb("dag", "GET", _DAG + "/timeline", safe=True)
DAG_TIMELINES = Verb("dag", "GET", _DAG + "/timelines", safe=True)
DAG_EXPORT = Verb("dag", "GET", _DAG + "/export", safe=True)
EXPORT_DAGS = Verb("dag", "GET", _NS + "/exports/dags", safe=True)
EXPORT_MARK = Verb("dag", "GET", _NS + "/exports/mark", safe=True)
EXPORT_MARK_PUT = Verb("dag", "PUT", _NS + "/exports/mark", safe=True)
_SCHEDULE: Final = _NS + "/schedules/{schedule}"
SCHEDULE_PUT = Verb("dag", "PUT", _SCHEDULE, safe=True)
SCHEDULE = Verb("dag", "GET", _SCHEDULE, safe=True)
SCHEDULES = Verb("dag", "GET", _NS + "/schedules", safe=True)
SCHEDULE_DELETE = Verb("dag", "DELETE", _SCHEDULE, safe=True)
SCHEDULE_PAUSE = Verb("dag", "POST", _SCHEDULE + "/pause", safe=True)
SCHEDULE_RESUME = Verb("dag", "POST", _SCHEDULE + "/resume", safe=True)
SCHEDULE_TRIGGER = Verb("dag", "POST", _SCHEDULE + "/trigger", safe=True)
SCHEDULE_BACKFILL = Verb("dag", "POST", _SCHEDULE + "/backfill", safe=True)
SCHEDULE_TICKS = Verb("dag", "GET", _SCHEDULE + "/ticks", safe=True)
DAG_SHARDS = Verb("dag", "GET", "/v1/shards", safe=True)


@dataclass(frozen=True, slots=True)
class Parts:
    """Which elements of a batch may be sent again by themselves, and the call of some of them."""

    positions: Collection[int]
    call: Callable[[Sequence[int]], "Call[list[Result]]"]


@dataclass(slots=True)
class Call(Generic[T]):
    """One request, ready to send. `wait_s` is how long the service may hold the answer back."""

    verb: Verb
    target: str
    parse: Callable[[Any], T]
    body: bytes | None
    safe: bool
    wait_s: float = 0.0
    text: bool = False
    parts: Parts | None = None


def call(
    verb: Verb,
    parse: Callable[[Any], T],
    *,
    body: Any = None,
    query: Mapping[str, Any] | None = None,
    safe: bool | None = None,
    wait_s: float = 0.0,
    text: bool = False,
    **names: str,
) -> Call[T]:
    """A call of `verb`; `names` fill its path, what is None in `query` is left out.

    Raises:
        Invalid: a name is empty, which would lead to another verb.
    """
    if not all(names.values()):
        for name, value in names.items():
            if not value and f"{{{name}}}" in verb.path:
                raise Invalid(f"give the {'namespace' if name == 'ns' else name}: it is empty")
    target = verb.path.format_map({name: quote(value, safe="") for name, value in names.items()})
    asked = {name: value for name, value in (query or {}).items() if value is not None}
    if asked:
        target = f"{target}?{urlencode(asked)}"
    encoded = None if verb.method in ("GET", "DELETE") else encode({} if body is None else body)
    return Call(verb, target, parse, encoded, verb.safe if safe is None else safe, wait_s, text)


def encode(body: Any) -> bytes:
    """A body as compact UTF-8 JSON.

    Raises:
        Invalid: it holds what JSON cannot say (NaN, a set, half of a surrogate pair).
    """
    try:
        return _encoder.encode(body).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"cannot be sent as JSON: {error}") from None


def _foreign(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, timedelta):
        raise TypeError(f"a timedelta has no JSON form; durations are seconds, like {value.total_seconds():g}")
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_foreign)


def results(answer: Any) -> list[Result]:
    return [Result.parse(element) for element in answer["results"]]


def leased(answer: Any) -> list[Leased]:
    return [Leased.parse(element) for element in answer["items"]]


def dequeued(answer: Any) -> Dequeued:
    settled = answer["results"]
    acks, nacks = ([Result.parse(element) for element in settled[verb]] for verb in ("acks", "nacks"))
    return Dequeued(leased(answer), acks, nacks)


def page_of(model: type[M]) -> Callable[[Any], Part[M]]:
    """Parses one page of a list."""

    def parse(answer: Any) -> Part[M]:
        elements = [model.model_validate(element) for element in answer["items"]]
        return Part(elements, answer.get("next_cursor"), answer.get("away", ()))

    return parse


def results_of(model: type[M]) -> Callable[[Any], list[M]]:
    """Parses the results of a batch that are more than a status."""
    return lambda answer: [model.model_validate(element) for element in answer["results"]]


def as_is(answer: Any) -> Any:
    return answer


def batch(
    verb: Verb, ns: str, elements: Sequence[Any], *, field: str = "items", again: bool = True
) -> Call[list[Result]]:
    """A batch verb of the queue on up to 1,000 elements; with `again`, refused ones are sent again."""
    made = call(verb, results, ns=ns, body={field: elements})
    if again:
        build = partial(batch, verb, ns, field=field)
        made.parts = Parts(range(len(elements)), lambda chosen: build([elements[at] for at in chosen]))
    return made


def enqueue(ns: str, items: Sequence[Mapping[str, Any]], movable: Collection[str] = ()) -> Call[list[Result]]:
    """Enqueue items. Refused ones are sent again if they are known by an id that is not `movable`, or by a key."""
    named = [
        at
        for at, item in enumerate(items)
        if item.get("id") is not None or item.get("idempotency_key") is not None
    ]
    made = call(ENQUEUE, results, ns=ns, body={"items": items}, safe=len(named) == len(items))
    if named:
        staying = {at for at in named if items[at].get("id") not in movable}
        made.parts = Parts(staying, lambda chosen: enqueue(ns, [items[at] for at in chosen]))
    return made


def enqueue_encoded(ns: str, texts: Sequence[str]) -> Call[list[Result]]:
    """Enqueue items that are JSON texts, each with an id."""
    made = call(ENQUEUE, results, ns=ns, safe=True)
    made.body = f'{{"items":[{",".join(texts)}]}}'.encode()
    made.parts = Parts(range(len(texts)), lambda chosen: enqueue_encoded(ns, [texts[at] for at in chosen]))
    return made


def dequeue(
    ns: str, topics: Mapping[str, int], *, wait_s: float, lease_s: float | None, worker: str | None
) -> Call[list[Leased]]:
    body = _demand(topics, wait_s, lease_s, worker)
    return call(DEQUEUE, leased, ns=ns, body=body, wait_s=wait_s)


def settle_and_dequeue(
    ns: str,
    topics: Mapping[str, int],
    acks: Sequence[Any],
    nacks: Sequence[Any],
    *,
    wait_s: float,
    lease_s: float | None,
    worker: str | None,
) -> Call[Dequeued]:
    body = _demand(topics, wait_s, lease_s, worker)
    body["settle"] = {"acks": acks, "nacks": nacks}
    return call(DEQUEUE, dequeued, ns=ns, body=body, wait_s=wait_s)


def _demand(topics: Mapping[str, int], wait_s: float, lease_s: float | None, worker: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {"topics": [{"topic": topic, "count": count} for topic, count in topics.items()]}
    return body | present(wait_s=wait_s or None, lease_s=lease_s, worker=worker)


def present(**fields: Any) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def unique(names: Iterable[str]) -> list[str]:
    """The names, each once, in their order."""
    return list(dict.fromkeys(names))
