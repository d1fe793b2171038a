"""A worker's task: the handler of a topic, what runs of it, and what waits for a slot."""

import asyncio
import inspect
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headgate._worker.job import Handler, Job
from headgate.wire import BATCH_MAX, WAIT_S_MAX

# Without a `prefetch` of its own a task takes what it will begin within so long, so many times its slots at most.
PREFETCH_S: Final = 0.05
PREFETCH_SLOTS_MAX: Final = 4
# A dequeue that is not answered by then waits for items.
ANSWER_S: Final = 0.02


def check_options(wait_s: float, prefetch: int | None, processes: int, metrics_port: int | None) -> None:
    """Raises ValueError for what no worker may be given."""
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise ValueError(f"wait_s must be 0 to {WAIT_S_MAX}")
    if processes < 1:
        raise ValueError("processes must be 1 or more")
    if metrics_port is not None and processes > 1:
        raise ValueError("processes of a worker cannot share a metrics_port: start each by itself")
    check_prefetch(prefetch)


def check_topic(topic: object) -> None:
    """Raises TypeError for a function: of a decorator without its parentheses."""
    if not isinstance(topic, str):
        raise TypeError(
            f"a task is of a topic, as in task({getattr(topic, '__name__', 'mail')!r}), not of {topic!r}"
        )


def check_task(topic: object, slots: int, max_attempts: int, prefetch: int | None) -> None:
    """Raises ValueError, or TypeError, for what no task may have."""
    check_topic(topic)
    if not 1 <= slots <= BATCH_MAX:
        raise ValueError(f"slots must be 1 to {BATCH_MAX}")
    if max_attempts < 0:
        raise ValueError("max_attempts must not be negative; 0 is no end")
    check_prefetch(prefetch)


def check_prefetch(prefetch: int | None) -> None:
    """Raises ValueError for one that no worker may have."""
    if prefetch is not None and not 0 <= prefetch < BATCH_MAX:
        raise ValueError(f"prefetch must be 0 to {BATCH_MAX - 1}")


@dataclass(slots=True)
class Task:
    """A topic's handler, what runs of it, and what waits for a slot."""

    topic: str
    handler: Handler
    slots: int
    lease_s: float
    max_attempts: int
    prefetch: int | None
    running: int = 0
    waiting: deque[Job] = field(default_factory=deque)
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    asked_s: float | None = None  # since when the worker asks for more
    is_settling: bool = False  # with the call that asks
    has_backlog: bool = False  # the last answer was as many as were asked for
    handled_s: float | None = None  # how long a handler takes, of late

    def room(self) -> int:
        """How many more items to ask for. With no slot free, none, unless there are more to be had at once."""
        free = self.slots - self.running - len(self.waiting)
        return max(free + self._ahead(), 0) if free > 0 or self.has_backlog else 0

    def _ahead(self) -> int:
        if self.prefetch is not None:
            return self.prefetch
        if self.handled_s is None:
            return 0
        begun = self.slots * PREFETCH_S / max(self.handled_s, 1e-6)
        return int(min(begun, self.slots * PREFETCH_SLOTS_MAX, BATCH_MAX - self.slots))

    def asks_soon(self, now_s: float) -> bool:
        """Whether a dequeue is about to be made, maybe behind one that the last answer says will not wait."""
        if self.asked_s is None:
            return self.room() > 0
        return self.has_backlog and now_s - self.asked_s < ANSWER_S

    def handled(self, seconds: float) -> None:
        """A handler has ended."""
        before_s = seconds if self.handled_s is None else self.handled_s
        self.handled_s = before_s + (seconds - before_s) / 8


def in_loop(tasks: Mapping[str, Task]) -> list[str]:
    """The handlers at work that may block the event loop."""
    return [
        f"{getattr(task.handler, '__qualname__', task.handler)!s} of {task.topic!r}"
        for task in tasks.values()
        if task.running and inspect.iscoroutinefunction(task.handler)
    ]
