"""What the calls of a world come to where there is nobody to answer."""

from types import SimpleNamespace
from typing import Any

import httpx

from tests.worlds.world import World


async def test_a_call_to_a_process_that_was_killed_and_is_over_does_nothing() -> None:
    """A scene goes on at the process that it chose, whatever becomes of that."""
    client = httpx.AsyncClient()
    await client.aclose()
    process: Any = SimpleNamespace(name="q1", client=client)
    clock = SimpleNamespace(now_s=lambda: 1.0, latest_s=lambda: 1.0)
    world = World(1, SimpleNamespace(clock=clock, processes=[]))
    answer = await world.ask(process, "POST", "/v1/namespaces/red/dequeue", {}, {}, {})
    assert answer.known == "fail"
    assert world.faults == []
