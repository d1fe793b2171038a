"""One shard's server is away: its own elements are refused and say so, everything else goes on."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from headgate import wire
from headgate._ids import shard_of
from shared.postgres.sql import Statement
from shared.shards import shard_map
from tests.support.bounded import steps
from tests.support.ports import free_port
from tests.support.queue_host import Api, QueueHost, queue_host


@pytest.fixture
async def half(own_host: QueueHost) -> AsyncIterator[QueueHost]:
    """A process whose shard 1 is on a server that nobody runs."""
    dsn = own_host.database.dsn
    away = f"0={dsn} 1=postgresql://postgres@127.0.0.1:{free_port()}/none"
    async with queue_host(own_host.database, own_host.clock, shards=away) as made:
        yield made


def element(result: dict[str, str]) -> tuple[str, str | None, str | None]:
    return result["status"], result.get("code"), result.get("outcome")


AWAY = ("refused", "shard_unavailable", "none")


async def test_an_enqueue_answers_per_element(half: QueueHost) -> None:
    api = Api(half)
    results = await api.enqueue(*({"topic": "t", "id": api.new_id(n % 2)} for n in range(4)))

    assert [element(r) for r in results] == [("enqueued", None, None), AWAY] * 2
    assert len(await api.dequeue("t", 9)) == 2


async def test_a_key_stays_at_its_home_also_while_that_is_away(half: QueueHost, own_host: QueueHost) -> None:
    """No fallback: a retry that found another shard would make a second item."""
    api = Api(half)
    whole = api.on(own_host)
    items = [{"topic": "t", "idempotency_key": f"k{n}"} for n in range(20)]
    first = await api.enqueue(*items)
    assert {r["status"] for r in first} == {"enqueued", "refused"}
    later = await whole.enqueue(*items)

    for before, after in zip(first, later, strict=True):
        if before["status"] == "enqueued":
            assert after == {"id": before["id"], "status": "duplicate"}
            assert shard_of(after["id"]) == 0
        else:
            assert after["status"] == "enqueued"
            assert shard_of(after["id"]) == 1


async def test_affinity_stays_at_its_home(half: QueueHost) -> None:
    results = await Api(half).enqueue(*({"topic": "t", "affinity": f"a{n}"} for n in range(20)))

    assert {element(r) for r in results} == {("enqueued", None, None), AWAY}


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
async def test_settling_answers_per_element(half: QueueHost, own_host: QueueHost, verb: str) -> None:
    api = Api(half)
    whole = api.on(own_host)
    await whole.enqueue({"topic": "t", "id": api.new_id(0)}, {"topic": "t", "id": api.new_id(1)})
    leased = sorted(await whole.dequeue("t", 2), key=lambda item: shard_of(item["id"]))
    items = [{"id": item["id"], "lease_token": item["lease_token"]} for item in leased]
    results = await api.results(verb, {"items": items})

    assert results[0]["status"] in ("acked", "requeued", "extended")
    assert element(results[1]) == AWAY


async def test_revive_and_cancel_answer_per_element(half: QueueHost) -> None:
    api = Api(half)
    here = await api.enqueue_one("t", disabled=True, id=api.new_id(0))
    there = api.new_id(1)

    assert [element(r) for r in await api.results("revive", {"items": [{"id": here}, {"id": there}]})] == [
        ("revived", None, None),
        AWAY,
    ]
    assert [element(r) for r in await api.results("cancel", {"ids": [there, here]})] == [
        AWAY,
        ("cancelled", None, None),
    ]


async def test_dequeue_serves_what_can_be_reached(half: QueueHost) -> None:
    api = Api(half)
    ids = [await api.enqueue_one("t", id=api.new_id(0)) for _ in range(3)]

    assert [item["id"] for item in await api.dequeue("t", 9, wait_s=5)] == ids


async def test_health_and_queries_show_what_is_left(half: QueueHost) -> None:
    api = Api(half)
    await api.enqueue_one("t", id=api.new_id(0))
    shards = (await half.client.get("/v1/shards")).json()["items"]

    assert [row["state"] for row in shards] == ["healthy", "open"]
    assert [set(row) for row in shards] == [set(wire.ShardHealth.model_fields)] * 2
    assert (await half.client.get("/v1/shards/1")).json() == shards[1]
    assert (await api.topic("t"))["ready"] == 1
    ready = await half.client.get("/readyz")
    assert (ready.status_code, sorted(ready.json()["shards"].values())) == (200, ["down", "up"])


async def pages(api: Api, path: str, **query: Any) -> tuple[list[Any], list[list[int]]]:
    """All elements of a list of the namespace, and which shards each page lacks."""
    found: list[Any] = []
    away: list[list[int]] = []
    for _ in steps():
        answer = await api.host.client.get(f"/v1/namespaces/{api.namespace}{path}", params={"limit": 2, **query})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["items"]
        away.append(page.get("away", []))
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    return found, away


async def test_lists_hold_what_is_left_and_name_the_shard_that_is_away(
    half: QueueHost, own_host: QueueHost
) -> None:
    api = Api(half)
    whole = api.on(own_host)
    for topic in ("a", "b", "c"):
        for shard in (0, 1):
            await whole.enqueue_one(topic, id=whole.new_id(shard), max_attempts=1)
    for item in await whole.dequeue("a", 2, worker="w1"):
        await whole.nack(item, error="boom", final=True)
    await api.dequeue("b", 1, worker="w2")
    for host in (half, own_host):
        await host.process.workers.step()
    assert (await whole.post("operations", {"kind": "redrive", "filter": {"topic": "none"}})).status_code == 200

    items, away = await pages(api, "/items")
    assert [shard_of(item["id"]) for item in items] == [0] * 3 and [1] in away
    dead, away = await pages(api, "/dead")
    assert [(group["topic"], group["count"]) for group in dead] == [("a", 1)] and away[-1] == [1]
    topics, away = await pages(api, "/topics")
    assert [(row["topic"], row["ready"] + row["leased"] + row["dead"]) for row in topics] == [
        (topic, 1) for topic in "abc"
    ]
    assert set(map(tuple, away)) == {(1,)}
    for path in ("/workers", "/operations"):
        assert (await pages(api, path))[1][-1] == [1], path
    one = (await half.client.get(f"/v1/namespaces/{api.namespace}")).json()
    assert (one["items"], one["away"]) == (3, [1])
    assert (await half.client.get("/v1/namespaces")).json()["away"] == [1]
    for path in ("", "/items", "/dead", "/topics", "/workers", "/operations"):
        answer = (await own_host.client.get(f"/v1/namespaces/{api.namespace}{path}")).json()
        assert "away" not in answer, path


async def test_a_list_of_which_no_shard_answers_is_unavailable(own_host: QueueHost) -> None:
    away = f"0=postgresql://postgres@127.0.0.1:{free_port()}/none"
    async with queue_host(own_host.database, own_host.clock, shards=away) as none:
        for path in ("", "/items", "/dead", "/topics", "/workers", "/operations"):
            answer = await none.client.get(f"/v1/namespaces/{Api(none).namespace}{path}")
            assert (answer.status_code, answer.json()["code"]) == (503, "shard_unavailable"), path


async def test_a_single_item_of_a_shard_that_is_away_is_unavailable(half: QueueHost) -> None:
    api = Api(half)
    answer = await api.get(f"items/{api.new_id(1)}")

    assert (answer.status_code, answer.json()["code"]) == (503, "shard_unavailable")
    assert answer.json()["outcome"] == "none"
    assert answer.headers["retry-after"].isdigit()


KILL = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'headgate queue%'"""


