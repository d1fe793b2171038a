"""The line in front of the verbs: who is begun next, and who is refused, when the processor is short."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from services.dag.settings import DagSettings
from services.queue.settings import QueueSettings
from shared.admission.connection_priority import Urgency
from shared.admission.fair_queue import TICK_S, Entrance, weigh
from shared.metrics import SHED
from tests.support.clocks import ManualClock

ROOM, WAIT_S = 8, 0.5
SETTLE, DEQUEUE, ENQUEUE = Urgency.SETTLE, Urgency.DEQUEUE, Urgency.ENQUEUE


@dataclass
class Call:
    door: "Door"
    name: str
    level: Urgency
    tenant: str = "a"
    kib: int = 1
    disconnected: bool = False

    def start(self) -> None:
        self.door.started.append(self.name)

    def refuse(self) -> None:
        self.door.refused.append(self.name)


@dataclass
class Door:
    """An entrance with a clock and a loop that go when they are told."""

    clock: ManualClock = field(default_factory=ManualClock)
    started: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    timers: list[Callable[[], None]] = field(default_factory=list)

    room_kib: int = ROOM
    wait_s: float = WAIT_S

    def __post_init__(self) -> None:
        self.entrance = Entrance(
            self.room_kib, self.wait_s, self.clock, lambda _s, callback: self.timers.append(callback)
        )

    def come(self, name: str, level: Urgency = ENQUEUE, tenant: str = "a", kib: int = 1) -> Call:
        call = Call(self, name, level, tenant, kib)
        self.entrance.enter(call)
        return call

    def fill(self) -> None:
        """As much is worked on as may be, and the loop is late: what comes now stands."""
        for n in range(ROOM):
            self.come(f"w{n}")
        self.come("over")
        self.late()
        assert len(self.started) == ROOM + 1
        self.started.clear()

    def tick(self, took_s: float) -> None:
        [timer] = self.timers
        self.timers.clear()
        self.clock.advance(took_s)
        timer()

    def late(self, took_s: float = 10 * TICK_S) -> None:
        """The next timer comes late."""
        self.tick(took_s)

    def in_time(self) -> None:
        """The next timer comes when it should."""
        self.tick(TICK_S)


@pytest.fixture
def door() -> Door:
    return Door()


def test_while_nobody_stands_calls_begin_at_once_and_no_timer_runs(door: Door) -> None:
    for n in range(ROOM):
        door.come(str(n))
    assert len(door.started) == ROOM
    assert (door.timers, door.refused) == ([], [])


def test_a_loop_in_time_holds_nobody_back_however_many_calls_wait_for_a_disk(door: Door) -> None:
    for n in range(ROOM):
        door.come(str(n))
    for n in range(100):
        door.come(f"more-{n}")
        door.in_time()
        assert len(door.started) == ROOM + n + 1


def test_a_loop_that_is_late_begins_a_call_when_another_has_ended(door: Door) -> None:
    door.fill()
    door.come("1")
    door.come("2")
    door.late()
    assert door.started == []
    door.entrance.leave(1)
    assert door.started == [], "one over the room has ended"
    door.entrance.leave(1)
    assert door.started == ["1"]
    door.in_time()
    assert door.started == ["1", "2"]


def test_acks_overtake_dequeues_overtake_enqueues(door: Door) -> None:
    door.fill()
    more = 3 * ROOM - 1  # one that was over the room is there already
    for n in range(more + 5):
        door.come(f"a{n}", SETTLE)
    room = list(door.started)
    assert room == [f"a{n}" for n in range(more)], "acks may fill four times as much, and no more"
    door.come("e", ENQUEUE)
    door.come("d", DEQUEUE)
    door.come("a", SETTLE)
    for _ in range(5 * ROOM):
        door.entrance.leave(1)
    assert door.started[len(room) :] == [*(f"a{more + n}" for n in range(5)), "a", "d", "e"]


def test_dequeues_may_fill_thrice_what_enqueues_may_and_a_quarter(door: Door) -> None:
    door.fill()
    for n in range(3 * ROOM):
        door.come(f"d{n}", DEQUEUE)
    assert len(door.started) == 2 * ROOM + ROOM // 4 - 1, "one that was over the room is there already"


def test_between_two_timers_an_eighth_of_the_room_is_begun_over_it() -> None:
    door = Door(room_kib=64)
    for n in range(64 + 20):
        door.come(str(n))
    assert len(door.started) == 64 + 8
    door.in_time()
    assert len(door.started) == 64 + 16
    door.late()
    assert len(door.started) == 64 + 16


def test_what_stands_is_not_overtaken_by_a_newcomer_of_its_urgency(door: Door) -> None:
    door.fill()
    door.come("1")
    door.clock.advance(WAIT_S / 10)
    door.entrance.leave(ROOM)
    assert door.started == ["1"]
    door.come("2")
    assert door.started == ["1", "2"]


def test_namespaces_take_turns_by_what_they_send(door: Door) -> None:
    door.fill()
    for n in range(20):
        door.come(f"hot-{n}", tenant="hot")
    door.come("large-0", tenant="large", kib=10)
    door.come("large-1", tenant="large")
    door.come("calm", tenant="calm")
    for _ in range(60):
        door.entrance.leave(1)
    assert door.started[:4] == ["hot-0", "large-0", "calm", "hot-1"]
    assert door.started.index("large-1") == door.started.index("hot-9") + 1
    assert [name for name in door.started if name.startswith("hot")] == [f"hot-{n}" for n in range(20)]


def stand(door: Door, level: Urgency, for_s: float) -> None:
    """A call stands for so long."""
    while not door.entrance.standing:
        door.come("stands", level)
    door.started.clear()
    door.clock.advance(for_s)


@pytest.mark.parametrize(("level", "patience"), [(ENQUEUE, 1), (DEQUEUE, 2), (SETTLE, 10)])
def test_a_line_that_stood_all_the_while_refuses_the_next_call_at_once(
    door: Door, level: Urgency, patience: int
) -> None:
    door.fill()
    stand(door, level, WAIT_S * patience - 0.01)
    door.come("before", level)
    assert door.refused == []
    door.clock.advance(0.01)
    counted = SHED.labels(level.name.lower())._value.get()
    door.come("after", level)
    assert door.refused == ["after"]
    assert SHED.labels(level.name.lower())._value.get() == counted + 1
    door.come("other", level, tenant="b")
    assert door.refused == ["after"], "who has nobody standing is not refused for others"


def test_in_a_line_that_moves_a_call_may_join_while_the_first_is_young(door: Door) -> None:
    door.fill()
    stand(door, ENQUEUE, 0.95 * WAIT_S)
    door.come("2")
    door.entrance.leave(2)
    assert door.started == ["stands"]
    door.clock.advance(0.19 * WAIT_S)
    door.come("3")
    assert door.refused == []
    door.clock.advance(0.02 * WAIT_S)
    door.come("4")
    assert door.refused == ["4"]


def test_a_burst_stands_and_is_not_refused(door: Door) -> None:
    door.fill()
    for n in range(100):
        door.come(str(n))
    for _ in range(9):
        door.late(0.05)
        for _ in range(15):
            door.entrance.leave(1)
        door.come("next")
    assert door.refused == []
    assert len(door.started) == 100 + 9


def test_who_stands_for_twice_the_while_is_refused_though_nothing_ends(door: Door) -> None:
    door.fill()
    door.come("1")
    door.late(2 * WAIT_S - 0.01)
    assert door.refused == []
    door.late(0.2)
    assert door.refused == ["1"]
    assert door.entrance.standing == 0


def test_a_namespace_whose_calls_were_refused_comes_again_like_any_other(door: Door) -> None:
    """Neither a turn of what was refused is left over, nor a place in the line without one."""
    door.fill()
    door.come("a1", tenant="a")
    door.late(WAIT_S)
    door.come("b1", tenant="b")
    door.late(WAIT_S)
    assert door.refused == ["a1"]
    door.come("a2", tenant="a")
    assert door.refused == ["a1"], "it stands since now, not since the first of those that are gone"
    door.entrance.leave(3)
    assert door.started == ["b1", "a2"]
    assert door.entrance.standing == 0


def test_a_namespace_that_comes_later_is_owed_nothing_for_the_time_before(door: Door) -> None:
    door.fill()
    for n in range(8):
        door.come(f"a{n}", tenant="a")
    door.entrance.leave(5)
    assert door.started == ["a0", "a1", "a2", "a3"]
    door.started.clear()
    for n in range(3):
        door.come(f"b{n}", tenant="b")
    for _ in range(5):
        door.entrance.leave(1)
    assert door.started == ["b0", "a4", "b1", "a5", "b2"]


def test_who_hung_up_while_standing_is_not_begun(door: Door) -> None:
    door.fill()
    gone = door.come("gone")
    door.come("next")
    gone.disconnected = True
    counted = SHED.labels("enqueue")._value.get()
    door.entrance.leave(1)
    door.entrance.leave(1)
    assert door.started == ["next"]
    assert SHED.labels("enqueue")._value.get() == counted


def test_when_all_is_calm_again_no_timer_runs(door: Door) -> None:
    door.fill()
    for _ in range(ROOM + 1):
        door.entrance.leave(1)
    door.in_time()
    assert door.timers == []
    door.come("next")
    assert door.started == ["next"]


def test_a_call_counts_for_itself_and_its_body() -> None:
    assert [weigh(n) for n in (0, 1023, 1024, 10_240)] == [1, 1, 2, 11]


@pytest.mark.parametrize(
    ("settings", "callers", "kib", "work_s"),
    [(QueueSettings(), 12, 150, 0.07), (DagSettings(), 8, 250, 0.7)],
    ids=["batches of a thousand items", "DAGs of a thousand nodes"],
)
def test_callers_who_only_wait_their_turn_on_a_slow_machine_are_not_refused(
    settings: QueueSettings | DagSettings, callers: int, kib: int, work_s: float
) -> None:
    """Each sends its next call when the last one is answered; the loop is late all the time."""
    door = Door(room_kib=settings.working_kib_max, wait_s=settings.start_wait_s_max)
    for n in range(callers):
        door.come(str(n), kib=kib)
    for n in range(callers, 40 * callers):
        if door.timers:
            door.late(work_s)
        else:
            door.clock.advance(work_s)
        door.entrance.leave(kib)
        door.come(str(n), kib=kib)
    assert door.refused == []
    assert len(door.started) >= 39 * callers
