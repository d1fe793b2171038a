"""Values that the jobs of a DAG share: no update is lost, none is applied twice, and all of it has bounds."""

import asyncio
import uuid
from typing import Any

import httpx
import pytest

from headgate import AsyncClient, AsyncDagValues
from tests.support.bounded import steps
from tests.support.dag_world import BASE, DagWorld

WRITERS = 16
JSON = {"content-type": "application/json"}


def values_of(world: DagWorld, dag: str) -> AsyncDagValues:
    """The values as the SDK sees them."""
    transport = httpx.ASGITransport(app=world.app.state.hot, raise_app_exceptions=False)
    client = AsyncClient(
        queue_url="http://localhost", dag_url="http://localhost", namespace="default", transport=transport
    )
    return client.dag(dag).values


async def put(world: DagWorld, dag: str, key: str, value: Any, expect: int = 200, **more: Any) -> Any:
    return await world.call("PUT", f"/{dag}/values/{key}", {"value": value, **more}, expect=expect)


async def get(world: DagWorld, dag: str, key: str, expect: int = 200) -> Any:
    return await world.call("GET", f"/{dag}/values/{key}", expect=expect)


async def test_sixteen_writers_lose_no_update(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    values = values_of(world, dag)

    async def writer(name: int) -> None:
        for _ in range(5):
            await values.update("seen", lambda seen: {**seen, str(name): seen.get(str(name), 0) + 1}, initial={})

    await asyncio.gather(*(writer(name) for name in range(WRITERS)))

    found = await values.read("seen")
    assert found is not None
    assert found.value == {str(name): 5 for name in range(WRITERS)}
    assert found.version == WRITERS * 5


async def test_of_two_writers_that_saw_the_same_version_one_is_refused(world: DagWorld) -> None:
    """The first one has the lock and has not written yet; the second one's write waits, and looks behind it."""
    dag = await world.create({"a": []})
    assert await put(world, dag, "n", 1) | {"updated_at": 0} == {"key": "n", "version": 1, "updated_at": 0}
    other = await world.connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT FROM dag_value_use FOR UPDATE")
    second = asyncio.ensure_future(put(world, dag, "n", 3, expect=409, version=1))
    await asyncio.wait([second], timeout=0.2)
    assert not second.done()
    written = await other.fetchrow(
        "SELECT * FROM put_value($1::uuid, 'default', 'n', '2', 1, $2::uuid, 10, 1000, 8)", dag, uuid.uuid4()
    )
    assert tuple(written)[:2] == ("put", 2)
    await transaction.commit()
    await other.close()

    assert (await second)["code"] == "version_conflict"
    assert (await get(world, dag, "n"))["value"] == 2


async def test_a_new_value_is_made_once(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    answers = await asyncio.gather(
        *(
            world.http.put(f"{BASE}/{dag}/values/leader", json={"value": name, "version": 0})
            for name in range(WRITERS)
        )
    )
    won = [name for name, answer in enumerate(answers) if answer.status_code == 200]
    assert len(won) == 1 and {answer.status_code for answer in answers} == {200, 409}
    assert (await get(world, dag, "leader"))["value"] == won[0]


async def test_a_write_sent_again_is_applied_once(world: DagWorld) -> None:
    """Its answer was lost, and others have written since."""
    dag = await world.create({"a": []})
    write_id = str(uuid.uuid4())
    first = await put(world, dag, "n", 1, version=0, write_id=write_id)
    again = await put(world, dag, "n", 1, version=0, write_id=write_id)
    assert again == first
    await put(world, dag, "n", 2, version=1)
    await put(world, dag, "n", 3)
    again = await put(world, dag, "n", 1, version=0, write_id=write_id.upper())
    assert again["version"] == first["version"] == 1
    assert (await get(world, dag, "n"))["version"] == 3
    for _ in range(64):
        await put(world, dag, "n", 0)
    late = await put(world, dag, "n", 1, version=0, write_id=write_id, expect=409)
    assert late["code"] == "version_conflict", "it is no longer remembered, and not applied a second time"


async def test_another_value_under_the_id_of_a_write_is_refused(world: DagWorld) -> None:
    """Also where others have written since, and where the DAG has ended: nobody is told that it was written."""
    dag = await world.create({"a": []})
    write_id = str(uuid.uuid4())
    await put(world, dag, "n", 1, write_id=write_id)
    assert (await put(world, dag, "n", 2, write_id=write_id, expect=409))["code"] == "key_reused"
    await put(world, dag, "n", 3)
    assert (await put(world, dag, "n", 3, write_id=write_id, expect=409))["code"] == "key_reused"
    assert (await put(world, dag, "n", 1, write_id=write_id))["version"] == 1
    assert (await get(world, dag, "n"))["value"] == 3
    for _ in range(63):
        await put(world, dag, "n", 3)
    assert (await put(world, dag, "n", 4, write_id=write_id))["version"] == 66, "it is no longer remembered"
    assert (await put(world, dag, "n", 5, write_id=write_id, expect=409))["code"] == "key_reused"


async def test_a_write_without_version_goes_over_whatever_is_there(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    assert [(await put(world, dag, "n", value))["version"] for value in ("x", None, [1])] == [1, 2, 3]
    assert (await get(world, dag, "n"))["value"] == [1]
    assert (await put(world, dag, "n", 0, version=7, expect=409))["code"] == "version_conflict"


async def test_a_dag_that_has_ended_keeps_its_values_and_takes_no_more(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    write_id = str(uuid.uuid4())
    await put(world, dag, "n", 1, write_id=write_id)
    await world.settle()
    world.queue.die("a")
    await world.settle()
    assert (await world.dag(dag))["state"] == "failed"

    assert (await put(world, dag, "n", 2, expect=409))["code"] == "dag_finished"
    assert (await put(world, dag, "new", 2, expect=409))["code"] == "dag_finished"
    assert (await put(world, dag, "n", 1, write_id=write_id))["version"] == 1, "it was applied before"
    assert (await get(world, dag, "n"))["value"] == 1
    await world.verb(dag, "retry")
    assert (await put(world, dag, "n", 2, version=1))["version"] == 2
    await world.settle()


async def test_values_go_with_their_dag(world: DagWorld) -> None:
    world.settings.__dict__.update(ended_dag_grace_s=0.0, ended_dag_retention_s=0.0, keep_rows_max=2)
    dag = await world.create({"a": []})
    staying = await world.create({"b": []})
    for n in range(5):
        await put(world, dag, f"n{n}", n)
    await put(world, staying, "n", 1)
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    for _ in steps():
        if not await world.loops.retention.step(world.shard):
            break
    assert (await world.call("GET", f"/{dag}", expect=404))["code"] == "not_found"
    assert [row["n"] for row in await world.rows("SELECT count(*)::int AS n FROM dag_value")] == [1]
    assert [row["n"] for row in await world.rows("SELECT count(*)::int AS n FROM dag_value_use")] == [1]


async def test_values_have_bounds(world: DagWorld) -> None:
    world.settings.__dict__.update(values_per_dag_max=2, dag_values_bytes_max=40, value_bytes_max=30)
    dag = await world.create({"a": []})
    await put(world, dag, "a", "x" * 18)
    await put(world, dag, "b", "x" * 18)
    assert (await put(world, dag, "c", 1, expect=422))["code"] == "limit_exceeded"
    assert (await put(world, dag, "a", "x" * 19, expect=422))["code"] == "limit_exceeded"
    refused = await put(world, dag, "a", "x" * 29, expect=413)
    assert refused["errors"][0]["pointer"] == "/value"
    await put(world, dag, "a", 1)
    await put(world, dag, "b", "x" * 28)
    assert (await put(world, dag, "a", "ää", expect=200))["version"] == 3
    [use] = await world.rows("SELECT keys, bytes FROM dag_value_use")
    assert tuple(use) == (2, 30 + 6)


async def test_a_page_of_values_has_bounds(world: DagWorld) -> None:
    world.settings.__dict__["page_bytes_max"] = 250
    dag = await world.create({"a": []})
    for n in range(7):
        await put(world, dag, f"n{n}", "x" * 98)
    found = await values_of(world, dag).all()
    assert [value.key for value in found] == [f"n{n}" for n in range(7)]
    page = await world.call("GET", f"/{dag}/values")
    assert len(page["items"]) == 3
    rest = await world.call("GET", f"/{dag}/values?limit=2&cursor={page['next_cursor']}")
    assert [value["key"] for value in rest["items"]] == ["n3", "n4"]
    other = await world.create({"a": []})
    await world.call("GET", f"/{other}/values?cursor={page['next_cursor']}", expect=422)


async def test_writes_of_values_do_not_wait_for_the_dag(world: DagWorld) -> None:
    """Nor does the DAG wait for them: an ack beside a job that writes is as quick as without."""
    dag = await world.create({"a": []})
    await put(world, dag, "n", 1)
    other = await world.connect()
    async with other.transaction():
        await other.execute("SELECT FROM dag FOR UPDATE")
        await put(world, dag, "n", 2, version=1)
    async with other.transaction():
        await other.execute("SELECT FROM dag_value_use FOR UPDATE")
        await world.settle()
        world.queue.ack("a")
        await world.settle()
        assert (await world.dag(dag))["state"] == "succeeded"
    await other.close()


async def test_another_tenants_values_are_not_there(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await put(world, dag, "n", 1)
    strange = f"/v1/namespaces/other/dags/{dag}/values"
    answers = [
        await world.http.get(f"{strange}/n"),
        await world.http.get(strange),
        await world.http.put(f"{strange}/n", json={"value": 2}),
        await world.http.put(f"{strange}/new", json={"value": 2}),
    ]
    assert [answer.json()["code"] for answer in answers] == ["not_found"] * 4
    assert [(row["key"], row["value"]) for row in await world.rows("SELECT key, value FROM dag_value")] == [
        ("n", "1")
    ]


@pytest.mark.parametrize("key", ["%20", "a%2Fb", "ä", "x" * 129, "%00", "..", "."])
async def test_keys_that_paths_cannot_carry_are_refused(world: DagWorld, key: str) -> None:
    dag = await world.create({"a": []})
    answer = await world.http.put(f"{BASE}/{dag}/values/{key}", json={"value": 1})
    assert answer.status_code in (404, 405, 422), answer.text
    assert await world.rows("SELECT FROM dag_value") == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/value"),
        ({"value": 1, "version": -1}, "/version"),
        ({"value": 1, "version": "1"}, "/version"),
        ({"value": 1, "version": True}, "/version"),
        ({"value": 1, "version": 2**63}, "/version"),
        ({"value": 1, "write_id": "x"}, "/write_id"),
        ({"value": 1, "if_match": 1}, "/if_match"),
    ],
)
async def test_bodies_that_are_refused(world: DagWorld, body: Any, pointer: str) -> None:
    dag = await world.create({"a": []})
    refused = await world.call("PUT", f"/{dag}/values/n", body, expect=422)
    assert refused["code"] == "invalid" and refused["errors"][0]["pointer"] == pointer
    assert await world.rows("SELECT FROM dag_value") == []


async def test_half_a_character_is_refused(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    answer = await world.http.put(f"{BASE}/{dag}/values/n", content=b'{"value": "\\ud800"}', headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert await world.rows("SELECT FROM dag_value") == []


async def test_a_nul_in_a_value_comes_back(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await put(world, dag, "n", {"a\x00": "\x00"})
    assert (await get(world, dag, "n"))["value"] == {"a\x00": "\x00"}


async def test_of_a_value_that_is_not_there_and_a_dag_that_is_not(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    assert await values_of(world, dag).read("n") is None
    assert await values_of(world, dag).get("n", 7) == 7
    strange = dag[:-6] + "000000"
    assert (await get(world, strange, "n", expect=404))["code"] == "not_found"
    assert (await get(world, "nonsense", "n", expect=404))["code"] == "not_found"
    assert (await put(world, strange, "n", 1, expect=404))["code"] == "not_found"
