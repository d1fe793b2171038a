"""The audit finds exactly the damage that was made, its repair mends exactly that, and both leave health alone."""

import asyncio
import os
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from audit import __main__ as command
from audit import between
from audit.finding import KINDS, Finding
from audit.mending import mend
from audit.reading import Reader, Scope, reader, silent
from headgate import AsyncClient
from tests.support import apps
from tests.support.apps import DAG_TOKEN, Service
from tests.support.dag_world import specs
from tests.support.databases import Databases

NOW = Scope(age_s=0.0)
# Completions that the DAG service has not applied and acked.
UNTOLD = "SELECT count(*) FROM item JOIN topic USING (topic_id) WHERE name LIKE 'acks/%'"
TABLES = "TRUNCATE dag, node, node_spec, edge, external, change, scan"


@dataclass
class Both:
    """Two running services on one database, a client of theirs, and readers of their shards."""

    queue: Service
    dag: Service
    client: AsyncClient
    shards: dict[str, Reader]

    async def look(self, scope: Scope = NOW) -> list[Finding]:
        return await command.look([self.shards["dag_000"]], [self.shards["queue_000"]], scope, silent)

    async def kinds(self) -> list[str]:
        return sorted(finding.kind for finding in await self.look())

    async def mend(self) -> int:
        return await mend(await self.look(), self.shards, self.cancel)

    async def cancel(self, namespace: str, item_ids: Any) -> int:
        process = self.queue.app.app.state.process
        caller = command.Caller(frozenset({"dag", "admin"}))
        results = await process.cancels.cancel(namespace, item_ids, caller)
        return sum(result.status == "cancelled" for result in results)

    async def sql(self, schema: str, statement: str, *args: Any) -> Any:
        return await self.shards[schema].connection.fetchval(statement, *args)

    async def healthy(self) -> None:
        """Wait until everything is on its way no more."""
        async with asyncio.timeout(60):
            while await self.sql("queue_000", UNTOLD) or await self.look():
                await asyncio.sleep(0.05)

    async def make(self, nodes: Any) -> str:
        body = {"nodes": specs(nodes) if isinstance(nodes, dict) else nodes}
        made = await self.dag.client.post("/v1/namespaces/default/dags", json=body)
        assert made.status_code == 201, made.text
        await self.healthy()
        return str(made.json()["id"])

    async def run(self, *keys: str) -> None:
        """Deliver and ack items of these nodes, whichever comes first."""
        for _ in keys:
            async with asyncio.timeout(60):
                items: list[Any] = []
                while not items:
                    items = list(await self.client.dequeue({"work": 1}, wait_s=1.0))
            [item] = items
            await self.client.ack([{"id": item.id, "lease_token": item.lease_token}])

    async def ended(self, dag: str) -> str:
        async with asyncio.timeout(60):
            while True:
                state = (await self.dag.client.get(f"/v1/namespaces/default/dags/{dag}")).json()["state"]
                if state not in ("running", "cancelling"):
                    return str(state)
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
async def running(databases: Databases, redis_url: str) -> AsyncIterator[Both]:
    database = await databases.create(queue_shards=1, dag_shards=1)
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(apps.queue_service(database, redis_url))
        dag = await stack.enter_async_context(apps.dag_service(database, redis_url, queue.url))
        client = await stack.enter_async_context(AsyncClient(queue_url=queue.url, dag_url=dag.url))
        shards = {a.schema: await stack.enter_async_context(reader(a)) for a in database.addresses}
        yield Both(queue, dag, client, shards)
    await databases.drop(database)


@pytest.fixture
async def both(running: Both) -> Both:
    """Every test leaves the queue empty, and finds no DAG."""
    await running.shards["dag_000"].connection.execute(TABLES)
    return running


FORGET = """
WITH i AS (DELETE FROM item RETURNING id, topic_id, octet_length(payload) AS bytes),
r AS (DELETE FROM ready), p AS (DELETE FROM parked), d AS (DELETE FROM stat_delta), s AS (DELETE FROM topic_stat)
SELECT count(*) FROM i
"""


