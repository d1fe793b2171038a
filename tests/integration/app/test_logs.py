"""What functions log, read by whoever sent them: over attempts and workers, of jobs and of flows."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator

import pytest

from headgate import App, Client, Job
from headgate._cli import program as cli
from services.local.stack import Stack

log = logging.getLogger("shop")


@pytest.fixture
async def app(stack: Stack) -> AsyncIterator[App]:
    """Functions that log, and two workers of them."""
    namespace = f"logs-{secrets.token_hex(4)}"
    app = App(namespace, client=Client(queue_url=stack.queue_url, dag_url=stack.dag_url, namespace=namespace))

    @app.job(max_attempts=2, backoff={"base_s": 0})
    def pay(job: Job, order: int) -> int:
        log.warning("order %d", order)
        if job.attempt == 1:
            raise ConnectionError("the bank is away")
        job.log.info("paid")
        return order

    workers = [app.worker(name=f"host-{number}", wait_s=5, drain_s=5) for number in (1, 2)]
    working = [asyncio.create_task(worker.run(signals=False)) for worker in workers]
    yield app
    for worker in workers:
        worker.stop()
    await asyncio.gather(*working)
    app.close()


async def texts(job: object, count: int) -> list[tuple[int, str]]:
    """What a job has logged, once there are so many lines: the last come a moment after the result."""
    async with asyncio.timeout(30):
        while True:
            found = await job.alogs()  # type: ignore[attr-defined]
            if len(found) >= count:
                assert [entry.at for entry in found] == sorted(entry.at for entry in found)
                assert {entry.worker for entry in found} <= {"host-1", "host-2"}
                return [(entry.attempt, entry.text.splitlines()[-1]) for entry in found]
            await asyncio.sleep(0.05)


async def test_the_log_of_a_job_has_all_its_attempts(app: App) -> None:
    job = await app.functions["pay"].enqueue(7)
    assert await job.aresult(30) == 7
    assert await texts(job, 4) == [
        (1, "order 7"),
        (1, "ConnectionError: the bank is away"),
        (2, "order 7"),
        (2, "paid"),
    ]


async def test_the_command_line_follows_a_job_or_a_flow_to_its_end(
    app: App, stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    pay = app.functions["pay"]
    flow = app.flow("two")
    calls = [flow.add(pay.call(order)) for order in (1, 2)]
    run = await flow.start()
    where = ("--queue-url", stack.queue_url, "--dag-url", stack.dag_url, "-n", app.namespace)

    assert await asyncio.to_thread(cli.main, ["logs", run.id, "--follow", *where]) == 0

    said = capsys.readouterr().out
    assert [await run.aresult(call) for call in calls] == [1, 2]
    assert said.count("paid") == 2 and said.count("ConnectionError: the bank is away") == 2
    assert "[pay-2]" in said and "(attempt 2)" in said
