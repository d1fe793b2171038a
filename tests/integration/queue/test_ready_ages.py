"""How long the oldest ready item has waited: also in lanes, whose keys are no times."""

from datetime import UTC, datetime
from typing import Any

import pytest

from services.queue.duties.fairness_keys import FairnessKeys
from services.queue.duties.gauges import Gauges
from services.queue.operations import health
from services.queue.store import ready_ages
from services.queue.store.names import SQL
from shared.metrics import OLDEST_READY_AGE_SECONDS
from tests.support.queue_host import Api, QueueHost
from tests.support.traffic import traffic

SLACK_S = 60.0


async def age_s(api: Api, topic: str = "t") -> float:
    found: float = (await api.topic(topic))["oldest_ready_age_s"]
    return found


async def put(api: Api, *keys: str | None, **fields: Any) -> None:
    await api.enqueue(*({"topic": "t", "id": api.new_id(0), "fairness_key": key, **fields} for key in keys))
    await api.host.reap()


async def late_in_the_hour(host: QueueHost) -> None:
    """Places begin with the hour, so it is there that they are taken for times."""
    into_s = datetime.now(UTC).timestamp() % 3600
    await host.clock.advance(3600 + 50 * 60 - into_s)


async def test_an_item_of_a_lane_is_as_old_as_it_is(own_api: Api) -> None:
    host = own_api.host
    await late_in_the_hour(host)
    await put(own_api, "a", "b")
    assert await age_s(own_api) < SLACK_S
    await host.clock.advance(200)
    await put(own_api, "c")
    assert 200 <= await age_s(own_api) < 200 + SLACK_S
    await Gauges(host.stores, lambda _shard: True, host.settings).step()
    gauge = OLDEST_READY_AGE_SECONDS.labels(own_api.namespace, "t", "0")
    assert 200 <= gauge._value.get() < 200 + SLACK_S
    row = (await host.client.get("/v1/shards/0")).json()
    assert 200 <= row["oldest_ready_age_s"] < 200 + SLACK_S


async def test_the_oldest_of_all_lanes_counts_wherever_it_stands(own_api: Api) -> None:
    """Keys take turns: behind the first of a lane that has come last one waits that is older."""
    await late_in_the_hour(own_api.host)
    await put(own_api, "a", "a", "a")
    await own_api.host.clock.advance(200)
    await put(own_api, "b", "c")
    await own_api.ack(*await own_api.dequeue("t", 1))
    assert 200 <= await age_s(own_api) < 200 + SLACK_S
    await own_api.host.clock.advance(100)
    await own_api.ack(*await own_api.dequeue("t", 4))
    await put(own_api, "a")
    assert await age_s(own_api) < SLACK_S


async def test_an_item_that_a_lane_gives_again_counts_from_then(own_api: Api) -> None:
    await late_in_the_hour(own_api.host)
    await put(own_api, "a")
    await own_api.host.clock.advance(200)
    [item] = await own_api.dequeue("t", lease_s=3600)
    await own_api.host.clock.advance(200)
    assert await own_api.nack(item, delay_s=0) == ["requeued"]
    await own_api.host.reap()
    assert await age_s(own_api) < SLACK_S


async def test_an_item_without_a_key_keeps_its_age_in_the_lane_of_those(own_api: Api) -> None:
    host = own_api.host
    await late_in_the_hour(host)
    await put(own_api, *["a"] * 5)
    await put(own_api, None)
    await host.clock.advance(300)
    await put(own_api, *["b"] * 5)
    for _ in range(2):
        await FairnessKeys(host.stores, host.dispatch, host.settings).step()
    assert await host.count("lane", "key = ''") == 1
    taken = [item for item in await own_api.dequeue("t", 4) if item["id"]]
    await own_api.ack(*taken)
    assert 300 <= await age_s(own_api) < 300 + SLACK_S


