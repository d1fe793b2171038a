"""One contract of runs, two services: a run in memory; the DAG service on a real shard and a queue in memory."""

from typing import Any, Protocol

import httpx

from headgate import AsyncClient
from headgate._worker.deciders import RestRuns
from headgate.workflow.driving.driver import Driver
from headgate.workflow.events import Event
from headgate.workflow.local.memory import MemoryRun
from headgate.workflow.turns import Lease, Page, Turn, TurnAnswer
from tests.support.dag_world import DagWorld

TYPE = "order"


class RunService(Protocol):
    """What a test does with one run; `lease` is the delivery that waits, if there is one."""

    async def start(self, input: Any = None) -> None: ...
    async def lease(self) -> Lease | None: ...
    async def history(self, lease: Lease, after: int, wait_s: float = 0.0) -> Page: ...
    async def turn(self, lease: Lease, turn: Turn) -> TurnAnswer: ...
    async def acked(self, lease: Lease) -> None: ...
    async def finish(self, key: str, state: str = "succeeded", output: Any = None) -> None: ...
    async def signal(self, name: str, data: Any = None, id: str = "s") -> bool: ...
    async def cancel(self, reason: str | None = None) -> None: ...
    async def resume(self) -> None: ...
    async def events(self) -> list[Event]: ...
    async def shown(self) -> dict[str, Any]: ...


class MemoryRuns:
    """The run in memory. What was delivered once and not acked is delivered again, as by a queue."""

    def __init__(self) -> None:
        self.run = MemoryRun(TYPE)

    async def start(self, input: Any = None) -> None:
        self.run = MemoryRun(TYPE, input)

    async def lease(self) -> Lease | None:
        return self.run.lease if self.run.is_awake else None

    async def history(self, lease: Lease, after: int, wait_s: float = 0.0) -> Page:
        return self.run.history(lease, after)

    async def turn(self, lease: Lease, turn: Turn) -> TurnAnswer:
        return self.run.turn(lease, turn)

    async def acked(self, lease: Lease) -> None:
        if lease.generation == self.run.generation:
            self.run.lose_item()

    async def finish(self, key: str, state: str = "succeeded", output: Any = None) -> None:
        self.run.finish(key, state, output=output, error=None if state == "succeeded" else "boom")

    async def signal(self, name: str, data: Any = None, id: str = "s") -> bool:
        return self.run.signal(name, data, id) is not None

    async def cancel(self, reason: str | None = None) -> None:
        self.run.cancel(reason)

    async def resume(self) -> None:
        self.run.resume()

    async def events(self) -> list[Event]:
        return self.run.events()

    async def shown(self) -> dict[str, Any]:
        run = self.run
        return {
            "state": run.state,
            "parked": run.parked,
            "output": run.output,
            "published": run.published,
            "stuck": run.stuck and run.stuck["code"],
        }


class DagRuns:
    """The DAG service."""

    def __init__(self, world: DagWorld) -> None:
        self.world = world
        self.id = "order-17"
        self.topic = f"wf/{TYPE}"
        transport = httpx.ASGITransport(app=world.app.state.hot)
        self.client = AsyncClient(queue_url="http://localhost", dag_url="http://localhost", transport=transport)
        self.runs = RestRuns(self.client, "default")
        self.dag = ""

    async def start(self, input: Any = None, **options: Any) -> None:
        run = await self.client.workflows.start(TYPE, input, id=self.id, **options)
        assert run.run is not None
        self.dag = run.run
        await self.world.settle()

    async def lease(self) -> Lease | None:
        await self.world.settle()
        ready = self.world.queue.ready(self.topic)
        if not ready:
            return None
        last = max(ready, key=lambda item: item.generation)
        return Lease(self.dag, last.generation, last.body["payload"]["secret"])

    async def history(self, lease: Lease, after: int, wait_s: float = 0.0) -> Page:
        return await self.runs.history(lease, after, wait_s)

    async def turn(self, lease: Lease, turn: Turn) -> TurnAnswer:
        return await self.runs.turn(lease, turn)

    async def acked(self, lease: Lease) -> None:
        item = self.world.queue.item_of("decider", lease.generation)
        self.world.queue.end(item, "acked")
        await self.world.settle()

    async def finish(self, key: str, state: str = "succeeded", output: Any = None) -> None:
        await self.world.settle()
        item = self.world.queue.item_of(key)
        if state == "succeeded":
            self.world.queue.end(item, "acked", output=output)
        else:
            self.world.queue.end(item, "dead" if state == "failed" else state, error="boom")
        await self.world.settle()

    async def signal(self, name: str, data: Any = None, id: str = "s") -> bool:
        answer = await self.client.workflows.get(self.id).signal(name, data, id=id)
        await self.world.settle()
        return answer.status == "accepted"

    async def cancel(self, reason: str | None = None) -> None:
        await self.client.workflows.get(self.id).cancel(reason)
        await self.world.settle()

    async def resume(self) -> None:
        await self.client.workflows.get(self.id).resume()
        await self.world.settle()

    async def events(self) -> list[Event]:
        found = await self.client.workflows.get(self.id).history()
        return list(map(Event.parse, found["events"]))

    async def shown(self) -> dict[str, Any]:
        run = await self.client.workflows.get(self.id).show()
        return {
            "state": run.state,
            "parked": run.parked,
            "output": run.output,
            "published": run.published,
            "stuck": run.stuck and run.stuck.code,
        }

    async def close(self) -> None:
        await self.client.aclose()


async def drive(service: RunService, driver: Driver) -> None:
    """Deliver the decider until nothing is delivered."""
    while (lease := await service.lease()) is not None:
        await driver.work(TYPE, lease)
        await service.acked(lease)
