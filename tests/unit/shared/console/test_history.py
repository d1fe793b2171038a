"""The last hour of a process: what is kept, for how long, of how many series; and several processes' as one."""

import math
import tracemalloc
from random import Random

import pytest

from shared.console import merging
from shared.console.history import Points, SeriesName, ShardHistory
from shared.console.merging import Line, Place, Question, Told
from shared.ids import ShardNo
from tests.support.clocks import ManualClock

READY = SeriesName("ready", 0)


def made(clock: ManualClock, *, series_max: int = 100) -> ShardHistory:
    return ShardHistory(clock, point_s=5.0, span_s=60.0, series_max=series_max)


def asked(history: ShardHistory, **changes: object) -> Question:
    given = {
        "metrics": ["ready", "db_latency_ms_p99"],
        "begin": history.slot_now() - history.points + 1,
        "points": history.points,
        "stride": 1,
        "by": "shard",
        "shard": None,
        "namespace": None,
        "topic": None,
        "lines_max": 100,
    }
    return Question(**(given | changes))  # type: ignore[arg-type]


def values(history: ShardHistory, **changes: object) -> list[list[float | None]]:
    return [line.values for line in merging.tell(history, asked(history, **changes)).lines]


def test_a_round_is_kept_and_what_is_older_is_written_over() -> None:
    clock = ManualClock(10_000.0, wall=True)
    history = made(clock)
    for n in range(30):
        history.take({READY: float(n)})
        clock.advance(5.0)
    clock.advance(-5.0)
    assert values(history) == [[float(n) for n in range(18, 30)]]


def test_what_was_not_sampled_is_a_gap_and_not_a_value_of_the_round_before() -> None:
    clock = ManualClock(10_000.0, wall=True)
    history = made(clock)
    for _ in range(12):
        history.take({READY: 7.0})
        clock.advance(5.0)
    clock.advance(20.0)
    history.take({READY: 1.0})
    assert values(history) == [[7.0] * 7 + [None] * 4 + [1.0]]
    clock.advance(3_600.0)
    history.take({READY: 2.0})
    assert values(history) == [[None] * 11 + [2.0]]


def test_a_clock_that_is_set_back_shows_nothing_of_a_time_to_come() -> None:
    clock = ManualClock(10_000.0, wall=True)
    history = made(clock)
    for _ in range(4):
        history.take({READY: 9.0})
        clock.advance(5.0)
    clock.advance(-3_600.0)
    history.take({READY: 1.0})
    assert values(history) == [[None] * 11 + [1.0]]


@pytest.mark.parametrize("points", [1, 59, 60, 61, 150, 720])
def test_points_are_those_of_a_plain_list_however_long_a_series_rests(points: int) -> None:
    random = Random(points)
    kept, plain = Points(points), dict[int, float]()
    slot, value = 1_000, 0.0
    for _ in range(3_000):
        slot += random.choice([0, 1, 1, 1, 1, 1, 1, 1, random.randrange(200)])
        value = value if random.random() < 0.98 else random.choice([0.0, 7.0, math.nan])
        kept.put(slot, value)
        plain[slot] = value
        asked = [slot + 1, slot, slot - points + 1, slot - points, slot - random.randrange(points + 10)]
        for n in asked:
            is_kept = slot - points < n <= slot
            assert repr(kept.at(n)) == repr(plain.get(n, math.nan) if is_kept else math.nan)


def test_a_series_that_rests_for_an_hour_is_a_few_numbers() -> None:
    clock = ManualClock(0.0, wall=True)
    history = ShardHistory(clock, point_s=5.0, span_s=3_600.0, series_max=1_000)
    tracemalloc.start()
    try:
        for n in range(720):
            history.take({SeriesName("ready", shard): float(shard) for shard in range(200)})
            clock.advance(5.0 if n < 719 else 0.0)
        bytes_, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bytes_ < 200 * 800
    assert values(history, points=720, begin=history.slot_now() - 719)[7] == [7.0] * 720


def test_series_are_bounded_and_what_told_nothing_for_a_round_makes_room() -> None:
    clock = ManualClock(10_000.0, wall=True)
    history = made(clock, series_max=2)
    history.take({SeriesName("ready", n): 1.0 for n in range(5)})
    assert (len(list(history.lines())), history.left_out) == (2, 3)
    assert merging.tell(history, asked(history)).left_out == 3
    clock.advance(60.0)
    history.take({SeriesName("ready", 9): 4.0})
    assert [series.shard for series, _ in history.lines()] == [9] and history.left_out == 0


