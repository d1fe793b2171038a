"""The DAG service dies at each of its named points, and another one goes on: nothing lost, early or twice."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from headgate import AsyncClient, Job, Worker, Workflow
from headgate.testing import replay
from tests.support.apps import DAG_TOKEN, Service, queue_service
from tests.support.databases import Databases
from tests.support.fleet import run_for_ever
from tests.support.ports import free_port

END_S = 120.0
GRAPH: dict[str, list[str]] = {
    "a": [],
    "b": ["a"],
    "c": ["a"],
    "d": ["b", "c"],
    "lone": [],
    "e": ["d", "lone"],
}
POINTS = [
    "after_add",
    "after_give",
    "after_commit_before_relay",
    "after_relay_before_delete",
    "after_commit_before_ack",
]

# Where a new DAG that is made whole is left.
CREATE_POINTS = ["after_create", "after_give", "after_relay_before_delete", "after_commit_before_ack"]

# What the steps before left of a retry that is too large for one transaction.
RETRY_POINTS = ["before_reopening_named", "before_reopening_roots", "before_reopening_count"]

SUB_DAG_POINTS = [
    "after_commit_before_relay",
    "after_child_made",
    "after_carry_before_delete",
    "after_commit_before_ack",
]


# A run begins; a turn is written, and answered to nobody; the queue is to hear of it; an end of what it asked for.
RUN_POINTS = [
    "after_child_run_made",
    "after_start",
    "after_turn",
    "turn_waits",
    "after_commit_before_relay",
    "after_relay_before_delete",
    "after_commit_before_ack",
]


class MortalDag:
    """A DAG service in a process of its own, started again whenever it dies; `crash_at` says where next."""

    def __init__(self, queue: Service, redis_url: str, armed: Path) -> None:
        self.queue = queue
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}/v1/namespaces/default/dags"
        self.exit_codes: list[int] = []
        self._armed = armed
        self._environment = {
            **os.environ,
            "HEADGATE_DAG_SHARDS": queue.database.dag_shards,
            "HEADGATE_DAG_PORT": str(self.port),
            "HEADGATE_QUEUE_URL": queue.url,
            "HEADGATE_REDIS_URL": redis_url,
            "HEADGATE_DAG_TOKEN": DAG_TOKEN,
            "HEADGATE_DAG_STOPPED_ADD_S": "0.5",
            "HEADGATE_DAG_EDGES_PER_STEP_MAX": "4",
            "HEADGATE_DAG_WALK_EDGES_MAX": "3",
            "HEADGATE_DAG_RETRY_AT_ONCE_NODES_MAX": "2",
            "HEADGATE_DAG_RETRY_STEP_NODES": "2",
            "HEADGATE_DAG_RETRY_STEP_EDGES": "2",
            # Its shards and what it had taken are not waited for, and nobody has to hear that it goes.
            "HEADGATE_DAG_OWNER_NAME": "mortal",
            "HEADGATE_DAG_COMPLETION_LEASE_S": "1",
            "HEADGATE_DAG_DRAIN_S": "0",
            "HEADGATE_CRASH_AT": str(armed),
        }

    async def run(self) -> None:
        """Run until cancelled."""
        await run_for_ever("dag", self._disarmed, self._armed.parent, self.exit_codes)

    def _disarmed(self) -> dict[str, str]:
        self._armed.write_text("")
        return self._environment

    async def crash_at(self, point: str) -> None:
        """Die there next, once; not for the sake of anything that came before."""
        async with asyncio.timeout(END_S):
            await until_answered("GET", self.base)
            while await self.has_unfinished():
                await asyncio.sleep(0.02)
        self.exit_codes.clear()
        self._armed.write_text(point)

    async def has_unfinished(self) -> bool:
        connection = await asyncpg.connect(self.queue.database.dsn)
        try:
            return bool(await connection.fetchval(_UNFINISHED))
        finally:
            await connection.close()


_UNFINISHED = """
SELECT EXISTS (SELECT FROM queue_000.item) OR EXISTS (SELECT FROM queue_001.item)
    OR EXISTS (SELECT FROM dag_000.outbox) OR EXISTS (SELECT FROM dag_000.adding)
