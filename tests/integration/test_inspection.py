"""A close look at a shard: what its server tells, how each process sees it, and what is told when it is away."""

import asyncio
from typing import Any

import asyncpg
import pytest

from shared.console.inspection import why
from shared.errors import ShardUnavailable
from shared.http.access import make_token
from tests.support import apps
from tests.support.apps import Service
from tests.support.databases import Database

AGREED: dict[str, Any] = {
    "breaker": "closed",
    "is_full": False,
    "map_version": 1,
    "draining": False,
    "owner": "a",
    "calls_waiting": 0,
}


async def inspected(service: Service, shard: int = 0) -> dict[str, Any]:
    answer = await service.client.get(f"/v1/shards/{shard}/inspection")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_both_services_tell_of_server_tables_and_sessions(
    dag_service: Service, queue_service: Service
) -> None:
    for service, table in ((queue_service, "item"), (dag_service, "node")):
        found = await inspected(service)
        assert found["untold"] == []
        assert found["server"]["wal_bytes"] > 0 and not found["server"]["is_standby"]
        tables = {each["table"]: each for each in found["tables"]}
        assert tables[table]["bytes"] > 0 and tables[table]["index_bytes"] > 0
        assert found["statements"] is None and found["standbys"] == []
        assert [view["breaker"] for view in found["views"]] == ["closed"]


async def test_processes_stand_side_by_side(queue_service: Service, database: Database, redis_url: str) -> None:
    async with apps.queue_service(database, redis_url) as other:
        found = await inspected(queue_service)
        assert len(found["views"]) == 2 and found["silent"] == 0
        breaker = next(iter(other.app.app.state.process.shards)).breaker
        broken: list[str] = []
        for _ in range(20):  # a duty of that process may find the shard well meanwhile
            breaker.state = "open"
            found = await inspected(queue_service)
            broken = [view["process"] for view in found["views"] if view["breaker"] == "open"]
            if broken:
                break
        assert len(broken) == 1 and f"not {broken[0]}" in found["why"]
        breaker.state = "closed"


async def test_who_waits_for_a_lock_is_named_with_who_holds_it(queue_service: Service, database: Database) -> None:
    one, other, third = [await asyncpg.connect(database.dsn) for _ in range(3)]
    await one.execute("BEGIN; LOCK TABLE queue_000.item")
    waiting = asyncio.create_task(other.execute("BEGIN; LOCK TABLE queue_000.item; ROLLBACK"))
    async with asyncio.timeout(20):
        while not await third.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            await asyncio.sleep(0)
    found = await inspected(queue_service)
    lock = next(each for each in found["locks"] if each["pid"] == other.get_server_pid())
    # A duty of the service that began to wait before it stands in its way as well.
    assert lock["table"] == "item" and one.get_server_pid() in lock["blocked_by"]
    assert "wait for a lock" in found["why"]
    assert one.get_server_pid() in [each["pid"] for each in found["transactions"]]
    await one.execute("ROLLBACK")
    await waiting
    for connection in (one, other, third):
        await connection.close()


async def test_statements_are_told_where_the_extension_is(queue_service: Service, database: Database) -> None:
    connection = await asyncpg.connect(database.dsn)
    await connection.execute(
        """CREATE SCHEMA "odd ""name"; CREATE VIEW "odd ""name".pg_stat_statements AS
        SELECT oid AS dbid, 'SELECT' || chr(10) || ' 1' AS query, 7 AS calls, 1.5 AS mean_exec_time,
            10.5 AS total_exec_time,
            7 AS rows FROM pg_database"""
    )
    found = await inspected(queue_service)
    assert [(each["statement"], each["calls"]) for each in found["statements"]] == [("SELECT 1", 7)]
    await connection.close()


async def test_what_a_server_does_not_tell_leaves_the_rest(
    queue_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = next(iter(queue_service.app.app.state.process.shards))

    async def away(_statement: Any) -> list[Any]:
        raise ShardUnavailable("shard 0 does not answer")

    monkeypatch.setattr(shard.pool, "fetch", away)
    found = await inspected(queue_service)
    assert found["server"] is None and found["tables"] is None and len(found["untold"]) == 7
    assert len(found["views"]) == 1


async def test_a_shard_that_is_not_there(queue_service: Service) -> None:
    for shard in ("9", "x", "-1", "00000", "1.0", "%00"):
        answer = await queue_service.client.get(f"/v1/shards/{shard}/inspection")
        assert answer.status_code == 404, shard


async def test_it_needs_ops_and_all_namespaces(database: Database, redis_url: str, tmp_path: Any) -> None:
    tokens = [
        make_token(names, scopes, None)
        for names, scopes in ((["*"], ["admin"]), (["a"], ["ops"]), (["*"], ["ops"]))
    ]
    file = tmp_path / "tokens.jsonl"
    file.write_text("".join(f"{line}\n" for _, line in tokens))
    async with apps.queue_service(database, redis_url, HEADGATE_TOKENS_FILE=file) as service:
        said = []
        for token, _ in tokens:
            headers = {"authorization": f"Bearer {token}"}
            said.append((await service.client.get("/v1/shards/0/inspection", headers=headers)).status_code)
        assert said == [403, 403, 200]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([{}, {}], "agrees"),
        ([{"breaker": "open"}, {"breaker": "half_open"}], "answers no process"),
        ([{}, {"breaker": "open"}], "not p1"),
        ([{"is_full": True}, {}], "disk is full"),
        ([{"map_version": 2}, {}], "shard map"),
        ([{"draining": True}, {"draining": True}], "drains"),
        ([{"owner": "b"}, {}], "different owners"),
        ([{"owner": None}, {"owner": None}], "Nobody owns"),
        ([{"calls_waiting": 2}, {"calls_waiting": 3}], "5 calls wait"),
    ],
)
def test_the_sentence_names_the_first_cause(changes: list[dict[str, Any]], told: str) -> None:
    views = {f"p{n}": AGREED | change for n, change in enumerate(changes)}
    assert told in why({"locks": []}, views)