async def test_connections_that_were_cut_while_idle_cost_one_refusal_at_most(own_host: QueueHost) -> None:
    api = Api(own_host)
    for verb, body in (
        ("enqueue", {"items": [{"topic": "t", "id": api.new_id(0)}]}),
        ("ack", {"items": [{"id": api.new_id(0), "lease_token": "x"}]}),
        ("dequeue", {"topics": [{"topic": "t"}]}),
        ("topics/purge", {"topic": "t"}),
    ):
        await api.post(verb, body)
        await own_host.clock.connection.fetchval(KILL)
        answers = [await api.post(verb, body) for _ in range(8)]
        assert {answer.status_code for answer in answers} <= {200, 201, 503}, [a.text for a in answers]
        assert [answer.status_code for answer in answers[-2:]] != [503, 503]


async def test_connections_that_are_cut_under_way_are_an_unavailable_shard(own_host: QueueHost) -> None:
    api = Api(own_host)
    for turn in range(12):
        calls = [
            asyncio.create_task(api.post("enqueue", {"items": [{"topic": "t", "id": api.new_id(0)}]}))
            for _ in range(4)
        ]
        await asyncio.sleep(turn * 0.0005)
        await own_host.clock.connection.fetchval(KILL)
        for answer in await asyncio.gather(*calls):
            assert answer.status_code == 201, answer.text
            [result] = answer.json()["results"]
            assert element(result)[:2] in (("enqueued", None), ("refused", "shard_unavailable"))
    sent = await own_host.count("ready")
    got = 0
    for _ in range(20):  # what is left of the cut connections is met and dropped, one by one
        got += len(await api.dequeue("t", 1000, wait_s=1 if got < sent else 0))
    assert got == sent


# -- durability ---------------------------------------------------------------------------------------------


async def test_only_the_systems_own_namespace_commits_without_waiting(own_host: QueueHost) -> None:
    """What an answer promises has been written to disk; at-most-once items are claimed so in every case."""
    api = Api(own_host)
    used: list[str] = []

    async def noting(ask: Any, pool: str, statement: Statement, **values: Any) -> Any:
        used.append(f"{statement.name} {pool}")
        return await ask(statement, **values)

    for store in own_host.stores.values():
        for name in ("pool", "relaxed"):
            pool = getattr(store.shard, name)
            for verb in ("fetch", "row"):
                setattr(pool, verb, partial(noting, getattr(pool, verb), name))
    await api.enqueue_one("t", delivery="at_most_once")
    await api.ack(await api.dequeue_one("t"))
    assert {"enqueue pool", "claim pool", "ack pool"} <= set(used)
    assert not [call for call in used if call.endswith("relaxed")]

    system = api.as_dag_service("_dag")
    await system.enqueue_one("acks/0")
    await system.ack(await system.dequeue_one("acks/0"))
    assert {call for call in used if call.endswith("relaxed")} == {"claim relaxed", "ack relaxed"}


async def test_the_two_pools_are_what_they_are_called(own_host: QueueHost) -> None:
    ask = Statement("ask", (), "SELECT current_setting('synchronous_commit') AS s")
    shard = own_host.stores[0].shard

    assert (await shard.pool.row(ask))["s"] == "on"
    assert (await shard.relaxed.row(ask))["s"] == "off"


async def test_a_server_of_an_old_release_is_served_and_told_of(
    own_host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(shard_map.log, "error", lambda text, **fields: told.append(f"{text} {fields['shard']}"))
    shards = own_host.process.shards
    for releases, schemas in (({}, set()), ({18: 99}, {"queue_000", "queue_001"})):
        monkeypatch.setattr(shard_map, "RELEASES_MIN", shard_map.RELEASES_MIN | releases)
        await shards.check_schema()
        assert {line.split()[-1] for line in told if "newer release" in line} == schemas