DISABLE = """
WITH r AS (DELETE FROM ready RETURNING *), i AS (UPDATE item SET deliver_at = NULL),
p AS (INSERT INTO parked SELECT r.id, i.namespace_id, r.topic_id, 'disabled', true, now() FROM r
    JOIN item i USING (id))
INSERT INTO stat_delta SELECT topic_id, -1, 0, 0, 1, 0 FROM r
"""


async def test_r28_items_that_a_restored_queue_has_never_seen_are_made_again(both: Both) -> None:
    dag = await both.make({"a": [], "b": ["a"]})
    await both.sql("queue_000", FORGET)
    assert await both.kinds() == ["disabled_lost", "item_lost"]
    assert await both.mend() == 2
    await both.healthy()
    assert await both.mend() == 0
    await both.run("a", "b")
    assert await both.ended(dag) == "succeeded"


FORGET_DISABLED = """
WITH p AS (DELETE FROM parked RETURNING id),
i AS (DELETE FROM item USING p WHERE item.id = p.id RETURNING item.topic_id, octet_length(item.payload) AS bytes)
INSERT INTO stat_delta SELECT topic_id, 0, 0, 0, -1, 0, -bytes FROM i
"""


async def test_d11_a_disabled_item_that_the_queue_lost_is_made_at_its_release(both: Both) -> None:
    dag = await both.make({"a": [], "b": ["a"]})
    assert await both.sql("dag_000", "SELECT enqueued FROM node WHERE key = 'b'")
    await both.sql("queue_000", FORGET_DISABLED)
    # While the row of its add stands, the queue may not have been given it yet.
    await both.sql("dag_000", "INSERT INTO adding SELECT no, no FROM node WHERE key = 'b'")
    assert "disabled_lost" not in await both.kinds()
    await both.sql("dag_000", "DELETE FROM adding")
    assert await both.kinds() == ["disabled_lost"]
    assert await both.mend() == 1
    assert await both.kinds() == []
    await both.run("a", "b")
    assert await both.ended(dag) == "succeeded"


async def test_r28_a_revive_that_the_queue_lost_is_told_again(both: Both) -> None:
    dag = await both.make({"a": []})
    await both.sql("queue_000", DISABLE)
    assert await both.kinds() == ["revive_lost"]
    assert await both.mend() == 1
    await both.healthy()
    assert await both.mend() == 0
    await both.run("a")
    assert await both.ended(dag) == "succeeded"


async def test_a_payload_that_postgres_takes_for_no_json_stops_no_audit(both: Both) -> None:
    """While the audit looks whether a node's end is on its way, it meets all items of the shard."""
    await both.make({"a": []})
    await both.client.enqueue([{"topic": "other", "payload": "a\u0000b"}])
    await both.sql("queue_000", DISABLE)
    assert "revive_lost" in await both.kinds()
    await both.sql("queue_000", FORGET)


async def test_r29_an_end_that_a_restored_dag_shard_has_forgotten_is_told_again(both: Both) -> None:
    dag = await both.make({"a": [], "b": ["a"], "c": ["b"]})
    dump = await both.shards["dag_000"].connection.fetch("SELECT no, state, up_left, up_ok FROM node")
    await both.run("a")
    await both.healthy()
    # Back to before the completion: nothing but the node's and its DAG's rows had changed by it.
    for row in dump:
        await both.sql(
            "dag_000",
            "UPDATE node SET state = $2, up_left = $3, up_ok = $4, finished_at = NULL,"
            " released_at = CASE WHEN $2 = 'blocked' THEN NULL ELSE released_at END WHERE no = $1",
            *row,
        )
    await both.sql("dag_000", "UPDATE edge SET satisfied = false")
    await both.sql("dag_000", "UPDATE dag SET blocked = 2, released = 1, succeeded = 0")
    assert await both.kinds() == ["end_lost"]
    assert await both.mend() == 1
    await both.healthy()
    assert await both.mend() == 0
    # b was revived before the loss, and is told so: its item is the same.
    await both.run("b", "c")
    assert await both.ended(dag) == "succeeded"


