"""What a lane is to notice, it notices: what comes again long after its end, another's, early, twice, or never."""

import time
from random import Random
from typing import Any

import pytest

from tests.worlds import lanes
from tests.worlds.dag_lane import DagLane
from tests.worlds.facts import TICK_S
from tests.worlds.lanes import Lane, Pace
from tests.worlds.queue_lane import QueueLane
from tests.worlds.wire import Answer

HELD_S = 5.0


class Shelf:
    """A queue and a DAG service of one lane, as good as it is told to be, in the place of a world."""

    def __init__(self) -> None:
        self.seed, self.now_s = 1, 100.0
        self.items: dict[str, dict[str, Any]] = {}  # what is to come, by id
        self.left: list[dict[str, Any]] = []  # what is listed in the end
        self.dag_state = "succeeded"
        self.told: list[str] = []  # what the next acks are told; empty: they are not answered

    async def ask(self, door: Any, method: str, path: str, body: Any, query: Any, headers: Any) -> Answer:
        self.now_s += TICK_S
        found: Any = {"items": self.left, "next_cursor": None}
        match path.rsplit("/", 1)[-1]:
            case "enqueue":
                found = {
                    "results": [
                        {"status": "enqueued", "id": f"id {item['payload']['tag']}"} for item in body["items"]
                    ]
                }
            case "dequeue":
                found = {"items": list(self.items.values())}
                self.items = {}
            case "ack":
                status = self.told.pop(0) if self.told else "acked"
                if not status:
                    return Answer("info", self.now_s - TICK_S, self.now_s)
                found = {"results": [{"status": status, "id": item["id"]} for item in body["items"]]}
            case "states":
                found = {"results": [{"status": "not_found", "id": item_id} for item_id in body["ids"]]}
            case "dags":
                found = {"id": "D"}
            case "D":
                found = {"state": self.dag_state, "nodes": {"succeeded": 15}}
            case "items0":
                found = {"items": len(self.left), "in_flight": 0}
        return Answer("ok", self.now_s - TICK_S, self.now_s, 200, found)

    async def pages(self, rng: Random, call: Any, namespace: str, path: str) -> list[Any]:
        return self.left

    def comes(self, tag: str, item_id: str = "", attempt: int = 1) -> None:
        item_id = item_id or f"id {tag}"
        payload = {"tag": tag, "lease_s": HELD_S}
        token = f"{item_id} {attempt}"
        topic = "n" if tag.startswith("graphs") else "a"
        self.items[token] = {
            "id": item_id,
            "topic": topic,
            "lease_token": token,
            "attempt": attempt,
            "payload": payload,
        }


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def items(shelf: Shelf) -> QueueLane:
    made = QueueLane(shelf, "items0", {"queue": [None]}, 1.0)  # type: ignore[arg-type,list-item]
    made.is_ending = True  # all that comes is acked
    return made


async def send(lane: QueueLane) -> str:
    sent = lane._item()
    sent.body.pop("delay_s", None)
    sent.body["topic"] = sent.topic = "a"
    await lane._send([sent])
    return sent.tag


async def work(lane: Lane, shelf: Shelf) -> None:
    await lane.handle(await lane.take(["a"], 10))


async def test_a_sound_lane_is_sound_and_forgets_what_is_over(shelf: Shelf, items: QueueLane) -> None:
    shelf.comes(await send(items))
    await work(items, shelf)
    await items.last_look()
    assert (items.faults, items.left, items.history.sent, dict(items.history.deliveries)) == ([], 0, {}, {})
    assert items.operations == {"enqueued": 1, "leased": 1, "acked": 1}


async def test_an_ack_whose_answer_was_lost_with_its_lease_is_looked_up(shelf: Shelf, items: QueueLane) -> None:
    """Until its lease is over, an ack that is repeated is told so; then it is told that the lease is lost."""
    shelf.told = ["", "lease_lost"]
    shelf.comes(await send(items))
    await work(items, shelf)
    assert items.left == 1
    items._is_through = True
    await items._look_up()
    await items.last_look()
    assert (items.left, items.faults) == (0, [])


