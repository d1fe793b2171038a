"""One DAG shard's server is away: its own DAGs are unavailable and say so, everything else goes on."""

import zlib
from collections.abc import AsyncIterator

import pytest

from headgate._ids import shard_of
from shared.shards.map_file import SLOTS
from tests.support.dag_world import BASE, DagWorld
from tests.support.databases import Database, Databases
from tests.support.ports import free_port
from tests.support.queue_fake import FakeQueue


@pytest.fixture
async def two(databases: Databases) -> AsyncIterator[Database]:
    """A database with two DAG shards, both there."""
    made = await databases.create(queue_shards=1, dag_shards=2)
    yield made
    await databases.drop(made)


@pytest.fixture
async def half(two: Database) -> AsyncIterator[DagWorld]:
    """A service whose shard 1 is on a server that nobody runs."""
    away = f"0={two.dsn} 1=postgresql://postgres@127.0.0.1:{free_port()}/none"
    made = DagWorld(two, FakeQueue(), shards=away)
    yield made
    await made.close()


async def made_on(world: DagWorld, shard: int) -> str:
    """A DAG of two nodes on one of two shards."""
    for _ in range(2):
        dag = await world.create({"a": [], "b": ["a"]})
        if shard_of(dag) == shard:
            return dag
    raise AssertionError("shards are taken in turn")


def _home(key: str) -> int:
    """The shard of two on which a DAG of this key lives."""
    return zlib.crc32(f"default/{key}".encode()) % SLOTS % 2


async def test_new_dags_go_where_they_can_be_written(half: DagWorld) -> None:
    """Also before anything is known of the shard that half of these calls would have gone to."""
    breaker = half.duties.context.shards.get(1).breaker  # type: ignore[union-attr]
    plain, other = {"nodes": [{"key": "a", "topic": "t"}]}, {"nodes": [{"key": "a", "topic": "t", "ttl_s": 60}]}
    for body in ({}, plain, other) * 2:
        breaker.succeeded()
        answer = await half.http.post(BASE, json=body)
        assert (answer.status_code, shard_of(answer.json()["id"])) == (201, 0)


async def test_a_key_stays_at_its_home_also_while_that_is_away(half: DagWorld, two: Database) -> None:
    """No fallback: a retry that found another shard would make a second DAG."""
    keys = [f"k{n}" for n in range(12)]
    homes = {key: _home(key) for key in keys}
    assert set(homes.values()) == {0, 1}
    for key in keys:
        answer = await half.http.post(BASE, json={"key": key})
        if answer.status_code == 201:
            assert shard_of(answer.json()["id"]) == 0
        else:
            assert (answer.status_code, answer.json()["outcome"]) == (503, "none")
            assert "retry-after" in answer.headers
    whole = DagWorld(two, FakeQueue())
    try:
        found = {key: shard_of(str((await whole.call("POST", "", {"key": key}))["id"])) for key in keys}
    finally:
        await whole.close()
    assert set(found.values()) == {0, 1}
    for key in keys:
        answer = await half.http.post(BASE, json={"key": key})
        assert answer.status_code == (200 if found[key] == 0 else 503)


async def test_dags_elsewhere_run_to_their_end(half: DagWorld, two: Database) -> None:
    whole = DagWorld(two, FakeQueue())
    try:
        there = await made_on(whole, 1)
    finally:
        await whole.close()
    dag = await half.create({"here": []})
    for method, path in (("GET", ""), ("POST", "/cancel"), ("GET", "/nodes"), ("GET", "/wait?timeout_s=1")):
        answer = await half.http.request(method, f"{BASE}/{there}{path}")
        assert (answer.status_code, answer.json()["code"]) == (503, "shard_unavailable"), path
        assert answer.json()["outcome"] == "none"
    shard = half.shard
    await half.loops.relay.idle()
    half.queue.ack("here")
    await half.loops.results[shard.number].drain()
    assert (await half.dag(dag))["state"] == "succeeded"


async def test_quotas_are_kept_by_what_is_known_of_the_others(two: Database) -> None:
    away = f"0={two.dsn} 1=postgresql://postgres@127.0.0.1:{free_port()}/none"
    half = DagWorld(two, FakeQueue(), shards=away, namespace_dags_max=2)
    try:
        for status in (201, 201, 429):
            await half.call("POST", "", {"nodes": [{"key": "a", "topic": "t"}]}, expect=status)
    finally:
        await half.close()


async def test_health_shows_what_is_left(half: DagWorld) -> None:
    rows = (await half.http.get("/v1/shards")).json()["items"]
    assert [(row["shard"], row["state"]) for row in rows] == [(0, "healthy"), (1, "open")]
    ready = await half.http.get("/readyz")
    assert (ready.status_code, ready.json()["shards"]) == (200, {"dag_000": "up", "dag_001": "down"})


async def test_lists_hold_what_is_left_and_name_the_shard_that_is_away(half: DagWorld, two: Database) -> None:
    """A list that left out a shard's DAGs without a word would be taken for all there are."""
    dag = await half.create({"a": []}, name="here", key=next(k for k in ("k0", "k1", "k2") if _home(k) == 0))
    namespace = BASE.removesuffix("/dags")
    page = (await half.http.get(BASE, params={"name": "here"})).json()
    assert ([each["id"] for each in page["items"]], page["away"], page["next_cursor"]) == ([dag], [1], None)
    for path in ("/schedules", "/workflows"):
        page = (await half.http.get(f"{namespace}{path}")).json()
        assert (page["items"], page["away"]) == ([], [1]), path
    # What was made with a key may be where nobody answers: that it is not here says nothing.
    mine = (await half.http.get(BASE, params={"key": (await half.dag(dag))["key"]})).json()
    assert [each["id"] for each in mine["items"]] == [dag]
    for path, query in ((BASE, {"key": "another"}), (f"{namespace}/exports/dags", {})):
        answer = await half.http.get(path, params=query)
        assert (answer.status_code, answer.json()["code"]) == (503, "shard_unavailable"), path
    whole = DagWorld(two, FakeQueue())
    try:
        assert "away" not in (await whole.http.get(BASE)).json()
    finally:
        await whole.close()


async def test_a_list_of_which_no_shard_answers_is_unavailable(two: Database) -> None:
    none = DagWorld(two, FakeQueue(), shards=f"0=postgresql://postgres@127.0.0.1:{free_port()}/none")
    try:
        for path in (BASE, BASE.replace("/dags", "/schedules"), BASE.replace("/dags", "/workflows")):
            answer = await none.http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (503, "shard_unavailable"), path
    finally:
        await none.close()
