"""Items that have ids by their callers, and nothing rarer, are taken in as if they were new; where one is not,
each is looked at. Both come to the same."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from services.queue.enqueue import named_enqueue
from services.queue.model import Kind
from services.queue.store.enqueue import NotNew
from shared.errors import Invalid
from shared.postgres.sql import Statement
from tests.support.flushes import together
from tests.support.queue_host import Api, QueueHost

HOUR_S = 3_600


def new_items(api: Api, shard: int) -> list[dict[str, Any]]:
    """Items of two topics and three kinds, all new."""
    mail, calls = {"topic": "mail", "lease_s": 30}, {"topic": "calls", "priority": 3}
    kinds: list[tuple[dict[str, Any], Any]] = [
        (mail, "a"),
        (calls, None),
        (mail, "\x1e\n\u2028"),
        (mail | {"priority": 1}, {"b": 1}),
    ]
    return [{"id": api.new_id(shard), "payload": payload} | kind for kind, payload in kinds]


async def odd_items(api: Api, shard: int) -> list[tuple[dict[str, Any], str]]:
    """An item that cannot be taken in as new, of each kind, and how it is answered."""
    living = await api.enqueue_one("mail", id=api.new_id(shard))
    acked = await api.enqueue_one("gone", id=api.new_id(shard))
    assert await api.ack(await api.dequeue_one("gone")) == ["acked"]
    cancelled = api.new_id(shard)
    assert await api.cancel(cancelled) == ["cancelled"]
    stranger = Api(api.host)
    foreign = await stranger.enqueue_one("mail", id=api.new_id(shard))
    old, ahead = api.new_id(shard, age_s=1_000 * HOUR_S), api.new_id(shard, age_s=-HOUR_S)
    return [
        ({"topic": "mail", "id": item_id, "payload": "again"}, status)
        for item_id, status in (
            (living, "duplicate"),
            (acked, "duplicate"),
            (cancelled, "cancelled"),
            (foreign, "id_unavailable"),
            (old, "id_too_old"),
            (ahead, "id_in_future"),
        )
    ]


def told(results: Sequence[dict[str, Any]]) -> list[str]:
    return [result.get("code") or result["status"] for result in results]


async def written(api: Api) -> list[dict[str, Any]]:
    """What is stored of the namespace's items but their ids, names' numbers and the time itself."""
    rows = await api.host.rows(
        "SELECT topic.name, "
        "to_jsonb(item) - ARRAY['id', 'namespace_id', 'topic_id', 'enqueued_at', 'deliver_at'] AS item, "
        "item.deliver_at = item.enqueued_at AS is_due, ready.deliver_at = item.deliver_at AS stands, "
        "ready.priority = item.priority AND ready.topic_id = item.topic_id AS is_in_line "
        "FROM item JOIN topic USING (topic_id) LEFT JOIN ready ON ready.id = item.id "
        "WHERE item.namespace_id = (SELECT namespace_id FROM namespace WHERE name = $1) ORDER BY item.payload",
        api.namespace,
    )
    return [dict(row) for row in rows]


async def counted(api: Api) -> list[dict[str, Any]]:
    """What the changes of the namespace's counts come to, by topic."""
    rows = await api.host.rows(
        "SELECT topic.name, sum(ready) AS ready, sum(delayed) AS delayed, sum(leased) AS leased, "
        "sum(disabled) AS disabled, sum(bytes) AS bytes FROM stat_delta JOIN topic "
        "USING (topic_id) WHERE topic.namespace_id = (SELECT namespace_id FROM namespace WHERE name = $1) "
        "GROUP BY topic.name ORDER BY topic.name",
        api.namespace,
    )
    return [dict(row) for row in rows]