class Slow(Reader):
    """A reader of a queue that looks at items only after `first` was done."""

    def __init__(self, shard: Reader, first: Callable[[], Awaitable[None]]) -> None:
        super().__init__(shard.connection, shard.address)
        self._first = first

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        await self._first()
        async with super().snapshot():
            yield


async def test_a_node_that_ends_between_two_looks_is_not_lost(both: Both) -> None:
    """The node was read as released; by the look at the queue its item and its completion are gone."""
    dag = await both.make({"a": []})

    async def end() -> None:
        await both.run("a")
        async with asyncio.timeout(60):
            while await both.sql("queue_000", "SELECT count(*) FROM item"):
                await asyncio.sleep(0.05)

    slow = Slow(both.shards["queue_000"], end)
    assert await between.check([both.shards["dag_000"]], [slow], Scope(dag=dag, age_s=0.0)) == []
    assert await both.ended(dag) == "succeeded"


@pytest.mark.parametrize("state", ["running", "cancelling"])
async def test_a_dag_whose_end_was_lost_ends(both: Both, state: str) -> None:
    dag = await both.make({"a": []})
    await both.run("a")
    assert await both.ended(dag) == "succeeded"
    await both.sql("dag_000", "UPDATE dag SET state = $1, finished_at = NULL, cancel_cause = 'call'", state)
    assert await both.kinds() == ["dag_unended"]
    assert await both.mend() == 1
    assert await both.ended(dag) == ("succeeded" if state == "running" else "cancelled")
    await both.healthy()


async def test_a_dag_that_is_open_or_held_or_empty_has_not_come_to_its_end(both: Both) -> None:
    for body in ({"open": True}, {"hold": True}, {}):
        made = await both.dag.client.post("/v1/namespaces/default/dags", json=body)
        assert made.status_code == 201, made.text
    assert await both.kinds() == []


async def test_totals_that_kept_a_dag_from_ending_are_mended_and_it_ends(both: Both) -> None:
    dag = await both.make({"a": []})
    await both.run("a")
    assert await both.ended(dag) == "succeeded"
    await both.sql("dag_000", "UPDATE dag SET state = 'running', finished_at = NULL, released = 1")
    assert await both.kinds() == ["dag_totals"]
    assert await both.mend() == 1
    assert await both.ended(dag) == "succeeded"


async def test_a_cancel_that_nobody_goes_on_with_is_walked_again(both: Both) -> None:
    dag = await both.make({"a": [], "b": ["a"]})
    await both.sql("dag_000", "UPDATE dag SET state = 'cancelling', cancel_cause = 'call'")
    assert await both.kinds() == ["node_stuck"]
    assert await both.mend() == 1
    assert await both.ended(dag) == "cancelled"
    await both.healthy()


async def test_what_a_cancelled_dag_has_out_is_not_revived(both: Both) -> None:
    """Its disabled item is told to be cancelled, by the repair of a lost revive too."""
    dag = await both.make({"a": []})
    await both.sql("queue_000", DISABLE)
    await both.sql("dag_000", "UPDATE dag SET state = 'cancelling', cancel_cause = 'call'")
    assert await both.kinds() == ["revive_lost"]
    assert await both.mend() == 1
    assert await both.ended(dag) == "cancelled"
    await both.healthy()


SUB = [{"key": "sub", "dag": {"nodes": specs({"a": []})}}]


async def test_r29_a_sub_dag_that_was_lost_is_begun_again(both: Both) -> None:
    dag = await both.make(SUB)
    child = await both.sql("dag_000", "SELECT no FROM dag WHERE parent_dag IS NOT NULL")
    await both.sql("queue_000", FORGET)
    for table, column in (("node_spec", "node_no >> 22"), ("node", "dag_no"), ("change", "dag_no"), ("dag", "no")):
        await both.sql("dag_000", f"DELETE FROM {table} WHERE {column} = $1", child)
    assert await both.kinds() == ["sub_lost"]
    assert await both.mend() == 1
    await both.healthy()
    await both.run("a")
    assert await both.ended(dag) == "succeeded"


