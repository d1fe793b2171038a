"""Who did what when, written down by every process of the demo and read once they have ended.

Times are `time.monotonic()`, which all processes of one machine share.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headgate import Ack, AsyncClient, Dequeued, Leased, Result


class TraceWriter:
    """Appends one JSON line per event to a file of its own."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, what: str, at: float | None = None, **about: Any) -> None:
        """Note an event that happens now, or happened `at`."""
        about |= {"what": what, "at": time.monotonic() if at is None else at}
        self._file.write(json.dumps(about) + "\n")


class TracedClient(AsyncClient):
    """A client that writes down each item it was given and each ack that it sent."""

    def __init__(self, trace: TraceWriter, name: str) -> None:
        super().__init__()
        self._trace = trace
        self._name = name

    async def dequeue(self, topics: Mapping[str, int], **options: Any) -> list[Leased]:
        """As the client's own."""
        items = await super().dequeue(topics, **options)
        self._delivered(items)
        return items

    async def ack(self, items: Sequence[Ack], **options: Any) -> list[Result]:
        """As the client's own."""
        sent = time.monotonic()
        results = await super().ack(items, **options)
        self._acked(results, sent)
        return results

    async def settle_and_dequeue(self, topics: Mapping[str, int], **options: Any) -> Dequeued:
        """As the client's own."""
        sent = time.monotonic()
        found = await super().settle_and_dequeue(topics, **options)
        self._acked(found.acks, sent)
        self._delivered(found.items)
        return found

    def _delivered(self, items: Sequence[Leased]) -> None:
        now = time.monotonic()
        for item in items:
            assert item.dag is not None
            about = {"dag": item.dag.id, "node": item.dag.node, "item": item.id, "worker": self._name}
            self._trace.write("delivered", now, **about)

    def _acked(self, results: Sequence[Result], sent: float) -> None:
        answered = time.monotonic()
        for result in results:
            self._trace.write("acked", sent, item=result.id, status=result.status, answered=answered)


@dataclass(frozen=True)
class Delivery:
    """One delivery of a node to a worker."""

    at: float
    worker: str


@dataclass(frozen=True)
class Settled:
    """The ack of a node: when it was sent, and when its answer came."""

    sent: float
    answered: float


@dataclass
class Trace:
    """What happened in one DAG, by node key."""

    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    acks: dict[str, list[Settled]] = field(default_factory=dict)
    resolves: dict[str, float] = field(default_factory=dict)


def read(directory: Path) -> dict[str, Trace]:
    """The traces of all processes that wrote into a directory, by DAG id."""
    events = [json.loads(line) for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    events.sort(key=lambda event: event["at"])
    found: dict[str, Trace] = {}
    nodes: dict[str, tuple[str, str]] = {}
    for event in events:
        match event["what"]:
            case "delivered":
                trace = found.setdefault(event["dag"], Trace())
                nodes[event["item"]] = event["dag"], event["node"]
                trace.deliveries.setdefault(event["node"], []).append(Delivery(event["at"], event["worker"]))
            case "acked" if event["status"] in ("acked", "already_acked"):
                dag, node = nodes[event["item"]]
                found[dag].acks.setdefault(node, []).append(Settled(event["at"], event["answered"]))
            case "resolving":
                found.setdefault(event["dag"], Trace()).resolves[event["node"]] = event["at"]
    return found