@pytest.fixture
def asked(own_host: QueueHost, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements by which items come in, as they are asked of the first shard."""
    pool, found = own_host.stores[0].pool, []
    original = pool.row

    async def row(statement: Statement, **values: Any) -> Any:
        if statement.name.startswith("enqueue"):
            found.append(statement.name)
        return await original(statement, **values)

    monkeypatch.setattr(pool, "row", row)
    return found


async def test_both_statements_write_the_same(
    own_host: QueueHost, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for statement in ("enqueue_named", "enqueue"):
        api = Api(own_host, statement)
        with monkeypatch.context() as patched:
            if statement == "enqueue":
                patched.setattr(own_host.process.dispatch, "is_awaited", lambda *_: True)
            assert told(await api.enqueue(*new_items(api, 0))) == ["enqueued"] * 4
        found.append((await written(api), await counted(api)))
    assert asked == ["enqueue_named", "enqueue"]
    assert found[0] == found[1]
    assert len(found[0][0]) == 4


@pytest.mark.parametrize("which", range(6))
async def test_one_that_is_not_new_is_answered_alone(own_host: QueueHost, asked: list[str], which: int) -> None:
    """Wherever in its call it stands, and of whatever other calls there are in the flush."""
    api = Api(own_host)
    odd, status = (await odd_items(api, 0))[which]
    asked.clear()
    before = len(await written(api))
    first, second, third, fourth = new_items(api, 0)

    results = await together(own_host, [api.enqueue(first, odd, second), api.enqueue(third), api.enqueue(fourth)])

    assert [told(part) for part in results] == [["enqueued", status, "enqueued"], ["enqueued"], ["enqueued"]]
    assert asked == ["enqueue_named", "enqueue"]
    assert len(await written(api)) == before + 4
    taken = await api.dequeue("mail", 9) + await api.dequeue("calls", 9)
    assert {item["id"] for item in (first, second, third, fourth)} <= {item["id"] for item in taken}


@pytest.mark.parametrize("which", range(6))
async def test_as_new_all_are_taken_in_or_none(own_host: QueueHost, which: int) -> None:
    api = Api(own_host)
    odd, _ = (await odd_items(api, 0))[which]
    store = own_host.stores[0]
    before = await written(api), await counted(api)

    kind: Kind = (api.namespace, "mail", 0, 60.0)
    for ids in ([odd["id"], api.new_id(0)], [api.new_id(0), odd["id"]]):
        with pytest.raises((NotNew, Invalid)):
            await store.enqueue_named([(kind, ids, "1\x1e2")])

    assert (await written(api), await counted(api)) == before


async def test_ends_between_ids_are_no_ends_of_these(own_host: QueueHost, asked: list[str]) -> None:
    """What ended lies between the first and the last new id, by itself or with many in a row."""
    api = Api(own_host)
    ids = [api.new_id(0) for _ in range(30)]
    ended = [{"topic": "gone", "id": item_id} for item_id in ids[1:-1:2]]
    await api.enqueue(*ended)
    leased = await api.dequeue("gone", 30)
    assert await api.ack(leased[0]) == ["acked"]
    assert set(await api.ack(*leased[1:])) == {"acked"}
    assert min(await asyncio.gather(api.host.count("ended"), api.host.count("acked"))) > 0
    asked.clear()

    new = [{"topic": "mail", "id": item_id} for item_id in ids[::2]] + [{"topic": "mail", "id": ids[-1]}]
    assert told(await api.enqueue(*new)) == ["enqueued"] * len(new)
    assert asked == ["enqueue_named"]


async def test_an_id_that_two_namespaces_enqueue_in_one_flush_is_the_firsts(own_host: QueueHost) -> None:
    api, other = Api(own_host), Api(own_host)
    for each in (api, other):
        await each.enqueue_one("mail", id=api.new_id(0), disabled=True)
    item = {"topic": "mail", "id": api.new_id(0)}

    results = await together(own_host, [api.enqueue(item), other.enqueue(item), api.enqueue(item)])

    assert [told(part) for part in results] == [["enqueued"], ["id_unavailable"], ["duplicate"]]
    assert [taken["id"] for taken in await api.dequeue("mail", 9)] == [item["id"]]
    assert await other.dequeue("mail", 9) == []


async def test_who_waits_for_one_is_handed_it(own_host: QueueHost, asked: list[str]) -> None:
    """Then the statement is the one that leases."""
    api = Api(own_host)
    await api.enqueue_one("mail", id=api.new_id(0))
    await api.ack(await api.dequeue_one("mail"))
    waiting = asyncio.create_task(api.dequeue("mail", 1, wait_s=20))
    async with asyncio.timeout(60):
        while not own_host.process.dispatch.line(api.namespace, "mail").waiting:
            await asyncio.sleep(0.005)
    asked.clear()

    item_id = await api.enqueue_one("mail", id=api.new_id(0))

    assert [item["id"] for item in await waiting] == [item_id]
    assert asked == ["enqueue"]


async def test_an_id_of_no_shard_is_told_by_its_place(api: Api) -> None:
    answer = await api.post("enqueue", {"items": [{"topic": "t", "id": api.new_id(4_000)}]})
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/items/0/id"]


async def test_why_the_long_way_was_gone_is_counted(own_host: QueueHost, monkeypatch: pytest.MonkeyPatch) -> None:
    counted_as: list[tuple[str, str]] = []
    monkeypatch.setattr(
        named_enqueue.Fallback, "counted", lambda self, path: counted_as.append((path, self.reason))
    )
    api = Api(own_host)
    item = {"topic": "t", "id": api.new_id(0)}
    assert told(await api.enqueue(item)) == ["enqueued"]
    assert told(await api.enqueue(item)) == ["duplicate"]
    assert counted_as == [("enqueue_named", "known")]