"""


@pytest.fixture(scope="module")
async def queue(databases: Databases, redis_url: str) -> AsyncIterator[Service]:
    """A queue service that stays up, and leaves every end to the DAG service, which is to die of it."""
    database = await databases.create(queue_shards=2, dag_shards=1)
    async with queue_service(database, redis_url, fold_completions=False) as made:
        yield made
    await databases.drop(database)


@pytest.fixture(scope="module")
async def mortal(
    queue: Service, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[MortalDag]:
    """The same for all points: to start one takes longer than to die."""
    made = MortalDag(queue, redis_url, tmp_path_factory.mktemp("crash") / "at")
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def run_to_end(
    mortal: MortalDag, topic: str, nodes: list[dict[str, Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Create a DAG and consume its topic until it has ended, over one death of the service; it, and what came."""
    delivered: list[str] = []
    async with AsyncClient(queue_url=mortal.queue.url) as client:
        consuming = asyncio.create_task(consume(client, topic, delivered))
        try:
            async with asyncio.timeout(END_S):
                found = await until_answered("POST", mortal.base, {"key": topic, "nodes": nodes})
                while not found["finished_at"]:
                    found = await until_answered("GET", f"{mortal.base}/{found['id']}/wait?timeout_s=5")
        finally:
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
    assert mortal.exit_codes == [-signal.SIGKILL], "the service was to die here, once"
    return found, delivered


async def until_answered(method: str, url: str, body: Any = None) -> Any:
    """The same call again until somebody answers it."""
    async with httpx.AsyncClient(timeout=20) as http:
        while True:
            try:
                answer = await http.request(method, url, json=body)
                if answer.status_code < 500:
                    return answer.json()
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


async def consume(client: AsyncClient, topic: str, delivered: list[str]) -> None:
    while True:
        items = await client.dequeue({topic: 10}, wait_s=5)
        for item in items:
            assert item.dag is not None
            delivered.append(item.dag.node)
            await client.ack([item.ack()])


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("point", "external"), [*((point, ["go"]) for point in POINTS), *((point, []) for point in CREATE_POINTS)]
)
async def test_a_service_that_dies_at_a_crash_point_leaves_nothing_undone(
    mortal: MortalDag, point: str, external: list[str]
) -> None:
    await mortal.crash_at(point)
    delivered: list[str] = []
    base = mortal.base
    # What waits for externals is added in two steps, what does not is made whole.
    topic = f"{point}-{len(external)}"
    nodes = [
        {"key": key, "topic": topic}
        | ({"external": external} if external else {})
        | ({"upstream": ups} if ups else {})
        for key, ups in GRAPH.items()
    ]
    facts = {"external": [{"node": key, "name": name} for key in GRAPH for name in external]}
    async with AsyncClient(queue_url=mortal.queue.url) as client:
        consuming = asyncio.create_task(consume(client, topic, delivered))
        try:
            async with asyncio.timeout(END_S):
                made = await until_answered("POST", base, {"key": topic, "nodes": nodes})
                if external:
                    await until_answered("POST", f"{base}/{made['id']}/resolve", facts)
                found = made
                while not found["finished_at"]:
                    found = await until_answered("GET", f"{base}/{made['id']}/wait?timeout_s=5")
        finally:
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
    assert mortal.exit_codes == [-signal.SIGKILL], "the service was to die here, once"
    assert found["state"] == "succeeded"
    assert Counter(delivered) == Counter(list(GRAPH))
    assert all(delivered.index(up) < delivered.index(key) for key, ups in GRAPH.items() for up in ups)


