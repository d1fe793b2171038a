"""A call leaves nothing behind that refers to itself: the collector's looks would cost all others their time."""

import gc
from collections import Counter

from services.queue.store.dequeue_encoding import Leased
from shared.http.fast_http import Exchange
from shared.http.hot_path import Answer, Call
from tests.support.queue_host import Api

OURS = (Call, Answer, Exchange, Leased)
CYCLES = 10


async def test_cycles_of_an_item_leave_no_garbage(api: Api) -> None:
    async def cycle() -> None:
        await api.enqueue_one("t")
        await api.ack(*await api.dequeue("t", 1, wait_s=5))

    await cycle()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(CYCLES):
            await cycle()
        gc.collect()
        found = Counter(type(left).__name__ for left in gc.garbage if isinstance(left, OURS))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found == {}
