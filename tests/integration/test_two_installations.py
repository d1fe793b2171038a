"""Two installations on one Redis: neither counts the other's processes, hears its hints, or spends its quotas."""

from collections.abc import AsyncIterator

import httpx
import pytest

from services.local.valkey import Valkey, ValkeySettings
from shared.redis import connect
from tests.support.apps import dag_service, queue_service
from tests.support.databases import Databases
from tests.support.owners import Owners, owners_of
from tests.support.ports import free_port


@pytest.fixture
async def valkey(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Valkey]:
    """A Valkey of the test's own."""
    server = Valkey(ValkeySettings(port=free_port(), run_dir=tmp_path_factory.mktemp("valkey")))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def owners(databases: Databases, valkey: Valkey) -> AsyncIterator[Owners]:
    """Processes on four shards."""
    database = await databases.create(queue_shards=4, dag_shards=1)
    async with owners_of(database, valkey.url) as made:
        yield made
    await databases.drop(database)


async def test_a_process_of_another_installation_is_no_member(owners: Owners) -> None:
    owners.add("a", HEADGATE_REDIS_PREFIX="one")
    owners.add("b", HEADGATE_REDIS_PREFIX="two")
    first, other = owners.by_name["a"], owners.by_name["b"]
    assert await first._membership.beat(5) == {"a"}
    assert await other._membership.beat(5) == {"b"}
    assert await first._membership.beat(5) == {"a"}


async def test_everything_in_redis_bears_the_prefix(databases: Databases, valkey: Valkey) -> None:
    database = await databases.create(queue_shards=1, dag_shards=1)
    redis = connect(valkey.url)
    try:
        async with (
            queue_service(database, valkey.url, HEADGATE_REDIS_PREFIX="shop.one") as queue,
            dag_service(database, valkey.url, queue.url, HEADGATE_REDIS_PREFIX="shop.one"),
            httpx.AsyncClient(base_url=queue.url) as client,
        ):
            await client.put("/v1/namespaces/n", json={"enqueues_per_minute": 60})
            answer = await client.post("/v1/namespaces/n/enqueue", json={"items": [{"topic": "t"}]})
            assert answer.status_code == 201
            names = {name.decode() for name in (*await redis.keys("*"), *await redis.pubsub_channels("*"))}
    finally:
        await redis.aclose()
        await databases.drop(database)
    assert {name.partition(":")[0] for name in names} == {"shop.one"}
    assert {
        "shop.one:queue:bucket:n",
        "shop.one:queue:ready",
        "shop.one:queue:owners",
        "shop.one:dag:owners",
    } <= names
    assert {"shop.one:queue:members", "shop.one:dag:members"} <= names
