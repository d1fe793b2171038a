"""Bounds in bytes: what one transaction carries, what one answer holds."""

from typing import Any

import pytest

from services.dag import store
from services.dag.read import queries
from services.dag.run.completions import Completer
from tests.support.dag_world import BASE, DagWorld, specs

OUTPUT = "x" * 100


async def fan(world: DagWorld, count: int) -> list[str]:
    """A root that has given an output, and what each of those below it was given."""
    below = [{"key": f"n{i}", "upstream": ["root"], "pass_outputs": True} for i in range(count)]
    await world.create([*specs({"root": []}), *below])
    await world.settle()
    world.queue.ack("root", output=OUTPUT)
    await world.settle()
    return [world.queue.item_of(node["key"]).inputs for node in below]


async def assert_given(world: DagWorld, inputs: list[str], *, in_place: int) -> None:
    """So many were given the output itself; the others a reference that leads to it."""
    told = f'{{"root":"{OUTPUT}"}}'
    assert inputs.count(told) == in_place
    for reference in (each for each in inputs if each != told):
        path = reference.split('"')[3]
        assert (await world.http.get(path)).text == told


async def test_one_transaction_passes_on_so_many_bytes_and_references_for_the_rest(world: DagWorld) -> None:
    world.settings.__dict__.update(inputs_step_bytes_max=350)
    await assert_given(world, await fan(world, 10), in_place=3)


async def test_one_transaction_looks_along_so_many_edges_for_what_it_passes_on(world: DagWorld) -> None:
    world.settings.__dict__.update(inputs_step_edges_max=4)
    await assert_given(world, await fan(world, 10), in_place=4)


async def test_compensations_of_one_turn_are_given_so_many_bytes_and_references_for_the_rest(
    world: DagWorld,
) -> None:
    world.settings.__dict__.update(inputs_step_bytes_max=350)
    undone = [f"n{i}" for i in range(6)]
    undo = [{"key": f"undo {key}", "compensates": key, "pass_outputs": True} for key in undone]
    await world.create([*specs({key: [] for key in [*undone, "bad"]}), *undo])
    await world.settle()
    for key in undone:
        world.queue.ack(key, output=OUTPUT)
    world.queue.die("bad")
    await world.settle()
    given = [world.queue.item_of(f"undo {key}").inputs for key in undone]
    told = [each for each in given if "$ref" not in each]
    # Beside the output its payload counts, as it stands in its item.
    assert told == [{"n0": OUTPUT, "payload:n0": None}]
    for key in undone:
        world.queue.ack(f"undo {key}")
    await world.settle()


async def test_completions_with_large_outputs_are_several_transactions(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settings.__dict__.update(completion_bytes_max=250)
    apply, carried = Completer.apply, []

    async def counting(completer: Completer, shard: Any, endings: Any) -> int:
        carried.append(sum(len(ending.output or "") for ending in endings))
        return await apply(completer, shard, endings)

    monkeypatch.setattr(Completer, "apply", counting)
    dag = await world.create({f"n{i}": [] for i in range(9)})
    await world.settle()
    for i in range(9):
        world.queue.ack(f"n{i}", output="x" * (400 if i == 4 else 100))
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    assert carried == [204, 204, 402, 204, 204]


async def test_inputs_beyond_what_a_process_should_hold_are_refused_also_of_an_ended_dag(world: DagWorld) -> None:
    dag = await world.create([{"key": "a"}, {"key": "b", "upstream": ["a"], "pass_outputs": True}])
    await world.settle()
    world.queue.ack("a", output=OUTPUT)
    await world.settle()
    world.queue.ack("b")
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"
    url = f"{BASE}/{dag}/node/inputs?key=b"
    for bytes_max, status in ((106, 422), (107, 200)):
        world.settings.__dict__.update(inputs_fetched_bytes_max=bytes_max)
        assert (await world.http.get(url)).status_code == status


async def test_a_dag_whose_order_has_no_room_takes_no_edge_that_needs_it(world: DagWorld) -> None:
    """Whether such an edge closes a cycle is not known; all others are taken as ever."""
    chain = {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(200)}
    dag = await world.create(chain | {"late": []}, hold=True)
    world.duties.builder._orders._bytes_max = 4_000
    refused = await world.link(dag, ("n5", "late"), expect=422)
    assert refused["code"] == "limit_exceeded"
    await world.add(dag, {"new": ["n199"]})
    assert world.duties.builder._orders.bytes == 0
    world.duties.builder._orders._bytes_max = 10_000
    await world.link(dag, ("n5", "late"))
    cycle = await world.link(dag, ("n199", "n0"), expect=422)
    assert cycle["code"] == "cycle"


@pytest.mark.parametrize("form", ["json", "mermaid", "dot"])
async def test_a_graph_over_its_bound_is_refused_and_below_it_is_whole(
    world: DagWorld, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_GRAPH_PAGE", 3)
    ups = [f"up{i}" for i in range(7)]
    dag = await world.create([*specs({key: [] for key in ups}), {"key": "down", "upstream": ups}])
    url = f"{BASE}/{dag}/graph?format={form}"
    whole = (await world.http.get(url)).content
    for bytes_max, status in ((7 * 14 - 1, 422), (len(whole) - 1, 422), (len(whole), 200)):
        world.settings.__dict__.update(graph_bytes_max=bytes_max)
        answer = await world.http.get(url)
        assert answer.status_code == status
    assert answer.content == whole
    assert whole.count({"json": b'"downstream":"down"', "mermaid": b" --> ", "dot": b" -> "}[form]) == 7


async def test_a_graph_with_too_many_edges_is_refused_before_any_is_read(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing need be read")

    ups = [f"up{i}" for i in range(7)]
    dag = await world.create([*specs({key: [] for key in ups}), {"key": "down", "upstream": ups}])
    monkeypatch.setattr(store.reads, "graph_nodes", never)
    world.settings.__dict__.update(graph_bytes_max=7 * 14 - 1)
    assert (await world.http.get(f"{BASE}/{dag}/graph?format=json")).status_code == 422