async def test_a_service_that_dies_within_a_fan_out_leaves_the_rest_to_the_next(mortal: MortalDag) -> None:
    """A node releases more than one transaction may: some of it was walked, the rest is the next process' work."""
    await mortal.crash_at("after_walk_step")
    topic = "walk"
    fan = [f"f{n}" for n in range(14)]
    nodes: list[dict[str, Any]] = [{"key": "a", "topic": topic}]
    nodes += [{"key": key, "topic": topic, "upstream": ["a"]} for key in fan]
    nodes += [{"key": "z", "topic": topic, "upstream": fan}]
    found, delivered = await run_to_end(mortal, topic, nodes)
    assert found["state"] == "succeeded"
    assert (delivered[0], delivered[-1]) == ("a", "z")
    assert Counter(delivered) == Counter(["a", *fan, "z"])


@pytest.mark.parametrize("point", RETRY_POINTS)
async def test_a_service_that_dies_between_the_steps_of_a_retry_leaves_it_to_the_next(
    mortal: MortalDag, point: str
) -> None:
    topic = f"retry-{point}"
    delivered: list[str] = []
    chain = [{"key": f"n{i}", "topic": topic} | ({"upstream": [f"n{i - 1}"]} if i else {}) for i in range(8)]
    chain[1]["external"] = ["go"]
    # Steps follow the nodes named, or look for all that failed.
    body = {"nodes": ["n1"]} if point.endswith("named") else {}

    def fact(failed: bool) -> Any:
        return {"external": [{"node": "n1", "name": "go", "failed": failed}]}

    async with AsyncClient(queue_url=mortal.queue.url) as client:
        consuming = asyncio.create_task(consume(client, topic, delivered))
        try:
            async with asyncio.timeout(END_S):
                found = await until_answered("POST", mortal.base, {"key": topic, "nodes": chain})
                dag = f"{mortal.base}/{found['id']}"
                await until_answered("POST", f"{dag}/resolve", fact(failed=True))
                while not found["finished_at"]:
                    found = await until_answered("GET", f"{dag}/wait?timeout_s=5")
                assert (found["state"], delivered) == ("failed", ["n0"])
                await mortal.crash_at(point)
                await until_answered("POST", f"{dag}/retry", body)
                await until_answered("POST", f"{dag}/resolve", fact(failed=False))
                while found["state"] != "succeeded":
                    found = await until_answered("GET", f"{dag}/wait?timeout_s=5")
        finally:
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
    assert mortal.exit_codes == [-signal.SIGKILL], "the service was to die here, once"
    assert delivered == [node["key"] for node in chain]


@pytest.mark.parametrize("point", SUB_DAG_POINTS)
async def test_a_service_that_dies_between_a_dag_and_its_sub_dag_makes_and_ends_it_once(
    mortal: MortalDag, point: str
) -> None:
    await mortal.crash_at(point)
    topic = f"sub-{point}"
    delivered: list[str] = []
    base = mortal.base
    inner = {"nodes": [{"key": "x", "topic": topic}, {"key": "y", "topic": topic, "upstream": ["x"]}]}
    nodes = [
        {"key": "a", "topic": topic},
        {"key": "mid", "dag": inner, "upstream": ["a"]},
        {"key": "z", "topic": topic, "upstream": ["mid"]},
    ]
    async with AsyncClient(queue_url=mortal.queue.url) as client:
        consuming = asyncio.create_task(consume(client, topic, delivered))
        try:
            async with asyncio.timeout(END_S):
                found = await until_answered("POST", base, {"key": topic, "nodes": nodes})
                while not found["finished_at"]:
                    found = await until_answered("GET", f"{base}/{found['id']}/wait?timeout_s=5")
                dags = await until_answered("GET", f"{base}?limit=1000")
        finally:
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
    assert mortal.exit_codes == [-signal.SIGKILL], "the service was to die here, once"
    assert found["state"] == "succeeded"
    assert delivered == ["a", "x", "y", "z"]
    children = [each for each in dags["items"] if (each["parent"] or {}).get("dag") == found["id"]]
    assert [each["state"] for each in children] == ["succeeded"]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("point", RUN_POINTS)
