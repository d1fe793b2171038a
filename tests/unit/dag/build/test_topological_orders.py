"""Orders in memory: as many as there is room for, whoever made them and however their edges came."""

import random
import tracemalloc
from array import array
from types import SimpleNamespace
from typing import Any

from services.dag.build.topological_orders import Orders
from services.dag.graph import Order

SHARD: Any = SimpleNamespace(number=0, history=SimpleNamespace(edition="e"))


def dag(no: int) -> Any:
    return SimpleNamespace(no=no, structure_version=0)


async def test_orders_whose_edges_came_one_by_one_are_forgotten_like_others() -> None:
    orders = Orders(200_000)
    for no in range(500):
        order = orders.empty(SHARD, dag(no))
        order.grow(30)
        assert await orders.insert(order, [(n, n + 1) for n in range(29)]) == []
        assert orders.bytes <= 200_000
    assert orders.fresh(SHARD, dag(499)) is not None
    assert orders.fresh(SHARD, dag(0)) is None


async def test_orders_without_edges_take_room_too() -> None:
    orders = Orders(200_000)
    for no in range(500):
        orders.empty(SHARD, dag(no)).grow(1_000)
        await orders.insert(orders.empty(SHARD, dag(no)), [])
    assert orders.bytes <= 200_000


async def test_an_order_that_has_grown_by_single_edges_is_forgotten_to_be_loaded_small() -> None:
    orders = Orders(1 << 40)
    order = orders.empty(SHARD, dag(1))
    order.grow(60_000)
    for begin in range(0, 50_000, 10_000):
        assert await orders.insert(order, [(n, n + 1) for n in range(begin, begin + 10_000)]) == []
        assert orders.fresh(SHARD, dag(1)) is order
    assert await orders.insert(order, [(50_000, 50_001)]) == []
    assert orders.fresh(SHARD, dag(1)) is None


async def test_many_edges_close_a_cycle_or_none_of_them_stays() -> None:
    """Above some thousand edges that is found out in a thread."""
    orders = Orders(1 << 40)
    order = orders.empty(SHARD, dag(1))
    order.grow(20_000)
    chain = [(n, n + 1) for n in range(10_000)]
    assert await orders.insert(order, chain) == []
    cycle = await orders.insert(order, [(15_000, 15_001), (10_000, 0)])
    assert len(cycle) == 10_001
    assert order.edges == 10_000
    assert await orders.insert(order, [(15_001, 15_000)]) == []


def test_an_order_takes_no_more_memory_than_it_says() -> None:
    dice = random.Random(3)
    pairs = sorted((n, n + dice.randrange(1, 50)) for n in range(20_000) for _ in range(5))
    ups, downs = array("I", [up for up, _ in pairs]), array("I", [down for _, down in pairs])
    tracemalloc.start()
    try:
        order = Order()
        before, _ = tracemalloc.get_traced_memory()
        order.load(ups, downs, 20_050)
        loaded = tracemalloc.get_traced_memory()[0] - before
        # An array that grows takes up to an eighth more than it needs.
        assert loaded <= 1.05 * order.bytes
        assert order.bytes == Order.loaded_bytes(20_050, 100_000)
        assert order.bytes <= 12 * 100_000
        for n in range(0, 20_000, 2):
            assert order.insert(n, n + 1) == []
        assert tracemalloc.get_traced_memory()[0] - before <= order.bytes
    finally:
        tracemalloc.stop()
