"""An order: reserve, have large ones approved within a day, charge, ship, and undo what was done where that fails.

    python -m examples.workflows.order

Each step that can be undone says how as it succeeds; what fails later undoes them, last first. The approval is a
signal, and the day that it has is a timer: nothing is held meanwhile.
"""

import asyncio
from typing import Any

from headgate import NodeFailed, Workflow
from headgate.testing import Simulation, simulate

LARGE = 1_000
DAY_S = 86_400


async def order(wf: Workflow, cart: dict[str, Any]) -> dict[str, Any]:
    undo: list[tuple[str, Any]] = []
    try:
        reserved = await wf.call("stock/reserve", cart["items"])
        undo.append(("stock/release", reserved))
        if cart["total"] > LARGE and not await approved(wf):
            return await undone(wf, undo, "not approved")
        rate = await wf.run(rate_of, cart["currency"])
        receipt = await wf.call("card/charge", cart["total"] * rate, max_attempts=5, backoff={"base_s": 1})
        undo.append(("card/refund", receipt))
        wf.publish("state", "paid")
        parcels = await asyncio.gather(*(wf.call("ship/pack", item) for item in cart["items"]))
        label = await wf.call("ship/label", parcels)
    except NodeFailed as error:
        return await undone(wf, undo, f"{error.key} {error.state}")
    except asyncio.CancelledError:
        await undone(wf, undo, "cancelled")
        raise
    wf.publish("state", "shipped")
    return {"state": "shipped", "receipt": receipt, "label": label}


async def approved(wf: Workflow) -> bool:
    wf.publish("state", "waits for approval")
    try:
        async with asyncio.timeout(DAY_S):
            return bool((await wf.receive("approval"))["yes"])
    except TimeoutError:
        return False


async def undone(wf: Workflow, undo: list[tuple[str, Any]], why: str) -> dict[str, Any]:
    for topic, what in reversed(undo):
        await wf.call(topic, what, max_attempts=100)
    wf.publish("state", "undone")
    return {"state": "undone", "why": why}


def rate_of(currency: str) -> float:
    """A step: it may look where it likes, once."""
    return {"EUR": 1.0, "USD": 0.5}[currency]


def simulated(total: int = 1_200) -> Simulation:
    cart = {"items": ["book", "lamp"], "total": total, "currency": "USD"}
    return simulate(order, cart).on("stock/reserve", "r-1").on("card/charge", lambda amount: f"paid {amount}")


if __name__ == "__main__":
    done = simulated().signal("approval", {"yes": True}, at_s=3_600).on("ship/label", "L-7", takes_s=60)
    print(f"{done.output} after {done.elapsed_s:.0f} s")
    late = simulated()
    print(f"{late.output} after {late.elapsed_s:.0f} s: {', '.join(late.asked)}")