async def test_r29_an_end_of_a_sub_dag_that_its_node_was_not_told_is_told_again(both: Both) -> None:
    dag = await both.make(SUB)
    await both.run("a")
    assert await both.ended(dag) == "succeeded"
    await both.healthy()
    await both.sql("dag_000", "UPDATE node SET state = 'released', finished_at = NULL WHERE sub")
    await both.sql(
        "dag_000",
        "UPDATE dag SET state = 'running', finished_at = NULL, released = 1, succeeded = 0"
        " WHERE parent_dag IS NULL",
    )
    assert await both.kinds() == ["sub_end_lost"]
    assert await both.mend() == 1
    assert await both.ended(dag) == "succeeded"
    await both.healthy()


async def test_an_item_without_a_node_is_cancelled(both: Both) -> None:
    await both.make({"a": []})
    kept = await both.make({"b": []})
    first = await both.sql("dag_000", "SELECT min(no) FROM dag")
    await both.sql("dag_000", "DELETE FROM node WHERE dag_no = $1", first)
    await both.sql("dag_000", "DELETE FROM dag WHERE no = $1", first)
    assert await both.kinds() == ["item_orphaned"]
    assert await both.mend() == 1
    await both.healthy()
    assert await both.mend() == 0
    await both.run("b")
    assert await both.ended(kept) == "succeeded"


@pytest.mark.parametrize(
    ("damage", "kinds"),
    [
        ("UPDATE node SET up_left = 2 WHERE key = 'b'", ["node_counters"]),
        ("UPDATE node SET ext_left = 1 WHERE key = 'b'", ["node_counters"]),
        ("UPDATE dag SET blocked = blocked + 1", ["dag_totals"]),
        (
            "UPDATE edge SET satisfied = true; UPDATE node SET up_left = 0, up_ok = 1 WHERE key = 'b'",
            ["node_counters"],
        ),
    ],
)
async def test_d12_counters_that_drifted_are_counted_anew(both: Both, damage: str, kinds: list[str]) -> None:
    dag = await both.make({"a": [], "b": ["a"]})
    await both.shards["dag_000"].connection.execute(damage)
    assert await both.kinds() == kinds
    assert await both.mend() == 1
    await both.healthy()
    assert await both.mend() == 0
    await both.run("a", "b")
    assert await both.ended(dag) == "succeeded"


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("UPDATE edge SET satisfied = false; UPDATE node SET up_left = 1, up_ok = 0", "edge_unflipped"),
        ("SELECT 1", "node_stuck"),
    ],
)
async def test_d11_a_node_that_nobody_would_decide_is_released(both: Both, damage: str, kind: str) -> None:
    dag = await both.make({"a": [], "b": ["a"]})
    await both.run("a")
    await both.healthy()
    # The release of b was lost, and perhaps its count too; its item is disabled once more.
    await both.shards["dag_000"].connection.execute(
        "UPDATE dag SET blocked = 1, released = 0;"
        " UPDATE node SET state = 'blocked', released_at = NULL WHERE key = 'b'"
    )
    if kind == "edge_unflipped":
        damage = damage.replace("up_ok = 0", "up_ok = 0 WHERE key = 'b'")
    await both.shards["dag_000"].connection.execute(damage)
    assert await both.kinds() == [kind]
    assert await both.mend() == 1
    await both.healthy()
    assert await both.mend() == 0
    await both.run("b")
    assert await both.ended(dag) == "succeeded"


@pytest.mark.parametrize(
    ("damage", "kinds"),
    [
        (
            "INSERT INTO stat_delta SELECT topic_id, 1, 0, 0, 0, -2 FROM topic WHERE name = 'work'",
            ["counts_wrong"],
        ),
        ("DELETE FROM ready", ["counts_wrong", "item_nowhere"]),
        (
            "INSERT INTO deferred SELECT now() + interval '1 hour', gen_random_uuid()",
            ["place_empty"],
        ),
    ],
)
async def test_q18_items_and_counts_that_disagree_are_mended(both: Both, damage: str, kinds: list[str]) -> None:
    await both.client.enqueue([{"topic": "work", "payload": 1}])
    await both.healthy()
    await both.shards["queue_000"].connection.execute(damage)
    assert await both.kinds() == kinds
    await both.mend()
    await both.mend()
    await both.healthy()
    assert await both.mend() == 0
    await both.run("any")


