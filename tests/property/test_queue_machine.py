"""The real service against a model of one topic: every answer, every count, after every step.

Conservation is the heart of it: what was enqueued is in exactly one state or has ended, and every end that
was to be told was told once.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tests.property.queue_model import Item, Model, request
from tests.support.databases import Database
from tests.support.examples import examples
from tests.support.queue_host import Api, QueueHost, queue_host

SPECS = st.fixed_dictionaries(
    {
        "priority": st.integers(-1, 1),
        "lease_s": st.sampled_from([2.0, 10.0]),
        "max_attempts": st.sampled_from([0, 0, 1, 2]),
        "delay_s": st.sampled_from([0.0, 0.0, 3.0]),
        "ttl_s": st.sampled_from([None, None, 8.0, 30.0]),
        "at_most_once": st.booleans(),
        "tells": st.booleans(),
        "disabled": st.booleans(),
        "shard": st.sampled_from([0, 1]),
    }
)
LOST = {"lease_lost", "cancelled", "not_found", "already_acked"}


class World:
    """A queue process and the loop it lives in."""

    def __init__(self, database: Database) -> None:
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.host: QueueHost = self.run(self.stack.enter_async_context(queue_host(database)))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def close(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()


class QueueMachine(RuleBasedStateMachine):
    world: World
    ids = Bundle("ids")
    leases = Bundle("leases")

    @initialize()
    def begin(self) -> None:
        self.api = Api(self.world.host)
        self.model = Model()
        self.completions: Counter[str] = Counter()
        self.run(self.world.host.clock.reset())
        self.run(self.world.host.clock.freeze())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.world.run(work)

    @rule(target=ids, specs=st.lists(SPECS, min_size=1, max_size=4))
    def enqueue(self, specs: list[dict[str, Any]]) -> Any:
        made = []
        for given in specs:
            spec = dict(given)
            disabled, shard = spec.pop("disabled"), spec.pop("shard")
            if spec["ttl_s"] is not None and spec["ttl_s"] < spec["delay_s"]:
                spec["delay_s"] = 0.0
            made.append((Item(id=self.api.new_id(shard), **spec), disabled))
        results = self.run(self.api.enqueue(*(request(item, disabled) for item, disabled in made)))
        assert [result["status"] for result in results] == ["enqueued"] * len(made)
        for item, disabled in made:
            self.model.enqueue(item, disabled)
        return multiple(*(item.id for item, _ in made))

    @rule(item_id=ids)
    def enqueue_again(self, item_id: str) -> None:
        [result] = self.run(self.api.enqueue({"topic": "t", "id": item_id}))
        cancelled = self.model.outcomes.get(item_id) == "cancelled"
        assert result["status"] == ("cancelled" if cancelled else "duplicate")

    @rule(target=leases, count=st.integers(1, 5), lease_s=st.sampled_from([None, 5.0]))
    def dequeue(self, count: int, lease_s: float | None) -> Any:
        fields = {} if lease_s is None else {"lease_s": lease_s}
        leased = self.run(self.api.dequeue("t", count, **fields))
        assert [item["id"] for item in leased] == [item.id for item in self.model.dequeue(count)]
        for item in leased:
            wanted = self.model.items[item["id"]]
            assert item["attempt"] == wanted.attempts + 1
            self.model.leased(item["id"], item["lease_token"], lease_s or wanted.lease_s)
        return multiple(*((item["id"], item["lease_token"]) for item in leased))

    @rule(held=leases)
    def ack(self, held: tuple[str, str]) -> None:
        self.settle("ack", held, self.model.ack(*held))

    @rule(held=leases, delay_s=st.sampled_from([0.0, 4.0]), final=st.booleans(), costs=st.booleans())
    def nack(self, held: tuple[str, str], delay_s: float, final: bool, costs: bool) -> None:
        expected = self.model.nack(*held, delay_s=delay_s, final=final, costs=costs)
        self.settle("nack", held, expected, delay_s=delay_s, final=final, costs_attempt=costs)

    @rule(held=leases, lease_s=st.sampled_from([None, 1.0, 20.0]))
    def extend(self, held: tuple[str, str], lease_s: float | None) -> None:
        fields = {} if lease_s is None else {"lease_s": lease_s}
        self.settle("extend", held, self.model.extend(*held, lease_s), **fields)

    def settle(self, verb: str, held: tuple[str, str], expected: str, **fields: Any) -> None:
        item = {"id": held[0], "lease_token": held[1]}
        [status] = self.run(self.api._settle(verb, [item], fields))
        if expected:
            assert status == expected
        elif self.model.outcomes.get(held[0]) == "cancelled":
            assert status in ("cancelled", "already_acked", "lease_lost")
        else:
            assert status in LOST

    @rule(item_id=ids)
    def cancel(self, item_id: str) -> None:
        assert self.run(self.api.cancel(item_id)) == [self.model.cancel(item_id)]

    @rule(item_id=ids)
    def revive(self, item_id: str) -> None:
        assert self.run(self.api.revive(item_id)) == [self.model.revive(item_id)]

    @rule()
    def redrive(self) -> None:
        answer = self.run(self.api.post("topics/redrive", {"topic": "t"}))
        assert answer.json()["items"] == self.model.redrive()

    @rule(sure=st.integers(0, 4))
    def purge(self, sure: int) -> None:
        if sure == 0:
            held = len(self.model.items)
            self.model.purge()
            assert self.run(self.api.post("topics/purge", {"topic": "t"})).json()["items"] == held

    @rule(seconds=st.sampled_from([1.0, 3.0, 7.0, 12.0]))
    def pass_time(self, seconds: float) -> None:
        self.run(self.world.host.pass_time(seconds))
        self.model.pass_time(seconds)

    @rule()
    def fold(self) -> None:
        self.run(self.world.host.fold())

    @rule(held=consumes(leases))
    def forget(self, held: tuple[str, str]) -> None:
        """A worker dies; its lease is left to run out."""

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "api"):
            row = self.run(self.api.topic("t"))
            assert {state: row.get(state, 0) for state in self.model.counts()} == self.model.counts()

    @invariant()
    def ends_were_told(self) -> None:
        if hasattr(self, "api"):
            self.completions.update(part["outcome"] for part in self.run(self.api.completions("done")))
            assert {name: self.completions[name] for name in self.model.told} == self.model.told

    def teardown(self) -> None:
        if hasattr(self, "api"):
            self.run(self.api.post("topics/purge", {"topic": "t"}))


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    made = World(database)
    yield made
    made.close()


def test_the_service_does_what_the_model_does(world: World) -> None:
    QueueMachine.world = world
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        QueueMachine,
        settings=settings(
            max_examples=examples(20),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
