"""Hanging up on calls that wait for an answer, without losing one that is on its way.

Of a call that is cancelled nobody reads the answer, though its server may have written it: items are then leased
to nobody. Here the connection is closed in one direction only. The server takes that for the end of its client;
what it has written by then still comes, before the end of its own direction. TLS has no such half of an end: there
a call is cancelled.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Final, Protocol


class Call(Protocol):
    """A call that waits for its answer, of which so many bytes have come."""

    received: int

    def hang_up(self) -> None: ...


class HangUp:
    """Some calls, all of which may be hung up on at once."""

    def __init__(self) -> None:
        self._is_over = False
        self._calls: dict[asyncio.Task[Any] | None, Call] = {}

    @contextmanager
    def reaches(self) -> Iterator[None]:
        """The calls that are made here, in this task, are of these."""
        token = _reaching.set(self)
        try:
            yield
        finally:
            _reaching.reset(token)

    @contextmanager
    def waits(self, call: Call) -> Iterator[None]:
        """This task sends a call here, and waits for its answer; behind that the connection is another call's.

        Raises:
            asyncio.CancelledError: it has been hung up on already.
        """
        if self._is_over:
            raise asyncio.CancelledError
        task = asyncio.current_task()
        self._calls[task] = call
        try:
            yield
        finally:
            self._calls.pop(task, None)

    def all(self) -> None:
        """Hang up on all. The tasks that wait go on with an answer, or are cancelled."""
        self._is_over = True
        for call in self._calls.values():
            call.hang_up()

    async def come(self, s_max: float) -> bool:
        """Wait until all have ended, for so long at most; whether more of an answer has come meanwhile to one that
        has not."""
        before = {call: call.received for call in self._calls.values()}
        if waiting := [task for task in self._calls if task is not None]:
            await asyncio.wait(waiting, timeout=s_max)
        return any(call.received > before.get(call, 0) for call in self._calls.values())


_reaching: Final[ContextVar[HangUp | None]] = ContextVar("headgate_hang_up", default=None)


def may_be_hung_up(call: Call) -> AbstractContextManager[None]:
    """As `HangUp.waits`, of those whose call this is; of most it is nobody's."""
    reaching = _reaching.get()
    return _NOBODYS if reaching is None else reaching.waits(call)


_NOBODYS: Final = nullcontext()
