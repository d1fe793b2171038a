"""What clients asked of schedules, and what their ticks must not show.

Ticks are read in the end, by the public calls. Slots are multiples of the schedule's interval, which stays as it
is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.worlds.dag_facts import Dag
from tests.worlds.facts import TICK_S
from tests.worlds.wire import Answer

_OVER = ("succeeded", "failed", "cancelled")


@dataclass(slots=True)
class Asked:
    """A trigger or a backfill under its `request_id`: of so many slots, as far as somebody was told."""

    kind: str
    request: str
    body: dict[str, Any]
    sent: float
    is_possible: bool = False  # it may have been taken
    slots: int | None = None  # None: nobody was told
    ticks: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Schedule:
    """A schedule that somebody tried to make."""

    id: str
    namespace: str
    body: dict[str, Any]
    sent: float
    is_made: bool = False  # perhaps
    is_promised: bool = False
    may_be_deleted: bool = False
    asked: list[Asked] = field(default_factory=list)
    ticks: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, Dag] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.id}"

    @property
    def interval_s(self) -> float:
        return float(self.body["spec"]["interval_s"])

    @property
    def is_exclusive(self) -> bool:
        """Whether two of its runs are never at work at once by what it does itself."""
        may_overlap = any(asked.body.get("overlap") == "allow" for asked in self.asked)
        return self.body["overlap"] != "allow" and not may_overlap

    def run(self, dag_id: str) -> Dag:
        """One of its runs, as the schedule's action says what it is."""
        made = self.runs.get(dag_id)
        if made is None:
            action = self.body["action"]
            body = {"nodes": [{"key": self.id, **action["item"]}]} if "item" in action else action["dag"]
            made = self.runs[dag_id] = Dag(f"{self.name} {dag_id}", self.namespace, body, self.sent)
            made.add(body["nodes"], Answer("ok", self.sent, self.sent))
        return made


def judge(schedules: list[Schedule]) -> list[str]:
    """Every violation, as a sentence."""
    looks = (_slots, _in_time, _runs, _asked, _one_at_a_time)
    return [
        f"schedule {schedule.name}: {fault}"
        for schedule in schedules
        for look in looks
        for fault in look(schedule)
    ]


def judge_ticks(schedule: Schedule) -> list[str]:
    """What its slots show by themselves, whoever looks after its runs."""
    return [fault for look in (_slots, _in_time) for fault in look(schedule)]


def at_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _slots(schedule: Schedule) -> Iterator[str]:
    """Each slot from the first on is decided once, and none that is none."""
    interval_s, after = schedule.interval_s, None
    for tick in sorted(
        (tick for tick in schedule.ticks if tick["kind"] == "slot"), key=lambda one: at_s(one["at"])
    ):
        first, last = at_s(tick["at"]), at_s(tick["through"])
        if first % interval_s or last % interval_s or tick["slots"] != (last - first) / interval_s + 1:
            yield f"{tick} is not of its times, every {interval_s} s"
        if after is None and first <= schedule.sent:
            yield f"{tick} is of before it was made, at {schedule.sent}"
        if after is not None and first != after + interval_s:
            yield f"{tick} follows the slot of {after}"
        after = last


def _in_time(schedule: Schedule) -> Iterator[str]:
    numbers = [tick["tick"] for tick in schedule.ticks]
    if len(set(numbers)) != len(numbers):
        yield f"ticks are numbered {numbers}"
    for tick in schedule.ticks:
        late_s = at_s(tick["decided_at"]) - at_s(tick["at"])
        if tick["kind"] == "slot" and late_s < -TICK_S:
            yield f"{tick} was decided before its time"
        if tick["reason"] == "missed" and late_s <= schedule.body["catchup_s"]:
            yield f"{tick} was left out as missed, {late_s} s late"


def _runs(schedule: Schedule) -> Iterator[str]:
    """Each tick that started has a run of its own, which is there, and there is no other."""
    started = [tick["run"] for tick in schedule.ticks if tick["decision"] == "started"]
    if len(set(started)) != len(started):
        yield f"one run is of two ticks: {started}"
    if lost := set(started) - set(schedule.runs):
        yield f"its runs {sorted(lost)} are not there"
    if not schedule.may_be_deleted and (unknown := set(schedule.runs) - set(started)):
        yield f"of its runs {sorted(unknown)} no tick says anything"
    if wrong := [tick for tick in schedule.ticks if (tick["decision"] == "started") != (tick["run"] is not None)]:
        yield f"{wrong[0]} has a run or has none"
    if left := [tick for tick in schedule.ticks if tick["decision"] == "buffered"]:
        yield f"{left[0]} never had its turn"


def _asked(schedule: Schedule) -> Iterator[str]:
    """Each trigger and each backfill was applied once, however often it was sent."""
    for asked in schedule.asked:
        if len(asked.ticks) > 1:
            yield f"one trigger is the ticks {sorted(asked.ticks)}"
    for kind in ("trigger", "backfill"):
        calls = [asked for asked in schedule.asked if asked.kind == kind and asked.is_possible]
        least = sum(asked.slots or 0 for asked in calls)
        found = sum(tick["slots"] for tick in schedule.ticks if tick["kind"] == kind)
        is_known = all(asked.slots is not None for asked in calls)
        if not schedule.may_be_deleted and (found < least or (is_known and found > least)):
            yield f"{least} slots were asked for by {kind}, and {found} were decided"


def _one_at_a_time(schedule: Schedule) -> Iterator[str]:
    """While one run is unfinished no other begins, unless that is allowed. One that is made anew, by a call
    that was on its way while it was deleted, knows nothing of the runs that go on."""
    if not schedule.is_exclusive or schedule.may_be_deleted:
        return
    for dag_id, run in schedule.runs.items():
        begun = run.events[0]["at_s"] if run.events else None
        for other_id, other in schedule.runs.items():
            if other_id == dag_id or begun is None or not other.events:
                continue
            ends = [event for event in other.events if event["kind"] == "dag" and event["at_s"] <= begun + TICK_S]
            # Of what was done in the same round nobody knows which came first.
            is_unsure = any(abs(event["at_s"] - begun) <= TICK_S for event in other.events)
            if ends and not is_unsure and not any(ends[-1]["state"] == state for state in _OVER):
                yield f"run {dag_id} began at {begun:.3f} while {other_id} was {ends[-1]['state']}"
