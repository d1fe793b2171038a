"""One question a round for what is rarely there: nothing set by another process may be missed, nor its removal."""

import asyncio
from typing import Any

import pytest

from services.queue.duties.fairness_keys import FairnessKeys
from services.queue.duties.notices import Notices
from services.queue.operations.agreement import Given, _give
from services.queue.store.names import SQL
from tests.support.queue_host import Api, QueueHost

RARE = {id(SQL.limited): "limited", id(SQL.min_shares): "min_shares", id(SQL.lane_heads): "lane_heads"}


def notices(host: QueueHost) -> Notices:
    process = host.process
    lanes = FairnessKeys(host.stores, host.dispatch, host.settings)
    return Notices(host.stores, process.quotas, process.topics, lanes, process.workers.news, process.gates)


@pytest.fixture
def read(own_host: QueueHost, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rare statements that were run since the list was cleared."""
    seen: list[str] = []
    for store in own_host.stores.values():
        fetch = store.pool.fetch

        async def watched(statement: Any, *args: Any, _fetch: Any = fetch, **given: Any) -> Any:
            if id(statement) in RARE:
                seen.append(RARE[id(statement)])
            return await _fetch(statement, *args, **given)

        monkeypatch.setattr(store.pool, "fetch", watched)
    return seen


async def test_what_nobody_uses_is_not_read(own_host: QueueHost, read: list[str]) -> None:
    await notices(own_host).step()
    read.clear()
    await notices(own_host).step()
    assert read == []


async def test_a_process_whose_shards_have_all_left_the_map_reads_nothing(own_host: QueueHost) -> None:
    steps = notices(own_host)
    await Api(own_host).dequeue("t", worker="w")
    for store in own_host.stores.values():
        store.shard.retire()
    assert await steps.step() == 0
    assert await own_host.process.workers.step() == 0


async def test_what_another_process_sets_on_any_shard_is_read(own_host: QueueHost, read: list[str]) -> None:
    api = Api(own_host)
    await api.enqueue(*({"topic": "t", "id": api.new_id(shard)} for shard in own_host.stores))
    last = own_host.stores[max(own_host.stores)]
    steps = notices(own_host)

    async def set_there(settings: str, shares: str) -> None:
        at = (await last.pool.row(SQL.time_to_give, namespace=api.namespace, topic="t"))["at"]
        settings_given = Given(("settings", api.namespace, ""), at, settings)
        await _give(last, [settings_given, Given(("min_share", api.namespace, "t"), at, shares)])

    await set_there('{"items_max": 3}', "[[5, 0.5]]")
    await steps.step()
    tenant = own_host.process.quotas.of(api.namespace)
    assert tenant is not None
    assert tenant.quota.items_max == 3
    assert (api.namespace, "t") in own_host.dispatch.shares

    await set_there("{}", "")
    await steps.step()
    assert own_host.process.quotas.of(api.namespace) is None
    assert own_host.dispatch.shares == {}
    read.clear()
    await steps.step()
    assert read == []


async def test_lanes_are_looked_after_wherever_there_are_any(own_host: QueueHost, read: list[str]) -> None:
    api = Api(own_host)
    await api.enqueue(*[{"topic": "t", "fairness_key": "a", "id": api.new_id(1)}])
    read.clear()
    await notices(own_host).step()
    assert read == ["lane_heads"] * len(own_host.stores)


async def test_a_shard_that_is_away_keeps_what_it_set(
    own_host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(own_host)
    await own_host.client.put(f"/v1/namespaces/{api.namespace}", json={"items_max": 3})
    await notices(own_host).step()
    for store in own_host.stores.values():
        monkeypatch.setattr(store.shard.breaker, "state", "open")
        monkeypatch.setattr(store.shard.breaker, "_retry_at_s", float("inf"))
    with pytest.raises(Exception, match="shard"):
        await notices(own_host).step()
    assert own_host.process.quotas.of(api.namespace) is not None


SET: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "limits": (SQL.topic_limits, "topics/limits", {"topic": "t", "concurrency": 1}),
    "quotas": (SQL.limited, "", {"items_max": 3}),
    "shares": (SQL.min_shares, "topics/configure", {"topic": "t", "min_share": [{"priority": 5, "share": 0.5}]}),
}


@pytest.mark.parametrize("kind", SET)
async def test_a_look_that_began_before_something_was_set_does_not_end_after_it(
    own_host: QueueHost, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each process looks by itself, and once more when it sets something: the older answer must not stand."""
    statement, path, body = SET[kind]
    api, process = Api(own_host), own_host.process
    await api.enqueue_one("t")
    looks = {"limits": process.gates.read, "quotas": process.quotas.step, "shares": process.topics.read_shares}
    asked, goes_on, first = asyncio.Event(), asyncio.Event(), set(own_host.stores)
    for number, store in own_host.stores.items():
        fetch = store.pool.fetch

        async def held(given: Any, *args: Any, _fetch: Any = fetch, _number: int = number, **values: Any) -> Any:
            found = await _fetch(given, *args, **values)
            if given is statement and _number in first:
                first.discard(_number)
                asked.set()
                await goes_on.wait()
            return found

        monkeypatch.setattr(store.pool, "fetch", held)
    older = asyncio.create_task(looks[kind]())
    await asked.wait()
    method = "POST" if kind == "shares" else "PUT"
    url = f"/v1/namespaces/{api.namespace}/{path}".rstrip("/")
    setting = asyncio.create_task(own_host.client.request(method, url, json=body, headers=api.headers))
    await asyncio.wait([setting], timeout=0.3)  # it is through, where it does not wait for the older one
    goes_on.set()
    await older
    assert (await setting).status_code == 200

    pair = api.namespace, "t"
    known = {"limits": pair in process.gates.limits, "quotas": process.quotas.of(api.namespace) is not None}
    assert known.get(kind, pair in own_host.dispatch.shares)
