"""What an operator's dashboards and alerts stand on: the names, the labels and the values of `/metrics`."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.queue.duties.gauges import BYTES_LOOK_S, REST, Gauges
from services.queue.store import topics
from shared.metrics import FALLBACKS
from tests.support.clocks import ManualClock
from tests.support.queue_host import AT_ONCE, Api, QueueHost

NAMES = {
    "headgate_items",
    "headgate_oldest_ready_age_seconds",
    "headgate_topic_work",
    "headgate_schedule_to_start_seconds",
    "headgate_enqueued",
    "headgate_dequeued",
    "headgate_acked",
    "headgate_nacked",
    "headgate_dead",
    "headgate_lease_expired",
    "headgate_redelivered",
    "headgate_dependency_released",
    "headgate_release_lag_seconds",
    "headgate_dags",
    "headgate_nodes",
    "headgate_topic_enqueued",
    "headgate_topic_acked",
    "headgate_topic_dequeued",
    "headgate_dag_duration_seconds",
    "headgate_shard_up",
    "headgate_shard_breaker_state",
    "headgate_shard_query_seconds",
    "headgate_shard_pool_in_use",
    "headgate_shard_pool_waiting",
    "headgate_shard_db_bytes",
    "headgate_shard_dead_tuples",
    "headgate_shard_oldest_xact_age_seconds",
    "headgate_sweeper_last_run_timestamp_seconds",
    "headgate_http_request_seconds",
    "headgate_rate_limited",
    "headgate_fallback",
    "headgate_build_info",
}


async def scrape(host: QueueHost) -> dict[str, list[Any]]:
    answer = await host.client.get("/metrics")
    assert answer.status_code == 200
    return {family.name: family.samples for family in text_string_to_metric_families(answer.text)}


def gauges(host: QueueHost, *, owns: bool = True, topics_max: int = 100) -> Gauges:
    settings = host.settings.model_copy(update={"metrics_topics_max": topics_max})
    return Gauges(host.stores, lambda _number: owns, settings)


def items(found: dict[str, list[Any]], namespace: str) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["topic"], sample.labels["state"]): sample.value
        for sample in found["headgate_items"]
        if sample.labels["namespace"] == namespace and sample.value
    }


async def test_every_name_that_dashboards_use_is_there(own_host: QueueHost) -> None:
    assert set(await scrape(own_host)) >= NAMES


async def test_items_are_counted_by_topic_and_state(own_api: Api, own_host: QueueHost) -> None:
    await own_api.enqueue({"topic": "t"}, {"topic": "t"}, {"topic": "t", "disabled": True})
    await own_api.dequeue("t", 1)
    sampler = gauges(own_host)

    await sampler.step()

    found = await scrape(own_host)
    assert items(found, own_api.namespace) == {("t", "ready"): 1, ("t", "leased"): 1, ("t", "disabled"): 1}
    here = {"namespace": own_api.namespace, "topic": "t"}
    ages = [s.value for s in found["headgate_oldest_ready_age_seconds"] if here.items() <= s.labels.items()]
    assert len(ages) == 1 and ages[0] >= 0
    await gauges(own_host, owns=False).step()


async def test_a_shard_that_another_process_owns_is_no_longer_told_of(own_api: Api, own_host: QueueHost) -> None:
    await own_api.enqueue({"topic": "t"})
    owned = True
    sampler = Gauges(own_host.stores, lambda _number: owned, own_host.settings)
    await sampler.step()
    assert items(await scrape(own_host), own_api.namespace)

    owned = False
    await sampler.step()

    assert not items(await scrape(own_host), own_api.namespace)


async def test_topics_beyond_the_limit_are_counted_together(own_api: Api, own_host: QueueHost) -> None:
    shard = 1
    for topic, count in (("large", 3), ("small", 1), ("tiny", 1)):
        await own_api.enqueue(*({"topic": topic, "id": own_api.new_id(shard)} for _ in range(count)))
    sampler = gauges(own_host, topics_max=1)

    await sampler.step()

    found = await scrape(own_host)
    assert items(found, own_api.namespace) == {("large", "ready"): 3}
    assert items(found, REST[0]) == {(REST[1], "ready"): 2}


async def test_a_topic_that_was_emptied_is_told_as_empty_not_as_unknown(own_api: Api, own_host: QueueHost) -> None:
    """Else a chart of it has a gap, which reads as an outage."""
    for topic in ("first", "stays"):
        await own_api.enqueue({"topic": topic, "id": own_api.new_id(1)})
    sampler = gauges(own_host)
    await sampler.step()
    [item] = await own_api.dequeue("first", 1)
    await own_api.ack(item)
    await sampler.step()

    def ready() -> dict[str, float]:
        told = {series: value for series, value in sampler.latest() if series.namespace == own_api.namespace}
        return {series.topic: value for series, value in told.items() if series.metric == "ready"}

    assert ready() == {"first": 0.0, "stays": 1.0}
    await sampler.step()
    assert ready() == {"first": 0.0, "stays": 1.0}
    await own_api.enqueue(*({"topic": "first", "id": own_api.new_id(1)} for _ in range(2)))
    await sampler.step()
    assert ready() == {"first": 2.0, "stays": 1.0}
    await sampler_of_few(own_host, own_api)


async def sampler_of_few(own_host: QueueHost, own_api: Api) -> None:
    """A topic that is not named any more, because others hold more, is not known to be empty."""
    sampler = gauges(own_host, topics_max=1)
    await sampler.step()
    await own_api.enqueue(*({"topic": "stays", "id": own_api.new_id(1)} for _ in range(9)))
    await sampler.step()
    assert {series.topic for series, _ in sampler.latest() if series.namespace == own_api.namespace} == {"stays"}


def work(found: dict[str, list[Any]], namespace: str) -> dict[str, float]:
    """What autoscalers go by: over all shards, by topic."""
    sums: dict[str, float] = {}
    for sample in found["headgate_topic_work"]:
        if sample.labels["namespace"] == namespace:
            sums[sample.labels["topic"]] = sums.get(sample.labels["topic"], 0) + sample.value
    return sums


async def test_what_workers_can_be_busy_with_is_told_by_topic(own_api: Api, own_host: QueueHost) -> None:
    """Not what is delayed, disabled or dead, and nothing that waits in a paused topic: no worker would get it."""
    await own_api.enqueue(
        *({"topic": topic} for topic in ("t", "t", "t", "p", "p")),
        {"topic": "t", "delay_s": 60},
        {"topic": "t", "disabled": True},
        {"topic": "later", "delay_s": 60},
    )
    await own_api.dequeue("t", 1)
    await own_api.dequeue("p", 1)
    await own_api.post("topics/pause", {"topic": "p"})
    sampler = gauges(own_host)
    await sampler.step()
    assert work(await scrape(own_host), own_api.namespace) == {"t": 3, "p": 1, "later": 0}

    await own_api.ack(*await own_api.dequeue("t", 10))
    await sampler.step()
    assert work(await scrape(own_host), own_api.namespace)["t"] == 1
    await gauges(own_host, owns=False).step()


async def test_topics_beyond_the_limit_have_no_signal_and_add_no_series(own_api: Api, own_host: QueueHost) -> None:
    await own_api.enqueue(*({"topic": f"t{n}", "id": own_api.new_id(1)} for n in range(5)))
    sampler = gauges(own_host, topics_max=2)
    await sampler.step()
    found = await scrape(own_host)
    assert len(work(found, own_api.namespace)) == 2 and not work(found, REST[0])
    await sampler.step()
    await gauges(own_host, owns=False).step()


async def test_what_goes_in_and_out_is_told_of_the_topics_of_which_most_moves(
    own_api: Api, own_host: QueueHost
) -> None:
    """Also of those that another process owns, and of no more than the limit; a rate beside each count."""
    clock = ManualClock()
    settings = own_host.settings.model_copy(update={"metrics_topics_max": 2})
    sampler = Gauges(own_host.stores, lambda _number: False, settings, clock)
    for store in own_host.stores.values():
        store.flow.drain()

    def flow(found: dict[str, list[Any]], name: str) -> dict[str, float]:
        return {
            sample.labels["topic"]: sample.value
            for sample in found[f"headgate_topic_{name}"]
            if sample.labels["namespace"] == own_api.namespace and sample.name.endswith("_total")
        }

    shard = {"id": own_api.new_id(1)}
    await own_api.enqueue({"topic": "first", **shard})
    await sampler.step()
    clock.advance(10.0)
    await own_api.enqueue(*({"topic": "busy", "id": own_api.new_id(1)} for _ in range(5)))
    await own_api.ack(*(await own_api.dequeue("busy", 3))[:2])
    await sampler.step()
    found = await scrape(own_host)
    assert flow(found, "enqueued") == {"first": 1, "busy": 5} and flow(found, "dequeued") == {
        "first": 0,
        "busy": 3,
    }
    assert flow(found, "acked") == {"first": 0, "busy": 2}
    rates = {(one.metric, one.topic): value for one, value in sampler.latest() if one.topic}
    assert rates["enqueued_per_s", "busy"] == 0.5 and rates["dequeued_per_s", "busy"] == pytest.approx(0.3)
    assert rates["acked_per_s", "busy"] == pytest.approx(0.2)
    assert rates["enqueued_per_s", "first"] == 0

    await own_api.enqueue({"topic": "third", "id": own_api.new_id(1)}, {"topic": "busy", "id": own_api.new_id(1)})
    await sampler.step()
    assert flow(await scrape(own_host), "enqueued") == {"busy": 6, "third": 1}, "the one that rests makes room"
    for store in own_host.stores.values():
        sampler._rates.forget(store.number)
    assert not flow(await scrape(own_host), "enqueued")


async def test_requests_are_timed_by_route_not_by_path(own_api: Api, own_host: QueueHost) -> None:
    await own_api.enqueue({"topic": "t"})
    await own_api.get("items/no-such-id")
    await own_host.client.get("/no/such/path")

    found = await scrape(own_host)

    counted = {
        (s.labels["method"], s.labels["route"], s.labels["status"])
        for s in found["headgate_http_request_seconds"]
        if s.name.endswith("_count")
    }
    assert {
        ("POST", "/v1/namespaces/{ns}/enqueue", "201"),
        ("GET", "/v1/namespaces/{ns}/items/{item_id}", "404"),
        ("GET", "none", "404"),
    } <= counted
    assert not [route for _, route, _ in counted if "no-such" in route or own_api.namespace in route]


async def test_a_redelivery_is_counted(own_api: Api, own_host: QueueHost) -> None:
    await own_api.enqueue({"topic": "t", "id": own_api.new_id(1), "backoff": AT_ONCE})
    before = await _redelivered(own_host)
    held = await own_api.dequeue_one("t")
    assert await _redelivered(own_host) == before
    await own_api.results("nack", {"items": [{"id": held["id"], "lease_token": held["lease_token"]}]})

    await own_api.dequeue_one("t")

    assert await _redelivered(own_host) == before + 1


async def _redelivered(host: QueueHost) -> float:
    samples = (await scrape(host))["headgate_redelivered"]
    return sum(s.value for s in samples if s.name.endswith("_total") and s.labels["shard"] == "1")


async def test_a_short_way_that_is_not_gone_is_counted(own_host: QueueHost) -> None:
    """A call of many elements that are not equal: it is read one by one, and says so."""
    api = Api(own_host)

    def taken() -> float:
        return float(FALLBACKS.labels("enqueue", "shape")._value.get())

    equal = [{"topic": "t", "payload": f"{n:0>20}"} for n in range(60)]
    before = taken()
    await api.enqueue(*equal)
    assert taken() == before
    await api.enqueue(*equal, {"topic": "t", "payload": 5})
    assert taken() == before + 1


async def test_sizes_of_tables_are_asked_for_once_a_minute(
    own_host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, sizes = ManualClock(), iter(range(100, 200))

    async def size(_asked: Any) -> int:
        return next(sizes)

    monkeypatch.setattr(topics, "shard_bytes", size)
    sampler = Gauges(own_host.stores, lambda number: number == 1, own_host.settings, clock)
    told = []
    for _ in range(4):
        await sampler.step()
        told += [value for one, value in sampler.latest() if one.metric == "bytes"]
        clock.advance(BYTES_LOOK_S / 2)
    assert told == [100, 100, 101, 101]
    await Gauges(own_host.stores, lambda _number: False, own_host.settings, clock).step()
