"""A call with very many edges: other calls go on meanwhile, and what comes of it is as of a small one.

The loop is probed by counting: lines of Python at a time, edges and keys of one statement. A graph with four times
the edges between as many nodes must not keep it four times as long.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from services.dag.build import topological_orders
from shared.http import json_body
from tests.support.dag_world import DagWorld
from tests.support.databases import Database
from tests.support.loop_turns import loop_turns
from tests.support.queue_fake import FakeQueue
from tests.support.traffic import traffic

WIDTH = 40
AT_ONCE = 100
# Of one edge: two numbers and a flag, as `traffic` measures them; and what comes with the nodes.
BYTES_MAX = 24 * AT_ONCE + 600 * 2 * WIDTH


@pytest.fixture
async def world(empty_database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DagWorld]:
    monkeypatch.setattr(json_body, "BYTES_AT_ONCE_MAX", 2_048)
    monkeypatch.setattr(topological_orders, "_EDGES_AT_ONCE_MAX", AT_ONCE)
    made = DagWorld(empty_database, FakeQueue(), edges_at_once_max=AT_ONCE)
    yield made
    await made.audit()
    await made.close()


def layer(name: str, above: list[str], ups: int, **fields: Any) -> list[dict[str, Any]]:
    """So many nodes, each behind so many of those `above`."""
    return [
        {"key": f"{name}{n}", "topic": "work", "upstream": [above[(n + i) % WIDTH] for i in range(ups)], **fields}
        for n in range(WIDTH)
    ]


TOPS = [f"a{n}" for n in range(WIDTH)]
Send = Callable[[], Awaitable[Any]]
Call = Callable[[DagWorld, int], Awaitable[Send]]


async def created(world: DagWorld, ups: int) -> Send:
    body = {"nodes": [*layer("a", [], 0), *layer("b", TOPS, ups)], "hold": True}
    return lambda: world.call("POST", "", body, expect=201)


async def added(world: DagWorld, ups: int) -> Send:
    dag = await world.create(layer("a", [], 0), hold=True)
    return lambda: world.add(dag, layer("b", TOPS, ups))


async def added_with_externals(world: DagWorld, ups: int) -> Send:
    dag = await world.create(layer("a", [], 0), hold=True)
    return lambda: world.add(dag, layer("b", TOPS, ups, external=["go"]))


async def added_again(world: DagWorld, ups: int) -> Send:
    add = await added(world, ups)
    await add()
    await world.settle()
    return add


async def added_with_a_late_edge(world: DagWorld, ups: int) -> Send:
    """The DAG's order is read, and grows by the call's edges."""
    dag = await world.create([*layer("a", [], 0), {"key": "late", "topic": "work", "upstream": ["a0"]}], hold=True)
    edge = {"upstream": "b0", "downstream": "late"}
    return lambda: world.add(dag, layer("b", TOPS, ups), dependencies=[edge])


@pytest.mark.parametrize("call", [created, added, added_with_externals, added_again, added_with_a_late_edge])
@pytest.mark.parametrize("way", ["short", "framework"])
async def test_four_times_the_edges_do_not_keep_the_loop_longer(
    world: DagWorld, call: Call, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "framework":
        world.go_by_routes()
    lines = {}
    for ups in (WIDTH // 4, WIDTH):
        send = await call(world, ups)
        await send_counted(send, lines, ups, monkeypatch)
        await world.settle()
    assert lines[WIDTH] < 1.5 * lines[WIDTH // 4], lines


async def send_counted(send: Send, lines: dict[int, int], ups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with traffic(monkeypatch) as statements, loop_turns(monkeypatch) as turns:
        await send()
    lines[ups] = turns.lines_max
    assert statements.given[0] <= BYTES_MAX, statements.given
    assert statements.rows[0] <= 2 * WIDTH + AT_ONCE, statements.rows


async def test_what_a_large_call_makes_is_what_a_small_one_does(world: DagWorld) -> None:
    dag = await world.create(layer("a", [], 0))
    await world.add(dag, layer("b", TOPS, WIDTH))
    shown = await world.dag(dag)
    assert shown["nodes"]["blocked"] == WIDTH
    assert sorted((await world.node(dag, "b3"))["upstream"]) == sorted(TOPS)
    for key in TOPS:
        await world.settle()
        world.queue.ack(key)
    await world.settle()
    assert set((await world.states(dag)).values()) == {"succeeded", "released"}


@pytest.mark.parametrize("way", ["short", "framework"])
async def test_what_is_wrong_in_a_large_call_is_told_as_in_a_small_one(world: DagWorld, way: str) -> None:
    if way == "framework":
        world.go_by_routes()
    dag = await world.create(layer("a", [], 0), hold=True)
    nodes = layer("b", TOPS, WIDTH)

    nodes[7]["upstream"][5] = "nobody"
    refused = await world.add(dag, nodes, expect=422)
    assert (refused["code"], refused["errors"][0]["pointer"]) == ("unknown_node", "/nodes/7/upstream/5")

    nodes[7]["upstream"][5] = 5
    refused = await world.add(dag, nodes, expect=422)
    assert refused["errors"][0]["pointer"] == "/nodes/7/upstream/5"

    nodes[7]["upstream"][5] = "b7"
    assert (await world.add(dag, nodes, expect=422))["code"] == "cycle"
    assert (await world.dag(dag))["nodes"]["total"] == WIDTH


async def test_a_large_body_is_read_element_by_element(world: DagWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    dag = await world.create(layer("a", [], 0), hold=True)
    sizes: list[int] = []
    whole = json_body.check

    def check(body: bytes, *, depth_max: int) -> Any:
        sizes.append(len(body))
        return whole(body, depth_max=depth_max)

    monkeypatch.setattr(json_body, "check", check)
    await world.add(dag, layer("b", TOPS, WIDTH))
    assert len(sizes) == WIDTH and max(sizes) < 1_024
