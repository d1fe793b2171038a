"""An app on its way into a store: checks, review, a roll-out in stages, and newer versions at any time; tried by
`python -m examples.workflows.app_submission`.

Signals: `update` (a newer version), `review`, `halt`, `go on`. Cancel withdraws what is out, at any stage.
"""

import asyncio
from typing import Any

from headgate import NodeFailed, Workflow
from headgate.testing import Simulation, simulate

STAGES, STAGE_S = (1, 10, 50, 100), 6 * 3_600


async def app_submission(wf: Workflow, version: str) -> dict[str, Any]:
    done: list[str] = []
    while True:
        submitting = asyncio.create_task(submit(wf, version))
        newer = asyncio.create_task(wf.receive("update"))
        try:
            await asyncio.wait([submitting, newer], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            submitting.cancel()
            await asyncio.wait([submitting])
            await wf.call("store/withdraw", version)
            raise
        if not newer.done():
            newer.cancel()
            return {"version": version, "state": submitting.result(), "superseded": done}
        submitting.cancel()
        await asyncio.wait([submitting])
        done.append(version)
        version = newer.result()


async def submit(wf: Workflow, version: str) -> str:
    """One version, until it is out everywhere or has failed."""
    wf.publish("stage", f"{version}: checks")
    try:
        await asyncio.gather(*(wf.call(f"check/{kind}", version) for kind in ("signature", "malware", "policy")))
    except NodeFailed as error:
        return f"refused by {error.key}"
    wf.publish("stage", f"{version}: review")
    review = await wf.receive("review")
    if not review["accepted"]:
        return f"refused: {review['why']}"
    for percent in STAGES:
        await wf.call("store/roll-out", {"version": version, "percent": percent})
        wf.publish("stage", f"{version}: {percent} %")
        if percent < STAGES[-1] and not await stays(wf):
            await wf.call("store/roll-out", {"version": version, "percent": 0})
            return f"halted at {percent} %"
    return "published"


async def stays(wf: Workflow) -> bool:
    """Whether a stage may be followed by the next: after its time, or not if it is halted for a day."""
    try:
        async with asyncio.timeout(STAGE_S):
            await wf.receive("halt")
    except TimeoutError:
        return True
    try:
        async with asyncio.timeout(86_400):
            await wf.receive("go on")
    except TimeoutError:
        return False
    return True


def simulated(version: str = "1.0") -> Simulation:
    return simulate(app_submission, version).on("check/malware", takes_s=600)


if __name__ == "__main__":
    first = simulated().signal("review", {"accepted": True}, at_s=3_600)
    second = first.signal("update", "1.1", at_s=20_000).signal("review", {"accepted": True}, at_s=24_000)
    print(f"{second.output} after {second.elapsed_s / 3_600:.1f} h")