async def test_a_service_that_dies_between_the_turns_of_a_run_goes_on_with_it(
    mortal: MortalDag, point: str
) -> None:
    await mortal.crash_at(point)
    dag_url = mortal.base.partition("/v1/")[0]
    told: Counter[str] = Counter()
    async with AsyncClient(queue_url=mortal.queue.url, dag_url=dag_url) as client:
        worker = Worker(client, drain_s=1, wait_s=1)

        @worker.task(f"double/{point}")
        async def double(job: Job) -> int:
            told[job.id] += 1
            return int(job.payload) * 2

        @worker.workflow(f"{point}/part")
        async def part(wf: Workflow, number: int) -> int:
            return int(await wf.call(f"double/{point}", number))

        @worker.workflow(point)
        async def decide(wf: Workflow, count: int) -> list[int]:
            doubled = await asyncio.gather(*(wf.child(f"{point}/part", number) for number in range(count)))
            await wf.sleep(0.1)
            return [*doubled, await wf.run(sum, doubled)]

        working = asyncio.create_task(worker.run(signals=False))
        try:
            async with asyncio.timeout(END_S):
                runs = mortal.base.replace("/dags", "/workflows")
                await until_answered("POST", runs, {"type": point, "id": point, "input": 3})
                found: dict[str, Any] = {"state": "running"}
                while found["state"] == "running":
                    found = await until_answered("GET", f"{runs}/{point}/wait?timeout_s=5")
                history = await until_answered("GET", f"{runs}/{point}/history")
                # A delivery whose turn was written and not answered comes once more, and finds it lost.
                while await mortal.has_unfinished():
                    await asyncio.sleep(0.05)
        finally:
            worker.stop()
            await working
    assert mortal.exit_codes == [-signal.SIGKILL], "the service was to die here, once"
    assert (found["state"], found["output"]) == ("succeeded", [0, 2, 4, 6])
    assert len(told) == 3, "each call is one item"
    replay(history, decide)


async def test_a_service_that_dies_as_a_timer_ends_goes_on_behind_it(mortal: MortalDag) -> None:
    await mortal.crash_at("after_commit_before_relay")
    topic = "timer"
    nodes: list[dict[str, Any]] = [
        {"key": "t", "timer": {"delay_s": 0.2}},
        {"key": "b", "topic": topic, "upstream": ["t"]},
    ]
    found, delivered = await run_to_end(mortal, topic, nodes)
    assert (found["state"], delivered) == ("succeeded", ["b"])


async def test_a_service_that_dies_as_a_slot_is_decided_has_decided_it(mortal: MortalDag) -> None:
    """Its run was made in the same transaction, and the queue hears of it by and by; other slots come after it."""
    await mortal.crash_at("after_commit_before_relay")
    topic = "slots"
    delivered: list[str] = []
    schedule = mortal.base.replace("/dags", "/schedules/often")
    body = {"spec": {"interval_s": 1}, "action": {"item": {"topic": topic}}, "overlap": "allow"}
    async with AsyncClient(queue_url=mortal.queue.url) as client:
        consuming = asyncio.create_task(consume(client, topic, delivered))
        try:
            async with asyncio.timeout(END_S):
                await until_answered("PUT", schedule, body)
                while len(delivered) < 3:
                    await asyncio.sleep(0.05)
                await until_answered("POST", f"{schedule}/pause", {})
                ticks = (await until_answered("GET", f"{schedule}/ticks?limit=1000"))["items"]
                runs = [tick["run"] for tick in ticks if tick["decision"] == "started"]
                for run in runs:
                    found = await until_answered("GET", f"{mortal.base}/{run}/wait?timeout_s=30")
                    assert found["state"] == "succeeded"
                await until_answered("DELETE", schedule)
        finally:
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
    assert mortal.exit_codes == [-signal.SIGKILL], "the service was to die here, once"
    assert len({tick["at"] for tick in ticks}) == len(ticks) and sum(tick["slots"] for tick in ticks) >= 3
    assert len(delivered) == len(runs) == len(set(runs))
