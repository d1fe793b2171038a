"""Daemon threads that run one handler after another: starting one for each would cost more than a short handler.

There are as many as handlers run at once, and those that have been idle for a moment. They are daemons, so that a
handler that never returns cannot keep the process from ending; the child of a fork begins with none.
"""

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

IDLE_S_MAX: Final = 10.0

Work = Callable[[], None]


class _Thread(threading.Thread):
    def __init__(self, threads: "Threads") -> None:
        super().__init__(name="headgate-idle", daemon=True)
        self.work: SimpleQueue[tuple[str, Work]] = SimpleQueue()
        self._threads = threads

    def run(self) -> None:
        while True:
            try:
                name, work = self.work.get(timeout=self._threads.idle_s_max)
            except Empty:
                if self._threads.leave(self):
                    return
                continue  # it has just been given something
            self.name = name
            work()
            del work  # what it held is not to be kept for as long as nothing else comes


class Threads:
    """Those of a process."""

    def __init__(self, idle_s_max: float = IDLE_S_MAX) -> None:
        self.idle_s_max = idle_s_max
        self._idle: list[_Thread] = []

    def run(self, name: str, work: Callable[[Work], None]) -> threading.Thread:
        """Run `work` in a thread of this name. It is given what to call when nothing of it is left to do but to
        tell of its end: then the thread may be given to another."""
        try:
            thread = self._idle.pop()  # the one used last, so that the others grow old and go
        except IndexError:
            thread = _Thread(self)
            thread.start()
        thread.work.put((name, lambda: work(lambda: self._idle.append(thread))))
        return thread

    def leave(self, thread: _Thread) -> bool:
        """Whether a thread that nothing came for may end."""
        try:
            self._idle.remove(thread)
        except ValueError:
            return False
        return True

    def forget(self) -> None:
        """None of them is in this process."""
        self._idle = []


threads = Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=threads.forget)
