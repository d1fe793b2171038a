"""Lists by name go page by page over all shards, and a page reads what belongs to it alone."""

from typing import Any

import pytest

from services.queue.operations.listing import Part, cut, merge
from services.queue.store.shard_store import Store
from shared.http import cursors
from tests.support.queue_host import Api, QueueHost


async def pages(api: Api, path: str, **query: Any) -> list[list[str]]:
    """The names on every page of a list."""
    found: list[list[str]] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await api.host.client.get(path, params={**query, **cursor}, headers=api.headers)
        assert answer.status_code == 200, answer.text
        field = "topic" if path.endswith("/topics") else "namespace"
        found.append([row[field] for row in answer.json()["items"]])
        if answer.json()["next_cursor"] is None:
            return found
        cursor = {"cursor": answer.json()["next_cursor"]}
        assert len(found) < 100


def scan(api: Api, topics: int) -> None:
    object.__setattr__(api.host.settings, "topics_scan_max", topics)


async def fill(host: QueueHost, namespace: str, topics: int) -> None:
    """Topics that each hold something, by what the shards know of them."""
    await host.rows("INSERT INTO namespace (name) VALUES ($1) ON CONFLICT DO NOTHING", namespace)
    await host.rows(
        """WITH made AS (
            INSERT INTO topic (namespace_id, name)
            SELECT namespace_id, 'topic/' || i FROM namespace, generate_series(1, $2::int) AS i WHERE name = $1
            RETURNING topic_id)
        INSERT INTO stat_delta SELECT topic_id, 1, 0, 0, 0, 0, 2 FROM made""",
        namespace,
        topics,
    )


async def test_names_of_several_shards_come_in_order_without_gap_or_repeat(own_api: Api) -> None:
    names = ["B", "a", "a/1", "a.1", "a_1", "b", "b-2", "z"]
    for shard, name in enumerate(names):
        for other in {shard % 2, 0}:
            await own_api.enqueue_one(name, id=own_api.new_id(other))
    path = f"/v1/namespaces/{own_api.namespace}/topics"
    for limit in (1, 2, 3, 8, 100):
        for topics in (limit + 1, 1_000):
            scan(own_api, topics)
            found = await pages(own_api, path, limit=limit)
            assert [name for page in found for name in page] == sorted(names)
            assert all(len(page) <= limit for page in found)


async def test_empty_topics_are_passed_over_a_bounded_number_a_page(own_api: Api) -> None:
    scan(own_api, 3)
    for number in range(9):
        held = await own_api.enqueue_one(f"t{number}", id=own_api.new_id(0))
        if number not in (4, 8):
            assert await own_api.cancel(held) == ["cancelled"]
    found = await pages(own_api, f"/v1/namespaces/{own_api.namespace}/topics", limit=2)
    assert [name for page in found for name in page] == ["t4", "t8"]
    assert len(found) > 1, "a page looked at more than it may"


async def test_namespaces_come_page_by_page_with_what_they_hold(own_api: Api) -> None:
    names = [f"tenant-{number}" for number in range(5)]
    for shard, name in enumerate(names):
        api = Api(own_api.host, name)
        await api.enqueue_one("t", payload="12", id=api.new_id(shard % 2))
        await api.enqueue_one("t", payload="12", id=api.new_id(0))
    for limit in (1, 2, 6, 7):
        found = await pages(own_api, "/v1/namespaces", limit=limit)
        assert [name for page in found for name in page] == ["default", *names]
    one = (await own_api.host.client.get("/v1/namespaces/tenant-3")).json()
    assert (one["items"], one["stored_bytes"], one["in_flight"]) == (2, 8, 0)
    await own_api.host.fold()
    assert (await own_api.host.client.get("/v1/namespaces/tenant-3")).json() == one


async def test_what_another_tenant_has_is_not_read(own_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for a list of topics, nor for one namespace."""
    await fill(own_api.host, "large", 12_000)
    await own_api.enqueue_one("t")
    read: list[int] = []
    for store in own_api.host.stores.values():
        _count_rows(store, read, monkeypatch)
    path = f"/v1/namespaces/{own_api.namespace}"
    assert await pages(own_api, f"{path}/topics") == [["t"]]
    assert (await own_api.host.client.get(path)).json()["items"] == 1
    assert 0 < sum(read) < 20
    read.clear()
    answer = await own_api.host.client.get("/v1/namespaces/large/topics", params={"limit": 100})
    assert len(answer.json()["items"]) == 100
    assert sum(read) <= 2 * 201, "more than a page of each shard"


def _count_rows(store: Store, read: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    original = store.pool.fetch

    async def fetch(*args: Any, **values: Any) -> list[Any]:
        rows = await original(*args, **values)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(store.pool, "fetch", fetch)


async def test_a_page_ends_where_one_shard_has_not_looked_further() -> None:
    def rows(*names: str) -> dict[str, str]:
        return {name: name for name in names}

    merged, horizon = await merge([Part(rows("a", "d"), None), Part(rows("a", "b"), "b"), Part(rows("c"), "c")])
    assert (list(merged), horizon) == (["a", "b"], "b")
    assert len(merged["a"]) == 2
    assert cut(list(merged), 1, horizon) == (["a"], "a")
    assert cut(list(merged), 2, horizon) == (["a", "b"], "b")
    assert await merge([]) == ({}, None)


@pytest.mark.parametrize("name", ["\0", "a\0b", "é", "\U0010ffff", "x" * 5_000])
async def test_a_cursor_of_no_name_is_no_servers_fault(api: Api, name: str) -> None:
    for path, query in (("", "namespaces"), (f"/{api.namespace}/topics", f"topics|{api.namespace}")):
        answer = await api.host.client.get(f"/v1/namespaces{path}", params={"cursor": cursors.encode(query, name)})
        assert answer.status_code == (422 if "\0" in name else 200), answer.text
