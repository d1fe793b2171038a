"""Minimum shares per priority on the real service, by count; and how a topic is configured."""

from typing import Any

import pytest

from tests.support.queue_host import Api, QueueHost


async def configure(api: Api, topic: str, *shares: tuple[int, float]) -> dict[str, Any]:
    given = [{"priority": priority, "share": share} for priority, share in shares]
    answer = await api.post("topics/configure", {"topic": topic, "min_share": given})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found == {"topic": topic, "min_share": given}
    return found


async def put(api: Api, count: int, priority: int, topic: str = "t") -> None:
    """Items one by one over the shards."""
    shards = sorted(api.host.stores)
    await api.enqueue(
        *({"topic": topic, "priority": priority, "id": api.new_id(shards[n % len(shards)])} for n in range(count))
    )


async def served(api: Api, count: int, batch: int = 1, topic: str = "t") -> list[int]:
    found: list[int] = []
    while len(found) < count:
        items = await api.dequeue(topic, batch)
        assert items, "nothing came although items are ready"
        await api.ack(*items)
        found += [item["priority"] for item in items]
    return found


@pytest.mark.parametrize("batch", [1, 10])
async def test_a_worse_priority_gets_its_share_while_better_ones_wait(own_api: Api, batch: int) -> None:
    host = own_api.host
    object.__setattr__(host.settings, "peek_keys_max", 25)  # the best keys alone would fill every look
    await configure(own_api, "t", (5, 0.2))
    await put(own_api, 300, 0)
    await put(own_api, 40, 5)
    await put(own_api, 40, 9)
    order = await served(own_api, 100, batch)

    assert order.count(9) == 0, "within the band the better priority goes first"
    assert abs(order.count(5) - 20) <= 1, order
    rest = await served(own_api, 280, batch)
    assert sorted(order + rest) == [0] * 300 + [5] * 40 + [9] * 40, "nothing is lost, nothing comes twice"


async def test_without_a_share_a_worse_priority_waits(own_api: Api) -> None:
    """Off by default: the exact order; and the control for the test above."""
    await put(own_api, 20, 5)
    await put(own_api, 60, 0)
    assert await served(own_api, 60) == [0] * 60
    await put(own_api, 40, 0)
    await configure(own_api, "t", (5, 0.5))
    assert abs((await served(own_api, 20)).count(5) - 10) <= 1
    await configure(own_api, "t")
    assert 5 not in await served(own_api, 20)


async def test_another_process_learns_of_it(own_host: QueueHost) -> None:
    from tests.support.queue_host import queue_host

    api = Api(own_host)
    async with queue_host(own_host.database) as other:
        theirs = Api(other, api.namespace)
        await put(api, 50, 0)
        await put(api, 20, 5)
        await theirs.dequeue("t")
        await configure(api, "t", (5, 0.5))
        await other.process.topics.read_shares()
        assert abs((await served(theirs, 20)).count(5) - 10) <= 1
        assert (await theirs.topic("t"))["min_share"] == [{"priority": 5, "share": 0.5}]


async def test_shares_and_lanes_together(own_api: Api) -> None:
    await configure(own_api, "t", (5, 0.5))
    for lane, count in (("a", 40), ("b", 10)):
        for priority in (0, 5):
            item = {"topic": "t", "priority": priority, "payload": lane, "fairness_key": lane}
            await own_api.enqueue(*({**item, "id": own_api.new_id(0)} for _ in range(count)))
    found = []
    for _ in range(20):
        [item] = await own_api.dequeue("t")
        found.append((item["priority"], item["payload"]))
    for priority in (0, 5):
        for lane in ("a", "b"):
            assert 4 <= found.count((priority, lane)) <= 6, found


BAD: list[tuple[Any, str]] = [
    ([{"priority": 5, "share": 0}], "/min_share/0/share"),
    ([{"priority": 5, "share": 0.91}], "/min_share/0/share"),
    ([{"priority": 5, "share": "0.1"}], "/min_share/0/share"),
    ([{"priority": 2**31, "share": 0.1}], "/min_share/0/priority"),
    ([{"priority": 5.5, "share": 0.1}], "/min_share/0/priority"),
    ([{"priority": 5}], "/min_share/0/share"),
    ([{"priority": 5, "share": 0.1, "x": 1}], "/min_share/0/x"),
    ([{"priority": 5, "share": 0.1}, {"priority": 5, "share": 0.1}], "/min_share"),
    ([{"priority": 6, "share": 0.1}, {"priority": 5, "share": 0.1}], "/min_share"),
    ([{"priority": n, "share": 0.5} for n in range(2)], "/min_share"),
    ([{"priority": n, "share": 0.01} for n in range(9)], "/min_share"),
    ({"5": 0.1}, "/min_share"),
]


@pytest.mark.parametrize(("shares", "pointer"), BAD)
async def test_shares_that_cannot_be_are_refused(api: Api, shares: Any, pointer: str) -> None:
    answer = await api.post("topics/configure", {"topic": "t", "min_share": shares})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer


async def test_shares_at_their_limits_are_taken(api: Api) -> None:
    await configure(api, "t", *((n, 0.1) for n in range(8)))
    await configure(api, "t", (-(2**31), 0.45), (2**31 - 1, 0.45))
    await configure(api, "t")
    answer = await api.post("topics/configure", {"topic": "_x"})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert (await api.post("topics/configure", {"topic": "u"})).json() == {"topic": "u", "min_share": []}