def test_an_answer_is_bounded_and_says_what_it_leaves_out() -> None:
    history = made(ManualClock(10_000.0, wall=True))
    history.take({SeriesName("ready", n): 1.0 for n in range(5)})
    told = merging.tell(history, asked(history, lines_max=2))
    assert (len(told.lines), told.left_out) == (2, 3)


def test_points_are_shown_as_one_by_their_metric() -> None:
    clock = ManualClock(10_000.0, wall=True)
    history = made(clock)
    latency = SeriesName("db_latency_ms_p99", 0)
    for n in range(12):
        history.take({READY: float(n % 2), latency: float(n)})
        clock.advance(5.0)
    clock.advance(-5.0)
    shown = values(history, points=3, stride=4)
    assert shown == [[0.5] * 3, [3.0, 7.0, 11.0]]


def test_a_topic_has_its_own_lines_and_is_not_counted_with_the_shards() -> None:
    history = made(ManualClock(10_000.0, wall=True))
    history.take(
        {READY: 5.0, SeriesName("ready", 0, "acme", "mail"): 3.0, SeriesName("ready", 0, "other", "mail"): 2.0}
    )
    latest = {"points": 1, "begin": history.slot_now()}
    assert values(history, **latest) == [[5.0]]
    assert values(history, by="topic", namespace="acme", **latest) == [[3.0]]
    assert values(history, topic="mail", namespace="other", by="all", **latest) == [[2.0]]


def told(*lines: Line) -> Told:
    return Told(list(lines), [], 0)


@pytest.mark.parametrize(
    ("metric", "one", "other", "together"),
    [
        ("ready", 5.0, 5.0, 5.0),  # two owners at once have counted the same items
        ("acked_per_s", 5.0, 2.0, 7.0),
        ("db_latency_ms_p99", 5.0, 2.0, 5.0),
        ("up", 1.0, 0.0, 0.0),
        ("ready", 5.0, None, 5.0),
    ],
)
def test_processes_are_merged_by_the_metric(
    metric: str, one: float | None, other: float | None, together: float
) -> None:
    answers = [told(Line(metric, 3, "", "", [value])) for value in (one, other)]
    assert merging.merge(answers, "shard") == {Place(metric, 3, None, None): [together]}


def mark(at_s: float, kind: str, shard: int | None, text: str) -> tuple[float, str, ShardNo | None, str]:
    return at_s, kind, None if shard is None else ShardNo(shard), text


def test_processes_that_start_one_after_another_are_one_deploy() -> None:
    answers = {
        f"p{n}": Told([], [mark(1_000.0 + 60 * n, "start", None, f"p{n} started")], 0) for n in reversed(range(6))
    }
    answers["late"] = Told([], [mark(5_000.0, "start", None, "late started")], 0)
    answers["p0"].marks.append(mark(1_000.0, "breaker", 1, "does not answer"))
    shown = merging.marks(answers, asked(made(ManualClock(10_000.0, wall=True))))
    assert [(each["at_s"], each["text"]) for each in shown] == [
        (1_000.0, "6 processes started: p0, p1, p2, p3 and 2 more"),
        (1_000.0, "does not answer"),
        (5_000.0, "late started"),
    ]


def test_a_topic_is_told_what_happened_to_shards_that_have_it_and_nothing_of_owners() -> None:
    marks = [mark(1.0, "owner", 0, "a owns shard 0"), mark(2.0, "breaker", 0, "x"), mark(3.0, "breaker", 1, "y")]
    history = made(ManualClock(10_000.0, wall=True))
    of_topic = asked(history, by="topic", namespace="acme", topic="mail")

    def texts(lines: list[Line], question: Question) -> list[str]:
        return [each["text"] for each in merging.marks({"a": Told(lines, marks, 0)}, question)]

    here = [Line("ready", ShardNo(0), "acme", "mail", [1.0])]
    assert texts(here, of_topic) == ["x"]
    assert texts([], of_topic) == ["x", "y"], "nobody knows where it is"
    assert texts(here, asked(history)) == ["a owns shard 0", "x", "y"]


def test_shards_are_added_up_after_processes_were_merged() -> None:
    answers = [
        told(Line("ready", 0, "", "", [4.0, None]), Line("ready", 1, "", "", [1.0, 2.0])),
        told(Line("ready", 0, "", "", [4.0, 3.0])),
    ]
    assert merging.merge(answers, "all") == {Place("ready", None, None, None): [5.0, 5.0]}


def test_not_a_number_is_never_shown() -> None:
    history = made(ManualClock(10_000.0, wall=True))
    history.take({READY: math.nan})
    assert values(history, points=1, begin=history.slot_now()) == [[None]]
