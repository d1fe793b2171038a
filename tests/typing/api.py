"""How users write against the SDK: type-checked by mypy, never run.

A line that should not type-check carries the ignore that mypy would find unused if it did.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, assert_type

from headgate import (
    App,
    AsyncClient,
    AsyncDagHandle,
    Client,
    Dag,
    DagHandle,
    Fail,
    FlowRun,
    Item,
    Job,
    JobCall,
    JobHandle,
    Leased,
    Listing,
    Node,
    Result,
    Retry,
    Worker,
    Workflow,
    testing,
    wire,
)
from headgate.wire.workflow import WorkflowRun


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
    assert_type(client.topics(), Listing[wire.TopicStats])
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


class Pool: ...


async def lifespan(_: App) -> AsyncIterator[Pool]:
    yield Pool()


app = App("media", lifespan=lifespan)
shared_pool = app.state(Pool)


@app.job(max_attempts=5, timeout_s=60, slots=8)
async def resize(src: str, width: int = 640) -> str:
    return f"{src}{width}"


@app.job
def stitch(thumbs: list[str], title: str, pool: Pool = shared_pool) -> bytes:
    return title.encode()


@app.job
async def tell(job: Job, text: str) -> int:
    await job.add(resize.call("a"))
    return job.attempt


@app.job(batch=100)
def index(pages: list[str]) -> None: ...


@stitch.undo
def unstitch(title: str, result: bytes) -> None: ...


@app.every("nightly", cron="0 3 * * *", tz="Europe/Paris", overlap="skip")
def nightly(at: datetime) -> None: ...


@app.task("raw/echo", slots=2)
async def echo(job: Job) -> object:
    return job.payload


async def functions() -> None:
    job = resize.enqueue("s3://a", width=320)
    assert_type(job, JobHandle[str])
    assert_type(job.result(timeout_s=30), str)
    assert_type(await job.aresult(), str)
    assert_type(await resize.enqueue("a"), JobHandle[str])
    assert_type(resize.enqueue("a", 3, delay_s=5, priority=1), JobHandle[str])
    assert_type(resize.options(key="a").enqueue("a"), JobHandle[str])
    assert_type(tell.enqueue("text").result(), int)
    assert_type(stitch.enqueue(["a"], title="t").result(), bytes)
    assert_type(stitch(["a"], "t"), bytes)
    assert_type(await resize("a"), str)
    assert_type(index.enqueue("a"), JobHandle[None])
    assert_type(index.enqueue(["a", "b"]), JobHandle[None])
    index.enqueue(3)  # type: ignore[call-overload]
    resize.enqueue("a", widht=3)  # type: ignore[call-overload]
    resize.options().enqueue("a", width="wide")  # type: ignore[arg-type]
    resize.options(dealy_s=3)  # type: ignore[call-arg]
    app.every("x", cron="* * * * *", overlap="sometimes")  # type: ignore[arg-type]


def flows() -> None:
    flow = app.flow("album")
    thumbs = [resize.call(src) for src in ("a", "b")]
    album = flow.add(stitch.call(thumbs, title="summer"), when=thumbs[0].value == "a", required=False)
    assert_type(album, JobCall[bytes])
    run = flow.start()
    assert_type(run, FlowRun)
    assert_type(run.result(album, timeout_s=60), bytes)
    assert_type(run.result(flow.map(resize, thumbs[0])), list[str])
    flow.add(album, wehn=album)  # type: ignore[call-overload]


async def workflows(wf: Workflow) -> str:
    task = await wf.fork("work", 1, max_attempts=3)
    assert_type(task, str)
    assert_type(wf.is_task_finished(task), bool)
    assert_type(wf.now(), datetime)
    assert_type(wf.patched("new way"), bool)
    assert_type(await wf.start("report"), dict[str, str])
    await wf.call("work", max_attemps=3)  # type: ignore[call-overload]
    assert_type(await wf.call(resize.call("a")), str)
    assert_type(await wf.call(stitch.options(priority=1).call(["a"], title="summer")), bytes)
    await wf.child("report", idd="r")  # type: ignore[call-arg]
    worker = Worker()
    same: Callable[[Workflow], Coroutine[Any, Any, str]] = worker.workflow("order")(workflows)
    assert_type(await same(wf), str)
    run = Client().workflows.start("order", {"items": []}, id="order-17")
    assert_type(run.wait(timeout_s=5), WorkflowRun)
    return task
