"""`@app.every`: workers bring schedules to the service, which runs their functions and tells them the time."""

import asyncio
import secrets
from datetime import UTC, datetime

from headgate import App, Client
from services.local.stack import Stack


async def test_a_schedule_is_brought_once_and_runs_its_function(stack: Stack) -> None:
    name = f"every-{secrets.token_hex(4)}"
    client = Client(queue_url=stack.queue_url, dag_url=stack.dag_url, namespace=name)
    app = App(name, client=client)
    ran: asyncio.Queue[datetime | None] = asyncio.Queue()

    @app.every("nightly", cron="0 3 * * *", tz="Europe/Paris", overlap="skip")
    async def report(at: datetime) -> None:
        ran.put_nowait(at)

    @app.every("beat", every_s=1, overlap="allow")
    async def beat() -> None:
        ran.put_nowait(None)

    @app.every("daily", cron="@daily")
    def daily() -> None: ...

    workers = [app.worker(drain_s=2, wait_s=2) for _ in range(2)]
    working = [asyncio.create_task(worker.run(signals=False)) for worker in workers]
    schedules = app.async_client.schedules
    async with asyncio.timeout(60):
        assert await ran.get() is None
        known = {schedule.id: schedule for schedule in await schedules.all()}
        assert (known["nightly"].spec.tz, known["beat"].spec.interval_s) == ("Europe/Paris", 1)
        assert known["daily"].spec.cron == "0 0 * * *"
        await schedules.pause("beat")
        at = datetime(2030, 1, 1, 2, tzinfo=UTC)
        await schedules.trigger("nightly", at=at)
        while (told := await ran.get()) is None:
            pass
        assert told == at
    for worker in workers:
        worker.stop()
    await asyncio.gather(*working)
    await app.aclose()
    client.close()