@pytest.fixture
def floors(own_host: QueueHost, monkeypatch: pytest.MonkeyPatch) -> list[dict[int, datetime]]:
    """The time from which each priority that is known was looked at, look by look."""
    seen: list[dict[int, datetime]] = []
    fetch = own_host.stores[0].pool.fetch

    async def watched(statement: Any, *args: Any, **given: Any) -> Any:
        if statement is SQL.oldest_ready:
            columns = zip(given["firsts"], given["lasts"], given["floors"], strict=True)
            seen.append({first: floor for first, last, floor in columns if first == last})
        return await fetch(statement, *args, **given)

    monkeypatch.setattr(own_host.stores[0].pool, "fetch", watched)
    return seen


async def test_a_look_begins_where_the_last_one_found_something(
    own_api: Api, floors: list[dict[int, datetime]]
) -> None:
    """While a snapshot is held open all that was served since lies before that."""
    clock = own_api.host.clock
    for _ in range(3):
        await put(own_api, None, priority=0)
        await put(own_api, None, priority=7)
        await clock.advance(100)
        assert 100 <= await age_s(own_api) < 100 + SLACK_S
        await own_api.ack(*await own_api.dequeue("t", 2))
    margin_s = ready_ages.MARGIN.total_seconds()
    begun_s = clock.now_s() - 100 - margin_s
    assert floors[0] == {}
    assert sorted(floors[2]) == [0, 7]
    for floor in floors[2].values():
        assert begun_s - 100 - SLACK_S <= floor.timestamp() <= begun_s


async def test_nothing_is_overlooked_that_comes_beside_what_is_known(own_api: Api) -> None:
    """Better, worse and between; where a priority was empty for long; and where there was no lane before."""
    clock = own_api.host.clock
    await put(own_api, None, priority=0)
    for priority in (-3, 9, 4):
        await clock.advance(50)
        await age_s(own_api)
        await own_api.ack(*await own_api.dequeue("t", 9))
        await put(own_api, None, priority=priority)
        await clock.advance(50)
        assert 50 <= await age_s(own_api) < 50 + SLACK_S
    await clock.advance(500)
    await age_s(own_api)
    await own_api.ack(*await own_api.dequeue("t", 9))
    await put(own_api, None, priority=0)
    await clock.advance(70)
    assert 70 <= await age_s(own_api) < 70 + SLACK_S
    await own_api.ack(*await own_api.dequeue("t", 9))
    await put(own_api, "a", priority=0)
    await clock.advance(80)
    assert 80 <= await age_s(own_api) < 80 + SLACK_S


async def test_a_topic_of_many_priorities_is_not_remembered(own_api: Api) -> None:
    priorities = range(ready_ages.PRIORITIES_MAX + 1)
    items = [{"topic": "t", "id": own_api.new_id(0), "priority": priority} for priority in priorities]
    await own_api.enqueue(*items)
    await own_api.host.clock.advance(90)
    for _ in range(2):
        assert 90 <= await age_s(own_api) < 90 + SLACK_S
    assert len(own_api.host.stores[0].ready_ages._floors) == 0


@pytest.mark.parametrize("oldest", range(5))
async def test_the_oldest_of_a_shard_is_looked_for_a_page_of_topics_at_a_time(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, oldest: int
) -> None:
    """Whichever page has it; no statement is about more topics than one page has."""
    monkeypatch.setattr(health, "READY_TOPICS_MAX", 2)
    assert (await own_api.host.client.get("/v1/shards/0")).json()["oldest_ready_age_s"] is None
    names = [f"t{n}" for n in range(5)]
    await own_api.host.stores[0].names.make([(own_api.namespace, name) for name in names])
    await own_api.enqueue({"topic": names[oldest], "id": own_api.new_id(0)})
    await own_api.host.clock.advance(200)
    await own_api.enqueue(*({"topic": name, "id": own_api.new_id(0)} for name in names))
    with traffic(monkeypatch) as met:
        row = (await own_api.host.client.get("/v1/shards/0")).json()
    assert 200 <= row["oldest_ready_age_s"] < 200 + SLACK_S
    assert met.rows[0] <= 2, met.rows
