"""What readers share: what they found, what did not map, limits, and faults with their place."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from headgate._calls.dag import Dag, Node
from headgate.errors import Invalid
from headgate.wire import (
    DELAY_S_MAX,
    INT32_MAX,
    JSON_DEPTH_MAX,
    KEY_BYTES_MAX,
    LEASE_S_MAX,
    NAME_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    encoded_bytes,
)

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
NODES_MAX: Final = 500_000
EDGES_MAX: Final = 5_000_000
BACKOFF_S_MAX: Final = 43_200.0
# What nests deeper is no graph that somebody wrote; Python's own limits are near.
FILE_DEPTH_MAX: Final = 256
# Around a payload a call has three levels: its object, the list of nodes, the node.
PAYLOAD_DEPTH_MAX: Final = JSON_DEPTH_MAX - 3
INTEGER_DIGITS_MAX: Final = 19
SHOWN_CHARS_MAX: Final = 60

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")

Effect = Literal["left out", "changed"]


class Fault(Invalid):
    """The file cannot be read; `where` is a line, or a JSON pointer."""

    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"{where}: {detail}" if where else detail)


class Unmapped(NamedTuple):
    """Something that a DAG does not have: where it stands first, how often, and what became of it."""

    what: str
    effect: Effect
    note: str
    where: str
    times: int


@dataclass(frozen=True)
class Options:
    """How to import: the topic of nodes, and of those whose kind is named in `topics`."""

    topic: str = "import"
    topics: Mapping[str, str] = field(default_factory=dict)
    goals: tuple[str, ...] = ()

    def topic_of(self, *kinds: object) -> str:
        """The topic of the first kind that has one; what is no text is no kind."""
        return next(
            (self.topics[kind] for kind in kinds if isinstance(kind, str) and kind in self.topics), self.topic
        )


class Found:
    """A DAG being read."""

    def __init__(self, dag: Dag) -> None:
        self.dag = dag
        self.edges = 0
        self._unmapped: dict[tuple[str, Effect, str], tuple[str, int]] = {}

    @property
    def unmapped(self) -> list[Unmapped]:
        """What did not map, what changes meaning first."""
        found = [Unmapped(*kind, *place) for kind, place in self._unmapped.items()]
        return sorted(found, key=lambda entry: entry.effect)

    def leave(self, what: str, where: str, note: str = "", *, changed: bool = False) -> None:
        """Note that something does not map."""
        kind: tuple[str, Effect, str] = (what, "changed" if changed else "left out", note)
        first, count = self._unmapped.get(kind, (where, 0))
        self._unmapped[kind] = (first, count + 1)

    def node(self, where: str, key: str, topic: str, *, payload: Any = None, **options: Any) -> Node:
        """Add a node.

        Raises:
            Fault: its key is taken or is none, or there are too many.
        """
        if not 1 <= len(key.encode()) <= KEY_BYTES_MAX or not key.isprintable():
            raise Fault(where, f"{shown(key)} cannot be a key: 1 to {KEY_BYTES_MAX} bytes, no control characters")
        if key in self.dag.nodes:
            raise Fault(where, f"{shown(key)} is there twice")
        if len(self.dag.nodes) >= NODES_MAX:
            raise Fault(where, f"there are over {NODES_MAX} nodes")
        return self.dag.node(key, topic, payload=self._fitting(where, payload), **options)

    def depend(self, where: str, upstream: str, downstream: str) -> None:
        """Add an edge between nodes that are there; one that exists is a no-op.

        Raises:
            Fault: a node waits for itself, or there are too many edges.
        """
        if upstream == downstream:
            raise Fault(where, f"{shown(upstream)} waits for itself")
        self.edges += 1
        if self.edges > EDGES_MAX:
            raise Fault(where, f"there are over {EDGES_MAX} edges")
        self.dag.nodes[downstream].upstream.append(upstream)

    def close(self) -> "Found":
        """All is read: edges that were named twice become one.

        Raises:
            Fault: there is no node.
            Cycle: nodes wait for one another.
        """
        if not self.dag.nodes:
            raise Fault("", "there is nothing in it that could be a node")
        for node in self.dag.nodes.values():
            node.upstream = list(dict.fromkeys(node.upstream))
        self.edges = sum(len(node.upstream) for node in self.dag.nodes.values())
        self.dag.ordered()
        return self

    def _fitting(self, where: str, payload: Any) -> Any:
        """A payload without the parts that nest too deep, nor its largest ones as long as it is over the limit."""
        if isinstance(payload, dict):
            deep = [name for name, value in payload.items() if _is_deeper(value, PAYLOAD_DEPTH_MAX - 1)]
            for name in deep:
                self.leave(f"payload field {name}", where, f"nested over {PAYLOAD_DEPTH_MAX} levels deep")
            payload = {name: value for name, value in payload.items() if name not in deep} if deep else payload
        while isinstance(payload, dict) and payload and encoded_bytes(payload) > PAYLOAD_BYTES_MAX:
            largest = max(payload, key=lambda name: encoded_bytes(payload[name]))
            payload = {name: value for name, value in payload.items() if name != largest}
            self.leave(f"payload field {largest}", where, f"over {PAYLOAD_BYTES_MAX} bytes")
        return payload


def load_json(text: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        Fault: it is not JSON, or no object; it nests too deep; a number or text in it is none for the service.
    """
    try:
        found = json.loads(text, parse_int=_integer, parse_float=_finite, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise Fault(f"line {error.lineno}", f"this is not JSON: {error.msg}") from None
    except RecursionError:
        raise Fault("", f"it nests over {FILE_DEPTH_MAX} levels deep") from None
    if not isinstance(found, dict):
        raise Fault("", "it should hold a JSON object")
    if _is_deeper(found, FILE_DEPTH_MAX):
        raise Fault("", f"it nests over {FILE_DEPTH_MAX} levels deep")
    if _HALF_PAIR.search(text):
        try:
            encoded_bytes(found)
        except UnicodeEncodeError:
            raise Fault(
                "", "a text in it holds half of a surrogate pair, like \\ud83d, which is no character"
            ) from None
    return found


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > INTEGER_DIGITS_MAX:
        raise Fault("", f"{shown(digits, quoted=False)} is over {INTEGER_DIGITS_MAX} digits long")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise Fault("", f"{shown(digits, quoted=False)} is more than a number can be")
    return number


def _no_number(name: str) -> float:
    raise Fault("", f"{name} is no JSON number")


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects nest in one another over so many levels."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)


def shown(value: Any, *, quoted: bool = True) -> str:
    """Something of the file as a message shows it, in short."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = value if isinstance(value, str) else str(value)
    text = text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}..."
    return repr(text) if quoted and isinstance(value, str) else text


def whole(value: Any, where: str) -> int | None:
    """A whole number; None for anything else.

    Raises:
        Fault: it is more than the service takes.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    if abs(value) > INT32_MAX:
        raise Fault(where, f"{value} is too much: at most {INT32_MAX} are taken")
    return value


def name_of(value: Any) -> str | None:
    """A DAG's name; None for what cannot be one."""
    fits = isinstance(value, str) and 0 < len(value.encode()) <= NAME_BYTES_MAX and value.isprintable()
    return value if fits else None


def pointer(*parts: Any) -> str:
    """A JSON pointer."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def members(holder: Any, name: str, where: str, kind: type) -> Any:
    """A member of a JSON object; an empty one of its kind where it is absent.

    Raises:
        Fault: it is something else.
    """
    if not isinstance(holder, dict):
        raise Fault(where, "it should be an object")
    value = holder.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise Fault(f"{where}/{name}", f"it should be {_ARTICLES.get(kind, kind.__name__)}")
    return value


_ARTICLES: Final[dict[type, str]] = {list: "a list", dict: "an object", str: "a string"}


def seconds(value: Any) -> float | None:
    """A number of seconds that is positive; None for anything else."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(value) if number else None


def backoff(base_s: float, factor: float, max_s: float | None) -> dict[str, float]:
    """A backoff within the service's limits."""
    base_s = min(max(base_s, 0.0), BACKOFF_S_MAX)
    return {
        "base_s": base_s,
        "factor": min(max(factor, 1.0), 100.0),
        "max_s": min(max(max_s or base_s, base_s), BACKOFF_S_MAX),
    }


def delay(value: float) -> float:
    """A delay within the service's limits."""
    return min(value, float(DELAY_S_MAX))


def lease(value: float) -> float:
    """A lease within the service's limits."""
    return min(max(value, 1.0), float(LEASE_S_MAX))


def strings(values: Iterable[Any], where: str) -> list[str]:
    """These, all of them strings.

    Raises:
        Fault: one is not.
    """
    found = list(values)
    for position, value in enumerate(found):
        if not isinstance(value, str):
            raise Fault(f"{where}/{position}", "it should be a string")
    return found
