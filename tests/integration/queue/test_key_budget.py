"""Keys of many topics: a process keeps a bounded number ahead, and loses no item over it."""

import asyncio

from tests.support.queue_host import Api

TOPICS = [f"t{n}" for n in range(10)]
KEPT_MAX = 100


def kept(api: Api) -> int:
    return sum(len(line.buffer) for line in api.host.dispatch._lines.values())


async def fill(api: Api, each: int) -> None:
    api.host.dispatch._kept._keys_max = KEPT_MAX
    for topic in TOPICS:
        await api.enqueue(*({"topic": topic, "payload": n} for n in range(each)))


async def test_keys_of_topics_asked_for_once_do_not_add_up(own_api: Api) -> None:
    await fill(own_api, 50)
    for topic in TOPICS:
        assert len(await own_api.dequeue(topic)) == 1
        assert kept(own_api) <= KEPT_MAX

    for topic in TOPICS:
        assert [item["payload"] for item in await own_api.dequeue(topic, 100)] == list(range(1, 50))


async def test_what_becomes_ready_counts_too(own_api: Api) -> None:
    for topic in TOPICS:
        await own_api.dequeue(topic)
    await fill(own_api, 50)
    assert kept(own_api) <= KEPT_MAX
    assert [len(await own_api.dequeue(topic, 100)) for topic in TOPICS] == [50] * len(TOPICS)


async def test_a_call_for_many_topics_keeps_what_it_has_found(own_api: Api) -> None:
    """Else its first topics would be empty when it has looked at the last, and the answer would lack them."""
    await fill(own_api, 50)
    demands = {"topics": [{"topic": topic, "count": 1} for topic in TOPICS]}
    answers = await asyncio.gather(*(own_api.post("dequeue", demands) for _ in range(3)))
    assert [len(answer.json()["items"]) for answer in answers] == [len(TOPICS)] * 3
