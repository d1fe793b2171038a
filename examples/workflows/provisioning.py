"""Provisioning: a network, then machines side by side, each with its disk; all of it is taken down again where
one of them fails, or the request is cancelled.

    python -m examples.workflows.provisioning

A machine is a child workflow: what it has made it takes down itself, so its parent need not know of it.
"""

import asyncio
from typing import Any

from headgate import NodeFailed, Workflow
from headgate.testing import Simulation, simulate


async def cluster(wf: Workflow, wanted: dict[str, Any]) -> dict[str, Any]:
    network = await wf.call("net/create", wanted["name"], max_attempts=5)
    made: list[Any] = []
    try:
        names = [f"{wanted['name']}-{number}" for number in range(wanted["machines"])]
        made = await asyncio.gather(
            *(wf.child("machine", {"name": name, "network": network}) for name in names), return_exceptions=True
        )
        failed = [each.key for each in made if isinstance(each, NodeFailed)]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(names)} machines could not be made")
        wf.publish("state", "ready")
        return {"state": "ready", "machines": made}
    except (RuntimeError, asyncio.CancelledError) as error:
        for machine in [each for each in made if isinstance(each, str)]:
            await wf.call("vm/delete", machine, max_attempts=100)
        await wf.call("net/delete", network, max_attempts=100)
        if isinstance(error, asyncio.CancelledError):
            raise
        return {"state": "taken down", "why": str(error)}


async def machine(wf: Workflow, wanted: dict[str, str]) -> str:
    undo: list[tuple[str, Any]] = []
    try:
        disk = await wf.call("disk/create", wanted["name"], max_attempts=3)
        undo.append(("disk/delete", disk))
        vm: str = await wf.call("vm/create", {"disk": disk, "network": wanted["network"]}, max_attempts=3)
        undo.append(("vm/delete", vm))
        async with asyncio.timeout(600):
            while not await wf.call("vm/is-up", vm):
                await wf.sleep(10)
        return vm
    except (NodeFailed, TimeoutError, asyncio.CancelledError):
        for topic, what in reversed(undo):
            await wf.call(topic, what, max_attempts=100)
        raise


def simulated(machines: int = 3) -> Simulation:
    up: dict[str, int] = {}

    def is_up(vm: str) -> bool:
        up[vm] = up.get(vm, 0) + 1
        return up[vm] > 3

    simulation = simulate(cluster, {"name": "web", "machines": machines}).on("net/create", "net-1")
    simulation.on("machine", workflow=machine).on("disk/create", lambda name: f"disk of {name}")
    return simulation.on("vm/create", lambda made: f"vm on {made['disk']}", takes_s=30).on("vm/is-up", is_up)


if __name__ == "__main__":
    done = simulated()
    print(f"{done.output['state']}: {len(done.output['machines'])} machines after {done.elapsed_s:.0f} s")
    broken = simulated().on("vm/create", fails=99)
    print(f"{broken.output['state']}: {broken.output['why']}")
