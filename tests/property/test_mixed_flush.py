"""What shares a flush with a good element leaves no trace: a mix of good, stale, foreign and repeated elements
leaves what those that were applied would have left alone, and of an element's repeats the first is applied.

Each history lives twice, in namespaces of its own: once as calls that are made together, then as the elements
which were applied of them, one call each. Time stands still meanwhile. `HEADGATE_TEST_EXAMPLES` sets how many.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate._ids import shard_of
from tests.property.test_queue_machine import World
from tests.support.databases import Database
from tests.support.examples import examples
from tests.support.flushes import together
from tests.support.queue_host import Api

ITEMS = 3
APPLIED = {"acked", "requeued", "dead", "extended", "revived", "cancelled", "enqueued"}
GUESSED = "01234567-89ab-4cde-8f01-23456789abcd"

_STATE = """
SELECT i.id::text, t.name AS topic, i.payload, i.inputs, i.metadata, i.error, i.attempts, i.priority, i.deliver_at,
    p.reason, r.id IS NOT NULL AS is_ready, d.id IS NOT NULL AS is_deferred, l.expires_at
FROM item i JOIN topic t USING (topic_id) JOIN namespace n ON n.namespace_id = i.namespace_id
LEFT JOIN parked p ON p.id = i.id LEFT JOIN ready r ON r.id = i.id LEFT JOIN deferred d ON d.id = i.id
LEFT JOIN lease l ON i.id = ANY (l.ids)
WHERE n.name = $1 AND t.name <> 'done'
"""
_COMPLETIONS = """
SELECT i.payload::jsonb ->> 'id' AS id, (i.payload::jsonb - 'id')::text AS told
FROM item i JOIN topic t USING (topic_id) JOIN namespace n ON n.namespace_id = i.namespace_id
WHERE n.name = $1 AND t.name = 'done'
"""


class Element(NamedTuple):
    """One element of a call: of which item, under which token, and what it says (a number that it is made of)."""

    item: int
    token: str
    says: int


class Call(NamedTuple):
    """One call, by `owner`, `manager` (the DAG service) or `stranger` (another namespace)."""

    by: str
    elements: list[Element]


ELEMENTS = st.builds(
    Element,
    item=st.integers(0, ITEMS - 1),
    token=st.sampled_from(["good", "good", "stale", "guessed", "another's"]),
    says=st.integers(0, 3),
)
CALLS = st.lists(
    st.builds(
        Call,
        by=st.sampled_from(["owner", "owner", "owner", "manager", "stranger"]),
        elements=st.lists(ELEMENTS, min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=4,
)


@dataclass
class Scene:
    """The items of one life, and who calls."""

    verb: str
    callers: dict[str, Api]
    ids: list[str]
    tokens: dict[str, list[str]]

    @classmethod
    async def made(cls, api: Api, verb: str) -> "Scene":
        stranger, manager = Api(api.host), api.as_dag_service()
        first = await api.enqueue_one("elsewhere", affinity="x")
        shard = shard_of(first)
        await stranger.enqueue_one("t", id=stranger.new_id(shard))
        callers = {"owner": api, "manager": manager, "stranger": stranger}
        scene = cls(verb, callers, [], {})
        if verb == "enqueue":
            scene.ids = [api.new_id(shard) for _ in range(ITEMS)]
            await api.enqueue_one("t", id=scene.ids[0], payload="before")
            return scene
        # The first has its id from here, the second's is made by its caller, the third is a DAG's.
        common = {"topic": "t", "ack_topic": "done", "disabled": verb == "revive", "max_attempts": 5}
        [a] = await api.enqueue({**common, "affinity": "x"})
        [b] = await api.enqueue({**common, "id": api.new_id(shard)})
        managed = common | {"ack_topic": "_dag:acks/0"} if verb in ("revive", "cancel") else common
        [c] = await manager.enqueue({**managed, "id": api.new_id(shard)})
        scene.ids = [a["id"], b["id"], c["id"]]
        if verb not in ("revive", "cancel"):
            stale = await scene.leased()
            await api.nack(*stale, costs_attempt=False)
            good = await scene.leased()
            scene.tokens = {
                "stale": [item["lease_token"] for item in stale],
                "good": [item["lease_token"] for item in good],
                "guessed": [GUESSED] * ITEMS,
                "another's": [good[i - 1]["lease_token"] for i in range(ITEMS)],
            }
        return scene

    async def leased(self) -> list[dict[str, Any]]:
        """Each item under a lease of its own."""
        found = [item for _ in self.ids for item in await self.callers["owner"].dequeue("t", 1, lease_s=100)]
        assert len(found) == len(self.ids)
        return sorted(found, key=lambda item: self.ids.index(item["id"]))

    def is_good(self, by: str, element: Element) -> bool:
        if self.verb == "enqueue":
            return element.item > 0  # a new id is whose call comes first
        if by == "stranger":
            return False
        if self.verb in ("revive", "cancel"):
            return by == "manager" or element.item < 2
        return element.token == "good"

    def body(self, elements: list[Element]) -> dict[str, Any]:
        if self.verb == "cancel":
            return {"ids": [self.ids[element.item] for element in elements]}
        return {"items": [self.said(element) for element in elements]}

    def said(self, element: Element) -> dict[str, Any]:
        nth, said = element.says, {"id": self.ids[element.item]}
        if self.verb == "enqueue":
            return (
                said | {"topic": f"t{nth % 2}", "payload": nth, "priority": nth} | ({"delay_s": 5} if nth else {})
            )
        if self.verb == "revive":
            return said | ({"inputs": {"n": nth}} if nth else {})
        said |= {"lease_token": self.tokens[element.token][element.item]}
        if self.verb == "ack":
            return said | ({"output": nth} if nth else {})
        if self.verb == "extend":
            return said | ({"lease_s": 10 * nth} if nth else {})
        return said | {"delay_s": nth, "error": f"{nth}", "metadata": {"n": nth}, "final": nth == 3}

    async def play(self, calls: list[Call]) -> list[list[str]]:
        """What each element of calls that are made at once was told."""
        answers = await together(
            self.callers["owner"].host,
            [self.callers[call.by].results(self.verb, self.body(call.elements)) for call in calls],
        )
        return [[result["status"] for result in results] for results in answers]

    async def left(self) -> list[Any]:
        """What is there of the items, and what was told of their ends, without their ids."""
        owner = self.callers["owner"]
        rows = await owner.host.rows(_STATE, owner.namespace)
        told = await owner.host.rows(_COMPLETIONS, owner.namespace)
        return sorted(
            (self.ids.index(row["id"]), *map(str, tuple(row)[1:]))
            for row in (*rows, *told)
            if row["id"] in self.ids
        )


def played(verb: str, calls: list[Call]) -> list[Call]:
    """Of extends of one item those of one call: of several calls any may be the last."""
    if verb != "extend":
        return calls
    by_item: dict[int, int] = {}
    kept = []
    for nth, call in enumerate(calls):
        elements = [one for one in call.elements if by_item.setdefault(one.item, nth) == nth]
        kept += [Call(call.by, elements)] if elements else []
    return kept


async def lives_twice(world: World, verb: str, calls: list[Call]) -> None:
    await world.host.clock.reset()
    await world.host.clock.freeze()
    mixed = await Scene.made(Api(world.host), verb)
    told = await mixed.play(calls)

    applied: list[tuple[str, Element]] = []
    for call, statuses in zip(calls, told, strict=True):
        good = [mixed.is_good(call.by, element) for element in call.elements]
        of_call: list[int] = []
        for element, is_good, status in zip(call.elements, good, statuses, strict=True):
            is_first = is_good and element.item not in of_call
            assert status not in APPLIED or is_good, "what is not good is not applied"
            assert status not in APPLIED or is_first or verb == "extend", "of repeats the first is applied"
            of_call += [element.item] if is_good else []
            applied += [(call.by, element)] if status in APPLIED else []
    wanted = {one.item for call in calls for one in call.elements if mixed.is_good(call.by, one)}
    assert {element.item for _, element in applied} == wanted, "what is good is applied"
    assert verb == "extend" or len(applied) == len(wanted), "and once"

    alone = await Scene.made(Api(world.host), verb)
    for by, element in applied:
        [[status]] = await alone.play([Call(by, [element])])
        assert status in APPLIED
    assert await mixed.left() == await alone.left()


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    made = World(database)
    yield made
    made.close()


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "revive", "cancel", "enqueue"])
def test_a_mix_in_one_flush_leaves_what_the_good_ones_alone_leave(world: World, verb: str) -> None:
    @settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(calls=CALLS)
    def history(calls: list[Call]) -> None:
        world.run(lives_twice(world, verb, played(verb, calls)))

    history()