async def test_nothing_is_found_while_everything_moves(both: Both) -> None:
    """With no patience for what is on its way but the least, under load: no false alarm."""
    going = True

    async def consume() -> None:
        while going:
            for item in await both.client.dequeue({"work": 5}, wait_s=0.1):
                await both.client.ack([{"id": item.id, "lease_token": item.lease_token}])

    async def submit() -> None:
        for _ in range(20):
            nodes = specs({f"n{i}": [f"n{i - 1}"] if i else [] for i in range(3)})
            await both.dag.client.post("/v1/namespaces/default/dags", json={"nodes": nodes})

    consumer, submitter = asyncio.create_task(consume()), asyncio.create_task(submit())
    try:
        while not submitter.done():
            # What is told in a moment may be 0 s old.
            found = [finding for finding in await both.look() if finding.kind not in ("outbox_old", "adding_old")]
            assert found == []
        async with asyncio.timeout(60):
            while await both.sql("dag_000", "SELECT count(*) FROM dag WHERE state = 'running'"):
                assert [f for f in await both.look() if f.kind not in ("outbox_old", "adding_old")] == []
    finally:
        going = False
        await asyncio.gather(consumer, submitter)


async def test_the_command_prints_a_table_and_asks_before_it_mends(
    both: Both, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dag = await both.make({"a": []})
    metrics = tmp_path / "audit.prom"
    database = both.dag.database
    monkeypatch.setenv("HEADGATE_QUEUE_SHARDS", database.queue_shards)
    monkeypatch.setenv("HEADGATE_DAG_SHARDS", database.dag_shards)
    monkeypatch.setenv("HEADGATE_DAG_TOKEN", DAG_TOKEN)

    async def run(*, verb: str = "find", yes: bool = False, only: str | None = None) -> tuple[int, str]:
        options = Namespace(
            verb=verb,
            yes=yes,
            dag=only,
            since=None,
            age_s=0.0,
            metrics=None if only or verb != "find" else metrics,
        )
        code = await command._run(command._shards(os.environ), options)
        return code, capsys.readouterr().out

    def gauges() -> dict[str, float]:
        families = text_string_to_metric_families(metrics.read_text())
        return {"/".join([s.name, *s.labels.values()]): s.value for family in families for s in family.samples}

    assert await run() == (0, "audit: nothing found\n")
    found = gauges()
    ran_at = found.pop("headgate_audit_last_run_timestamp_seconds")
    assert ran_at == pytest.approx(time.time(), abs=60)
    assert set(found) == {f"headgate_audit_findings/{kind}" for kind in KINDS} and not any(found.values())
    await both.sql("dag_000", "DELETE FROM node")
    await both.sql("dag_000", "DELETE FROM dag")
    code, out = await run()
    assert code == 1 and "item_orphaned" in out and "1 of 1" not in out
    assert gauges()["headgate_audit_findings/item_orphaned"] == 1
    assert (await run(only=dag))[0] == 0
    assert "1 of 1 would be mended" in (await run(verb="repair"))[1]
    assert await both.kinds() == ["item_orphaned"]
    code, out = await run(verb="repair", yes=True)
    assert code == 0 and "1 of 1 mended" in out
    await both.healthy()
    assert (await run())[0] == 0
    assert gauges()["headgate_audit_findings/item_orphaned"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["audit.prom"]


def test_a_command_without_shards_or_with_a_bad_id_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEADGATE_QUEUE_SHARDS", raising=False)
    monkeypatch.delenv("HEADGATE_DAG_SHARDS", raising=False)
    assert command.main([]) == 2
    assert "HEADGATE_QUEUE_SHARDS" in capsys.readouterr().err
    assert command._shards({"HEADGATE_QUEUE_SHARDS": "postgresql://h/d#1"})["dag"] == []
    assert "HEADGATE_DAG_SHARDS is not set, so the two sides are not compared" in capsys.readouterr().err
    for bad in (["--dag", "x"], ["--metrics", "x", "--since", "2030-01-01"], ["repair", "--metrics", "x"]):
        with pytest.raises(SystemExit):
            command.main(bad)
        assert "error: " in capsys.readouterr().err
