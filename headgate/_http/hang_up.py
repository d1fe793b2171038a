"""Hanging up on calls that wait for an answer, without losing one that is on its way.

Of a call that is cancelled nobody reads the answer, though its server may have written it: items are then leased
to nobody. Here the connection is closed in one direction only. The server takes that for the end of its client;
what it has written by then still comes, before the end of its own direction.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final


class HangUp:
    """Some calls, all of which may be hung up on at once."""

    def __init__(self) -> None:
        self._is_over = False
        self._calls: dict[asyncio.Task[Any] | None, Callable[[], None]] = {}

    @contextmanager
    def reaches(self) -> Iterator[None]:
        """The calls that are made here, in this task, are of these."""
        token = _reaching.set(self)
        try:
            yield
        finally:
            _reaching.reset(token)
            self._calls.pop(asyncio.current_task(), None)

    def wait_with(self, hang_up: Callable[[], None]) -> None:
        """This task is about to send a call, and then waits for its answer.

        Raises:
            asyncio.CancelledError: it has been hung up on already.
        """
        if self._is_over:
            raise asyncio.CancelledError
        self._calls[asyncio.current_task()] = hang_up

    def all(self) -> list[asyncio.Task[Any]]:
        """Hang up on all; the tasks of those that wait. They go on with an answer, or are cancelled."""
        self._is_over = True
        for hang_up in self._calls.values():
            hang_up()
        return [task for task in self._calls if task is not None]


_reaching: Final[ContextVar[HangUp | None]] = ContextVar("headgate_hang_up", default=None)


def may_be_hung_up(hang_up: Callable[[], None]) -> None:
    """As `HangUp.wait_with`, of those whose call this is; of most it is nobody's."""
    reaching = _reaching.get()
    if reaching is not None:
        reaching.wait_with(hang_up)
