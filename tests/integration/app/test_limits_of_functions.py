"""Limits of functions, and throttles that they raise, with two workers on the whole stack."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from headgate import App, Client, Job, Throttled
from services.local.stack import Stack


@contextlib.asynccontextmanager
async def two_workers(app: App) -> AsyncIterator[None]:
    workers = [app.worker(drain_s=5, wait_s=5) for _ in range(2)]
    working = [asyncio.create_task(worker.run(signals=False)) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
            worker.stop()
        await asyncio.gather(*working)
        app.close()


def app_of(stack: Stack) -> App:
    app = App(f"limits-{secrets.token_hex(4)}")
    app._client = Client(queue_url=stack.queue_url, dag_url=stack.dag_url, namespace=app.namespace)
    return app


async def test_no_more_jobs_run_at_a_time_than_the_function_says_over_all_workers(stack: Stack) -> None:
    app = app_of(stack)
    running, most = 0, 0

    @app.job(slots=4, concurrency=1)
    async def alone(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return number

    async with two_workers(app):
        jobs = [await alone.enqueue(number) for number in range(6)]
        assert [await job.aresult(timeout_s=30) for job in jobs] == list(range(6))
        found = await asyncio.to_thread(app.client.limits.get, "job/alone")
    assert most == 1
    assert found is not None and (found.rate, found.concurrency) == (None, 1)


async def test_a_throttled_job_comes_again_and_no_attempt_of_it_is_used_up(stack: Stack) -> None:
    app = app_of(stack)
    attempts: list[int] = []

    @app.job(max_attempts=2)
    async def bank(job: Job) -> str:
        attempts.append(job.attempt)
        if len(attempts) < 4:
            raise Throttled(0.05)
        return "done"

    async with two_workers(app):
        assert await (await bank.enqueue()).aresult(timeout_s=30) == "done"
    assert attempts == [1, 1, 1, 1]


async def test_a_key_is_limited_and_slowed_by_itself(stack: Stack) -> None:
    app = app_of(stack)
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    begun: list[str] = []

    @app.job(slots=4, key_concurrency=1)
    async def pay(customer: str) -> str:
        begun.append(customer)
        if begun.count("c") == 1 and customer == "c":
            raise Throttled(0.2, key="c")
        running[customer] = running.get(customer, 0) + 1
        most[customer] = max(most.get(customer, 0), running[customer])
        await asyncio.sleep(0.01)
        running[customer] -= 1
        return customer

    async with two_workers(app):
        customers = ["a", "a", "a", "b", "c"]
        jobs = [await pay.options(fairness_key=name).enqueue(name) for name in customers]
        assert [await job.aresult(timeout_s=30) for job in jobs] == customers
    assert most == {"a": 1, "b": 1, "c": 1}
