"""SIGTERM and SIGINT for all workers of an event loop: it keeps one handler per signal, the last that was set.

A terminal's Ctrl-C, and systemd, tell every process of a group; a supervisor passes what it is told on to its
workers besides. So for a worker that is looked after any number of these is one: only its supervisor, which is
told once each time, says that it is the second.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)
# What a supervisor passes on from the second signal on. (Windows has no such signal.)
HURRY: Final = getattr(signal, "SIGUSR1", signal.SIGTERM)


class _Listeners:
    """The workers of an event loop."""

    def __init__(self, numbers: tuple[signal.Signals, ...], *, is_looked_after: bool) -> None:
        self.numbers = numbers
        self.stops: list[Callable[[], None]] = []
        self._is_looked_after = is_looked_after
        self._is_told = False

    def tell(self, number: signal.Signals) -> None:
        """Pass a signal on, unless it is the same one again."""
        times = 1
        if self._is_looked_after:
            # The first signal may come behind the second: of several that wait, lower numbers come first.
            times = (number == HURRY) + (not self._is_told)
            self._is_told = True
        for _ in range(times):
            for stop in list(self.stops):
                stop()


_listeners: dict[asyncio.AbstractEventLoop, _Listeners] = {}


@contextlib.contextmanager
def on_signals(stop: Callable[[], None], *, is_looked_after: bool) -> Iterator[None]:
    """Call `stop` at each signal meanwhile. Only the main thread gets signals; elsewhere this is nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    listeners = _listeners.get(loop)
    if listeners is None:
        numbers = (*NUMBERS, HURRY) if is_looked_after else NUMBERS
        listeners = _listeners[loop] = _Listeners(numbers, is_looked_after=is_looked_after)
        for number in numbers:
            loop.add_signal_handler(number, listeners.tell, number)
    listeners.stops.append(stop)
    try:
        yield
    finally:
        listeners.stops.remove(stop)
        if not listeners.stops:
            del _listeners[loop]
            for number in listeners.numbers:
                loop.remove_signal_handler(number)
