"""How users write against the SDK: type-checked by mypy, never run.

A line that should not type-check carries the ignore that mypy would find unused if it did.
"""

from datetime import UTC, datetime
from typing import assert_type

from headgate import (
    AsyncClient,
    AsyncDagHandle,
    Client,
    Dag,
    DagHandle,
    Fail,
    Item,
    Job,
    Leased,
    Node,
    Result,
    Retry,
    Worker,
    testing,
    wire,
)


def queue(client: Client) -> None:
    items: list[Item] = [{"topic": "mail", "payload": {"to": "ada"}}, {"topic": "mail", "delay_s": 1.5}]
    assert_type(client.enqueue(items), list[Result])
    assert_type(client.enqueue_one("mail", 1, priority=-1, deliver_after=datetime.now(UTC)), Result)
    client.enqueue([{"payload": 1}])  # type: ignore[typeddict-item]
    client.enqueue([{"topic": "mail", "prioirty": 1}])  # type: ignore[typeddict-unknown-key]
    client.enqueue_one("mail", delivery="exactly_once")  # type: ignore[arg-type]
    client.enqueue_one("mail", prioirty=1)  # type: ignore[call-arg]
    found = client.dequeue({"mail": 10}, wait_s=20)
    assert_type(found, list[Leased])
    assert_type(client.dequeue_one("mail"), Leased | None)
    assert_type(client.ack([item.ack({"sent": True}) for item in found])[0].status, str)
    assert_type(client.item("id"), wire.ItemView)
    assert_type(client.topics(), list[wire.TopicStats])
    assert_type(client.shards(), list[wire.ShardHealth])


def dags(client: Client) -> None:
    dag = Dag("nightly", on_failure="cancel")
    fetch = dag.node("fetch", "etl", max_attempts=3, backoff={"base_s": 1})
    assert_type(fetch, Node)
    dag.node("load", "etl", after=[fetch, "fetch"], trigger="all_done", external=["approval"])
    dag.node("oops", "etl", trigger="sometimes")  # type: ignore[arg-type]
    Dag(on_failure="explode")  # type: ignore[arg-type]
    handle = client.submit(dag)
    assert_type(client.dag_by_key("order/77"), DagHandle)
    assert_type(handle, DagHandle)
    assert_type(handle.wait(timeout_s=60), wire.Dag)
    assert_type(handle.nodes("failed"), list[wire.NodeView])
    assert_type(handle.add("more", "etl", after=["load"]), wire.NodeAdded)
    assert_type(handle.graph(), wire.GraphView)
    handle.nodes("broken")  # type: ignore[arg-type]


async def coroutines(client: AsyncClient) -> None:
    async with client:
        assert_type(await client.enqueue_one("mail"), Result)
        assert_type(await client.submit(Dag()), AsyncDagHandle)
        assert_type(await client.dag("id").show(), wire.Dag)


def workers(client: AsyncClient) -> None:
    worker = Worker(client)

    @worker.task("mail", slots=4)
    async def send(job: Job) -> dict[str, int]:
        if job.attempt > 3:
            raise Fail("gave up")
        raise Retry(delay_s=5)

    @worker.task("thumbnails")
    def shrink(job: Job) -> str:
        job.blocking_client.topics()
        return job.id

    @worker.task("wrong")  # type: ignore[type-var]
    def wrong(payload: int) -> None: ...

    worker.main()


async def tests_of_handlers() -> None:
    tested = testing.job("mail", {"to": "ada"}, inputs={"a": 1}, node="send")
    assert_type(tested.expanded, list[Node])
    assert_type(await tested.expand([Node("a", "mail")]), list[wire.NodeAdded])
    testing.job("mail", noed="send")  # type: ignore[call-arg]
