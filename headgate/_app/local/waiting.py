"""The items that wait in `app.testing()`, topic by topic."""

import heapq
import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headgate._app.local.dag import LocalNode
from headgate._app.local.gate import LocalGates
from headgate._worker.job import Job

Entry = tuple[float, int, int, "LocalItem"]


@dataclass(eq=False)
class LocalItem:
    """An item, of a node or of its own."""

    id: str
    spec: dict[str, Any]
    due_s: float
    enqueued_at: datetime
    node: LocalNode | None = None
    generation: int = 1
    attempt: int = 1
    state: str = "ready"
    job: Job | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        return self.state in ("ready", "delayed")


class Waiting:
    """Those of one topic, by when they are due."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def due_s(self) -> float:
        """When the first of them is due."""
        return self._entries[0][0]

    def put(self, item: LocalItem) -> None:
        self._count += 1
        heapq.heappush(self._entries, (item.due_s, int(item.spec.get("priority") or 0), self._count, item))

    def take(self, now_s: float, gates: LocalGates) -> tuple[LocalItem | None, float]:
        """The best item that is due and may be delivered; where there is none, when there may be one."""
        again_s = math.inf
        due = [entry for entry in self._entries if entry[0] <= now_s]
        while due:
            best = min(due, key=_rank)
            item = best[3]
            open_s = (
                gates.open_s(item.spec["topic"], item.spec.get("fairness_key"), now_s) if item.is_there else now_s
            )
            due.remove(best)
            if open_s > now_s:
                again_s = min(again_s, open_s)
                continue
            self._entries.remove(best)
            heapq.heapify(self._entries)
            if item.is_there:
                return item, now_s
        return None, again_s


def _rank(entry: Entry) -> tuple[int, int]:
    return entry[1:3]
