"""What calls of a world come to where nobody answers, and what its tenants ask for when everything is let go."""

from random import Random
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from headgate.wire import BATCH_MAX
from tests.worlds import queue_oracle
from tests.worlds.facts import Sent
from tests.worlds.queue_verbs import look, take
from tests.worlds.wire import Answer
from tests.worlds.world import World
from tests.worlds.world_names import NAMESPACES, NARROW_TOPICS


def world() -> World:
    clock = SimpleNamespace(now_s=lambda: 1.0, latest_s=lambda: 1.0)
    return World(1, SimpleNamespace(clock=clock, queues=["q1"]))


async def test_a_call_to_a_process_that_was_killed_and_is_over_does_nothing() -> None:
    """A scene goes on at the process that it chose, whatever becomes of that."""
    client = httpx.AsyncClient()
    await client.aclose()
    process: Any = SimpleNamespace(name="q1", client=client)
    there = world()
    answer = await there.ask(process, "POST", "/v1/namespaces/red/dequeue", {}, {}, {})
    assert answer.known == "fail"
    assert there.faults == []


async def test_in_the_end_all_topics_are_asked_for_in_a_call_that_is_within_its_bounds() -> None:
    there = world()
    there.draining = True
    there.limits.scenes = {(NAMESPACES[0], topic): None for topic in NARROW_TOPICS}
    asked: list[int] = []

    async def call(*given: Any) -> Answer:
        asked.extend(demand["count"] for demand in given[5]["topics"])
        return Answer("fail", 1.0, 1.0, 422, {"code": "invalid"})

    there.call = call  # type: ignore[method-assign, assignment]
    await take(there, Random(1), NAMESPACES[0], 100)
    assert len(asked) > 10
    assert sum(asked) <= BATCH_MAX
    assert there.faults, "a call that is refused for its form is the caller's fault, or the service's"


@pytest.mark.parametrize(("known", "is_fault"), [("info", False), ("fail", True)])
async def test_what_died_unheard_of_is_the_item_of_an_enqueue_that_was_not_answered(
    known: Any, is_fault: bool
) -> None:
    """And of none that was refused."""
    there = world()
    tag = f"{NAMESPACES[0]}/1"
    there.history.sent[tag] = Sent(tag, NAMESPACES[0], "a", {"topic": "a", "max_attempts": 1}, known={known})

    async def pages(rng: Random, call: Any, namespace: str, path: str) -> list[dict[str, Any]]:
        item = {
            "id": "01a21ace-9567-776f-9b5e-f9ee0834c001",
            "topic": "a",
            "state": "dead",
            "payload": {"tag": tag},
        }
        return [item] if namespace == NAMESPACES[0] else []

    there.pages = pages  # type: ignore[method-assign, assignment]
    await look(there, Random(1))
    assert bool(queue_oracle.judge(there.history)) is is_fault
