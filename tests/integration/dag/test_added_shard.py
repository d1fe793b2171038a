"""A DAG shard that is added while services run: served by all of them, without a restart."""

import asyncio
from pathlib import Path

import pytest

from headgate import AsyncClient
from shared import ids
from tests.support import apps
from tests.support.databases import Databases
from tests.support.shard_world import in_process

DAGS = "/v1/namespaces/default/dags"


async def test_a_shard_that_is_added_gets_dags_and_runs_them(
    databases: Databases, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes, each driving what it finds; one is asked to create, the other to read and to wait."""
    database = await databases.create(queue_shards=1, dag_shards=1)
    path = tmp_path / "dag.json"
    monkeypatch.setenv("HEADGATE_DAG_SHARDS", database.dag_shards)
    assert (await in_process("--service", "dag", "--map", str(path), "init", "--yes"))[0] == 0
    on_map = {"shards": "", "shards_file": path, "shard_join_s": 0.0}
    try:
        async with (
            apps.queue_service(database, redis_url) as queue,
            apps.dag_service(database, redis_url, queue.url, **on_map) as one,
            apps.dag_service(database, redis_url, queue.url, **on_map) as two,
            AsyncClient(queue_url=queue.url, dag_url=one.url) as client,
        ):
            code, said = await in_process(
                *("--service", "dag", "--map", str(path), "add", "1", "--dsn", database.dsn, "--yes")
            )
            assert code == 0, said
            async with asyncio.timeout(60):
                for service in (one, two):
                    while [row["shard"] for row in (await service.client.get("/v1/shards")).json()["items"]] != [
                        0,
                        1,
                    ]:
                        await asyncio.sleep(0.05)

            nodes = [{"key": "a", "topic": "t"}, {"key": "b", "topic": "t", "upstream": ["a"]}]
            made = [(await one.client.post(DAGS, json={"nodes": nodes})).json()["id"] for _ in range(2)]
            assert sorted(map(ids.shard_of, made)) == [0, 1]
            for _ in range(2 * len(made)):
                [item] = await client.dequeue({"t": 1}, wait_s=20)
                await client.ack_one(item)
            for dag in made:
                ended = await two.client.get(f"{DAGS}/{dag}/wait?timeout_s=20")
                assert ended.json()["state"] == "succeeded"
    finally:
        await databases.drop(database)
