"""Small outputs are passed on by the ack of the last upstream; what is larger or deeper takes the ordinary way."""

import json
from typing import Any

import pytest

from tests.support.folding import Folding


async def fan_in(folding: Folding, *keys: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """A DAG of nodes that `b` waits for, and their items."""
    nodes = [{"key": key, "topic": "work"} for key in keys]
    below = {"key": "b", "topic": "work", "upstream": list(keys), "pass_outputs": True, **fields}
    dag = (await folding.dags.call("POST", "", {"nodes": [*nodes, below]}, expect=201))["id"]
    return str(dag), await folding.take()


async def given_to_b(folding: Folding, dag: str) -> Any:
    """What `b` is given once everything is told."""
    await folding.settle()
    inputs = (await folding.take())["b"]["inputs"]
    await folding.cancel(dag)
    return inputs


KEYS = ("a", 'q"\\/', "é \u200f", "z" * 1_000)
OUTPUTS: list[Any] = [{"n": 1, "é": '"\\/'}, None, ["x", {"y": [1.5, True, None]}], "text"]


async def test_outputs_go_with_the_last_ack(folding: Folding) -> None:
    dag, items = await fan_in(folding, *KEYS)
    for key, output in zip(KEYS, OUTPUTS, strict=True):
        await folding.queue.ack(items[key], output=output)
    assert await folding.completions() == 0

    assert await given_to_b(folding, dag) == dict(zip(KEYS, OUTPUTS, strict=True))


async def test_outputs_of_one_flush_are_all_passed_on(folding: Folding) -> None:
    dag, items = await fan_in(folding, "a", "x", "y")
    acks = [{"id": i["id"], "lease_token": i["lease_token"], "output": key} for key, i in items.items()]
    del acks[-1]["output"]
    await folding.queue.results("ack", {"items": acks})
    assert await folding.completions() == 0

    assert await given_to_b(folding, dag) == {key: key for key in list(items)[:2]}


async def test_a_node_whose_upstreams_gave_nothing_is_given_an_empty_object(folding: Folding) -> None:
    dag, items = await fan_in(folding, "a")
    await folding.queue.ack(items["a"])
    assert await folding.completions() == 0

    assert await given_to_b(folding, dag) == {}


async def test_only_what_has_succeeded_by_then_is_passed_on(folding: Folding) -> None:
    dag, items = await fan_in(folding, "a", "x", trigger="any_succeeded")
    await folding.queue.ack(items["x"], output=7)
    assert await folding.completions() == 0

    assert await given_to_b(folding, dag) == {"x": 7}


async def test_a_waiting_call_is_handed_the_inputs(folding: Folding) -> None:
    """By the settling call itself: one round trip and one commit from a node to the next one."""
    dag, items = await fan_in(folding, "a")
    assert await folding.queue.dequeue("work") == []
    ack = {"id": items["a"]["id"], "lease_token": items["a"]["lease_token"], "output": {"n": 1}}
    body = {"topics": [{"topic": "work"}], "worker": "w", "settle": {"acks": [ack]}}
    answer = (await folding.queue.post("dequeue", body)).json()

    assert [item["inputs"] for item in answer["items"]] == [{"a": {"n": 1}}]
    await folding.cancel(dag)


BIG = "x" * 60_000
TOLD: dict[str, list[Any]] = {
    "over 256 KiB in all": [BIG] * 5,
    "deeper than inputs may be": [json.loads("[" * 28 + "]" * 28)],
    "maybe too deep": [[{}] * 28],
}


@pytest.mark.parametrize("outputs", TOLD.values(), ids=TOLD)
async def test_what_may_not_fit_takes_the_ordinary_way(folding: Folding, outputs: list[Any]) -> None:
    keys = [f"a{n}" for n in range(len(outputs))]
    dag, items = await fan_in(folding, *keys)
    for key, output in zip(keys, outputs, strict=True):
        assert await folding.completions() == 0
        await folding.queue.ack(items[key], output=output)
    assert await folding.completions() == 1

    inputs = await given_to_b(folding, dag)
    assert inputs == dict(zip(keys, outputs, strict=True)) or set(inputs) == {"$ref"}


async def test_what_an_external_gives_is_passed_on_the_ordinary_way(folding: Folding) -> None:
    dag, items = await fan_in(folding, "a", external=["go"])
    await folding.dags.call("POST", f"/{dag}/resolve", {"external": [{"node": "b", "name": "go", "data": 5}]})
    await folding.queue.ack(items["a"], output=1)
    assert await folding.completions() == 1

    assert await given_to_b(folding, dag) == {"a": 1, "external:go": 5}


async def test_a_wide_end_gives_each_its_part_of_the_room(folding: Folding) -> None:
    """Of many nodes below each is given less, so that one statement gives 256 KiB in all."""
    nodes = [{"key": "a", "topic": "work"}]
    below = {"topic": "work", "upstream": ["a"], "pass_outputs": True}
    nodes += [{"key": f"b{n}", **below} for n in range(5)]
    dag = (await folding.dags.call("POST", "", {"nodes": nodes}, expect=201))["id"]
    await folding.queue.ack((await folding.take())["a"], output=BIG)
    assert await folding.completions() == 1
    await folding.settle()
    assert [item["inputs"] for item in (await folding.take()).values()] == [{"a": BIG}] * 5
    await folding.cancel(dag)


@pytest.mark.parametrize("over", [0, 1])
async def test_outputs_that_are_too_much_for_an_ack_are_passed_on_by_completions(
    folding: Folding, over: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them in one statement took longer than it may: the ack was refused, and so was the same again."""
    dag, items = await fan_in(folding, "a", "x")
    monkeypatch.setattr("services.queue.leases.ack_flushes.FOLDED_CHARS_MAX", 2 * len('"text"') - over)
    acks = [{"id": item["id"], "lease_token": item["lease_token"], "output": "text"} for item in items.values()]
    assert await folding.queue.results("ack", {"items": acks}) is not None
    assert await folding.completions() == 2 * over
    assert await given_to_b(folding, dag) == {"a": "text", "x": "text"}
