"""SIGTERM and SIGINT for all workers of an event loop: it keeps one handler per signal, the last that was set."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)

_listeners: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}


@contextlib.contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at each signal meanwhile. Only the main thread gets signals; elsewhere this is nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    listeners = _listeners.setdefault(loop, [])
    if not listeners:
        for number in NUMBERS:
            loop.add_signal_handler(number, _tell, listeners)
    listeners.append(stop)
    try:
        yield
    finally:
        listeners.remove(stop)
        if not listeners:
            del _listeners[loop]
            for number in NUMBERS:
                loop.remove_signal_handler(number)


def _tell(listeners: list[Callable[[], None]]) -> None:
    for stop in list(listeners):
        stop()
