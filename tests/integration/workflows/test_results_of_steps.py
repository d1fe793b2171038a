"""What steps return, and what becomes of it where a turn has no room for it."""

import asyncio
from typing import Any

import pytest

from headgate import Workflow
from headgate.workflow.driving.driver import LEVELS_MAX
from tests.integration.workflows.test_running_a_workflow import Shop, shop

__all__ = ["shop"]


@pytest.mark.parametrize("what", ["large", "huge", "deep"])
async def test_a_step_whose_result_no_turn_takes_has_failed_and_is_not_called_again(shop: Shop, what: str) -> None:
    """Else its run would be stuck with it, and each delivery would call it once more."""
    deep: Any = None
    for _ in range(LEVELS_MAX + 1):
        deep = [deep]
    found, calls = {"large": "x" * 70_000, "huge": "x" * 17_000_000, "deep": deep}[what], []

    async def fetch() -> Any:
        calls.append(1)
        return found

    async def other() -> int:
        return 1

    @shop.worker.workflow("odd")
    async def odd(wf: Workflow) -> Any:
        fetched, one = await asyncio.gather(wf.run(fetch), wf.run(other), return_exceptions=True)
        return [type(fetched).__name__, fetched.state, "what the step" in fetched.error, one]

    shop.open()
    run = await shop.client.workflows.start("odd", id="odd-1")
    assert (await run.wait(timeout_s=20)).output == ["NodeFailed", "failed", True, 1]
    assert calls == [1]


async def test_a_step_may_return_as_much_as_a_turn_takes(shop: Shop) -> None:
    deep: Any = "x" * 60_000
    for _ in range(LEVELS_MAX):
        deep = [deep]

    async def fetch() -> Any:
        return deep

    @shop.worker.workflow("odd")
    async def odd(wf: Workflow) -> bool:
        return bool(await wf.run(fetch) == deep)

    shop.open()
    run = await shop.client.workflows.start("odd", id="odd-1")
    assert (await run.wait(timeout_s=20)).output is True
