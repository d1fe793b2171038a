"""The machines of a world's processes: each makes ids by a clock of its own, which may be off.

Which machine code runs on is told by its context: tasks inherit it from what began them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context

from headgate import _ids as ids
from headgate._ids import IdMaker

_MAKER: ContextVar[IdMaker | None] = ContextVar("maker", default=None)


def machine(now_s: Callable[[], float], ahead_s: float) -> Context:
    """A machine whose clock is so far ahead of the world's."""
    context = copy_context()
    context.run(_MAKER.set, IdMaker(now_ms=lambda: int((now_s() + ahead_s) * 1000)))
    return context


class _Here(IdMaker):
    """Makes ids as the machine does that this runs on; one whose clock is right where it runs on none."""

    def make(self, shard: int, count: int = 1) -> list[str]:
        maker = _MAKER.get()
        return super().make(shard, count) if maker is None else maker.make(shard, count)


@contextmanager
def machines(now_s: Callable[[], float]) -> Iterator[None]:
    """The services make ids by the world's time, which no other world's ids are ahead of."""
    before = ids._maker
    ids._maker = _Here(now_ms=lambda: int(now_s() * 1000))
    try:
        yield
    finally:
        ids._maker = before