async def test_what_comes_again_long_after_its_end_is_noticed(shelf: Shelf, items: QueueLane) -> None:
    tag = await send(items)
    shelf.comes(tag)
    await work(items, shelf)
    items.judge(all_of_it=True)
    shelf.comes(tag, attempt=2)
    await work(items, shelf)
    assert "came again" in items.faults[0]


async def test_what_is_leased_twice_at_once_is_noticed(shelf: Shelf, items: QueueLane) -> None:
    tag = await send(items)
    shelf.comes(tag)
    shelf.comes(tag, attempt=2)
    await work(items, shelf)
    items.judge(all_of_it=True)
    assert "leased twice at once" in items.faults[0]


async def test_anothers_item_is_noticed(shelf: Shelf, items: QueueLane) -> None:
    shelf.comes("items1/1")
    await work(items, shelf)
    assert "another's" in items.faults[0]


@pytest.mark.parametrize(
    ("state", "told"), [("", "is gone without a reason"), ("ready", "is ready without a reason")]
)
async def test_what_is_lost_or_stuck_is_noticed(shelf: Shelf, items: QueueLane, state: str, told: str) -> None:
    tag = await send(items)
    shelf.left = [{"id": f"id {tag}", "state": state}] if state else []
    await items.last_look()
    assert any(told in fault for fault in items.faults)


@pytest.fixture
async def graphs(shelf: Shelf) -> DagLane:
    made = DagLane(shelf, "graphs0", {"queue": [None], "dag": [None]}, 1.0)  # type: ignore[arg-type,list-item]
    made.is_ending = True
    await made._make_one()
    return made


async def run(lane: DagLane, shelf: Shelf, *keys: str) -> None:
    for key in keys:
        shelf.comes(f"graphs0/1/{key}")
        taken = await lane.take(["n"], 10)
        for held in taken:
            lane._look_at(held)
        await lane.handle(taken)


LAYERS = [f"n{layer}-{n}" for layer, width in enumerate((2, 6, 6, 1)) for n in range(width)]


async def test_a_sound_dag_is_sound(shelf: Shelf, graphs: DagLane) -> None:
    await run(graphs, shelf, *LAYERS)
    graphs._is_through = True
    await graphs._follow()
    assert (graphs.faults, graphs.left) == ([], 0)


async def test_a_dag_with_an_ack_whose_answer_was_lost_is_looked_at(shelf: Shelf, graphs: DagLane) -> None:
    await run(graphs, shelf, *LAYERS[:-1])
    shelf.told = ["", "lease_lost"]
    await run(graphs, shelf, LAYERS[-1])
    graphs._is_through = True
    await graphs._follow()
    assert (graphs.faults, graphs.left) == ([], 0)


async def test_a_node_that_comes_early_is_noticed(shelf: Shelf, graphs: DagLane) -> None:
    await run(graphs, shelf, *LAYERS[:2], LAYERS[-1])
    assert "before anybody had acked" in graphs.faults[0]


async def test_a_node_that_is_two_items_is_noticed(shelf: Shelf, graphs: DagLane) -> None:
    await run(graphs, shelf, "n0-0")
    shelf.comes("graphs0/1/n0-0", "another")
    for held in await graphs.take(["n"], 10):
        graphs._look_at(held)
    assert "is two items" in graphs.faults[0]


async def test_a_dag_that_ends_otherwise_is_noticed(shelf: Shelf, graphs: DagLane) -> None:
    await run(graphs, shelf, *LAYERS)
    graphs._is_through, shelf.dag_state = True, "failed"
    await graphs._follow()
    assert "ended as" in graphs.faults[0]


async def test_a_lane_that_was_held_up_makes_up_for_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, slept = [time.monotonic()], []
    monkeypatch.setattr(lanes, "monotonic", lambda: now_s[0])

    async def sleep(seconds: float) -> None:
        slept.append(round(seconds, 3))

    monkeypatch.setattr(lanes.asyncio, "sleep", sleep)
    pace = Pace(10.0)
    await pace.of(10)
    now_s[0] += 100.0
    for _ in range(7):
        await pace.of(10)
    assert slept == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]
