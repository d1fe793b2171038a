"""The scenarios by name. Each is a coroutine from a `Bench` to an `Outcome`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.bench import Bench
from benchmarks.outcome import Outcome
from benchmarks.scenarios import build, chain, cycle, fan, layered, schema
from benchmarks.schema.variants import SHARDS


@dataclass(frozen=True)
class Scenario:
    """One scenario: what it shows, how it runs, and on what kind of stack."""

    name: str
    shows: str
    run: Callable[[Bench], Awaitable[Outcome]]
    usual: bool = True
    with_services: bool = True
    queue_shards: int | None = None
    postgres_options: Mapping[str, str] = field(default_factory=dict)


_ALL = (
    Scenario("cycle", "enqueue, dequeue and ack through HTTP, against both floors", cycle.run),
    Scenario("chain", "the time of a step in a chain of 100 nodes, beside the sum of its parts", chain.run),
    Scenario("fan", "nodes per second of 1 -> 998 -> 1, from create to end", fan.run),
    Scenario("layered", "node rate of a layered graph, at 1,000 and at 20,000 nodes", layered.run),
    Scenario("build", "edges added in random order by four builders, at 1,000 and 20,000 nodes", build.run),
    Scenario(
        "schema",
        "the queue's tables against alternatives, direct SQL, at backlogs (not among the usual ones)",
        schema.run,
        usual=False,
        with_services=False,
        queue_shards=SHARDS,
        postgres_options={"shared_buffers": "1GB"},
    ),
)
SCENARIOS = {scenario.name: scenario for scenario in _ALL}
