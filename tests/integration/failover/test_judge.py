"""The judge of failovers tells each fault by histories that hold one, and allows what may be lost and no more."""

from datetime import UTC, datetime
from typing import Any

import pytest

from headgate._ids import IdMaker
from tests.integration.failover.jobs import Logs, Uniques
from tests.integration.failover.judge import judge, missing
from tests.integration.failover.load import LEASE_S, Delivery, Log, Sent
from tests.integration.failover.runs import Run, Runs
from tests.integration.failover.verb import Verb
from tests.integration.failover.verbs import Limits, Ticks, Values
from tests.worlds.facts import Delivery as Leased
from tests.worlds.facts import Sent as Queued
from tests.worlds.facts import Word
from tests.worlds.job_facts import Logged, Shown, Told
from tests.worlds.limit_facts import Limited
from tests.worlds.unique_facts import Taken
from tests.worlds.value_facts import Read, Write

CUT_S = 100.0
BEFORE, AFTER = 50.0, 150.0
FELL_S, STOOD_S = 200.0, 210.0  # when a standby takes over, and has
_make = IdMaker().make


def item(log: Log, shard: int, promised: float) -> str:
    item_id: str = _make(shard)[0]
    log.items[item_id] = Sent("north", item_id, promised)
    return item_id


def deliver(log: Log, item_id: str, at: float, confirmed: float | None = None, tenant: str = "north") -> None:
    payload = {"tenant": "north", "item": item_id}
    log.deliveries.append(Delivery(item_id, tenant, payload, at - 0.1, at, confirmed, confirmed))


def node(log: Log, name: str, at: float, acked: float) -> None:
    payload = {"tenant": "north", "node": ["k", name]}
    log.deliveries.append(Delivery(_make(0)[0], "north", payload, at - 0.1, at, acked, acked))


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("promised", [BEFORE, AFTER])
@pytest.mark.parametrize("cut_s", [CUT_S, None])
def test_a_promised_item_that_is_gone(shard: int, promised: float, cut_s: float | None) -> None:
    log = Log()
    item(log, shard, promised)
    may_be = shard == 1 and promised == AFTER and cut_s is not None
    assert bool(judge(log, cut_s)) is not may_be
    assert missing(log) == 1


@pytest.mark.parametrize("is_unknown", [True, False])
def test_an_item_that_is_gone_after_an_ack_that_may_have_been_done(is_unknown: bool) -> None:
    log = Log()
    deliver(log, item(log, 0, 1.0), BEFORE)
    log.deliveries[0].is_unknown = is_unknown
    assert bool(judge(log, None)) is not is_unknown


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("acked", [BEFORE, AFTER])
@pytest.mark.parametrize("cut_s", [CUT_S, None])
def test_an_acked_item_that_comes_again(shard: int, acked: float, cut_s: float | None) -> None:
    log = Log()
    mine = item(log, shard, 1.0)
    deliver(log, mine, acked - 1, acked)
    deliver(log, mine, AFTER + 50, AFTER + 51)
    may_be = shard == 1 and acked == AFTER and cut_s is not None
    assert bool(judge(log, cut_s)) is not may_be


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize(("after_s", "is_fault"), [(LEASE_S / 2, True), (LEASE_S + 1, False)])
def test_an_item_that_comes_again_within_its_lease(shard: int, after_s: float, is_fault: bool) -> None:
    log = Log()
    mine = item(log, shard, 1.0)
    deliver(log, mine, BEFORE)
    deliver(log, mine, BEFORE + after_s, BEFORE + after_s)
    assert bool(judge(log, CUT_S)) is is_fault


def test_an_item_of_another_tenant() -> None:
    log = Log()
    deliver(log, item(log, 0, 1.0), BEFORE, BEFORE, tenant="south")
    assert len(judge(log, CUT_S)) == 1


@pytest.mark.parametrize(("acked", "is_fault"), [(BEFORE - 1, False), (BEFORE + 1, True)])
def test_a_node_that_comes_before_its_upstream_was_acked(acked: float, is_fault: bool) -> None:
    log = Log(dags={"k": Sent("north", "k")})
    node(log, "a", BEFORE - 5, acked)
    node(log, "b", BEFORE, BEFORE + 2)
    assert bool(judge(log, CUT_S)) is is_fault


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("promised", [BEFORE, AFTER])
@pytest.mark.parametrize("state", ["", "running", "failed"])
def test_a_promised_dag_that_is_gone_or_did_not_succeed(shard: int, promised: float, state: str) -> None:
    log = Log(dags={"k": Sent("north", "k", promised, _make(shard)[0], state=state)})
    assert bool(judge(log, CUT_S)) is not (shard == 1 and promised == AFTER and not state)


def test_a_call_without_an_answer() -> None:
    assert judge(Log(late=["dequeue"]), None) == ["dequeue was not answered in time"]


def a(verb: type[Verb], shard: int) -> Any:
    made: Any = verb("north", None, shard, None)  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("promised", [BEFORE, AFTER])
@pytest.mark.parametrize("cut_s", [CUT_S, None])
def test_a_write_of_a_value_that_was_answered_and_is_gone(
    shard: int, promised: float, cut_s: float | None
) -> None:
    values = a(Values, shard)
    values.cell.writes.append(Write({"by": 1}, 0, promised - 1, done=promised, versions={1}, is_possible=True))
    values.cell.reads.append(Read({"by": 1}, 1, promised + 1, promised + 2))
    assert judge(Log(verbs=[values]), cut_s) == []
    values.cell.reads.append(Read(None, 0, AFTER + 50, AFTER + 51))
    may_be = shard == 1 and promised == AFTER and cut_s is not None
    assert bool(judge(Log(verbs=[values]), cut_s)) is not may_be


def test_two_writes_of_a_value_that_are_one_version() -> None:
    values = a(Values, 1)
    for by in (1, 2):
        values.cell.writes.append(Write({"by": by}, 0, BEFORE, done=BEFORE, versions={1}, is_possible=True))
    values.cell.reads.append(Read({"by": 2}, 1, AFTER, AFTER))
    assert any("are both version 1" in fault for fault in judge(Log(verbs=[values]), None))


@pytest.mark.parametrize(
    ("slots", "says"), [((1, 2, 3), ""), ((1, 3), "follows the slot"), ((1, 2, 2), "follows"), ((), "never came")]
)
def test_slots_of_a_schedule_that_are_left_out_or_decided_twice(slots: tuple[int, ...], says: str) -> None:
    ticks = a(Ticks, 0)
    ticks.schedule.sent = 0.0
    for number, slot in enumerate(slots):
        at = datetime.fromtimestamp(slot * ticks.schedule.interval_s, UTC).isoformat()
        ticks.schedule.ticks.append(
            {"tick": number, "kind": "slot", "at": at, "through": at, "slots": 1, "decided_at": at, "reason": None}
        )
    found = judge(Log(verbs=[ticks]), None)
    assert bool(found) is bool(says) and all(says in fault for fault in found), found


@pytest.mark.parametrize(("at", "cut_s"), [(BEFORE, None), (BEFORE, CUT_S), (AFTER, CUT_S)])
def test_more_items_of_a_limited_topic_than_may_be_leased_at_once(at: float, cut_s: float | None) -> None:
    limits = a(Limits, 1)
    limits.facts.limits.append(Limited(("north", "limited-1"), {"concurrency": 3.0}, 1.0))
    for number in range(4):
        assert judge(Log(verbs=[limits]), cut_s) == [] or not number
        id_ = f"item {number}"
        limits.history.delivered(
            Leased(id_, "north", "limited-1", id_, f"token {number}", 1, LEASE_S, at, at + 0.1)
        )
    assert bool(judge(Log(verbs=[limits]), cut_s)) is (cut_s is None or at < cut_s)


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("written", [BEFORE, AFTER])
@pytest.mark.parametrize("cut_s", [CUT_S, None])
def test_lines_of_a_log_that_were_written_and_are_gone(shard: int, written: float, cut_s: float | None) -> None:
    logs = a(Logs, shard)
    line = {"text": "a line", "at": datetime.fromtimestamp(written, UTC).isoformat()}
    logs.facts.logged.append(Logged("I", "north", "token", 1, ["a line"], True, {("ok", "written")}))
    logs.answered["I", "token", 1] = written
    logs.facts.logs["I"] = [line]
    assert judge(Log(verbs=[logs]), cut_s) == []
    logs.facts.logs["I"] = [line, line]
    assert any("2 times" in fault for fault in judge(Log(verbs=[logs]), cut_s))
    logs.facts.logs["I"] = []
    may_be = shard == 1 and written == AFTER and cut_s is not None
    assert bool(judge(Log(verbs=[logs]), cut_s)) is not may_be


def test_lines_of_two_jobs_of_one_lease_that_were_answered_before_and_after() -> None:
    logs = a(Logs, 1)
    for item, written in (("I", BEFORE), ("J", AFTER)):
        logs.facts.logged.append(Logged(item, "north", "token", 1, [item], True, {("ok", "written")}))
        logs.answered[item, "token", 1] = written
    kept = {"text": "I", "at": datetime.fromtimestamp(BEFORE, UTC).isoformat()}
    logs.facts.logs = {"I": [kept], "J": []}
    assert judge(Log(verbs=[logs]), CUT_S) == []
    logs.facts.logs = {"I": [], "J": []}
    assert len(judge(Log(verbs=[logs]), CUT_S)) == 1


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("told", [BEFORE, AFTER])
@pytest.mark.parametrize("cut_s", [CUT_S, None])
def test_progress_that_was_told_and_is_not_shown(shard: int, told: float, cut_s: float | None) -> None:
    logs = a(Logs, shard)
    logs.facts.logged.append(Logged("I", "north", "token", 1, [], True, {("ok", "written")}))
    logs.history.delivered(Leased("I", "north", logs.topic, "I", "token", 1, LEASE_S, told - 1, told - 0.5))
    logs.facts.told.append(Told("I", "token", "half", "ok", "extended", told, told + 0.1))
    logs.facts.shown.append(Shown("I", "north", "leased", 1, "half", told + 0.2, told + 0.3))
    assert judge(Log(verbs=[logs]), cut_s) == []
    logs.facts.shown.append(Shown("I", "north", "leased", 1, None, told + 0.4, told + 0.5))
    may_be = shard == 1 and told == AFTER and cut_s is not None
    assert bool(judge(Log(verbs=[logs]), cut_s)) is not may_be


def test_lines_that_were_written_under_a_guessed_token() -> None:
    logs = a(Logs, 0)
    logs.facts.logged.append(Logged("I", "north", "token", 1, [], True, {("ok", "written")}))
    logs.facts.logged.append(Logged("I", "north", "guessed", 1, ["evil"], False, {("ok", "lease_lost")}))
    assert judge(Log(verbs=[logs]), None) == []
    logs.facts.logged[1].known.add(("ok", "written"))
    assert any("not its holder's" in fault for fault in judge(Log(verbs=[logs]), None))


def unique_items(shard: int, *taken: float) -> Any:
    """Items that were given one key, one after another."""
    uniques = a(Uniques, shard)
    uniques.fell_s, uniques.stood_s = FELL_S, STOOD_S
    for number, at in enumerate(taken):
        sent = Queued(f"item {number}", "north", uniques.topic, {}, f"item {number}")
        uniques.facts.items.append(Taken(uniques.place, sent, f"item {number}", at, at + 0.5))
    return uniques


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("taken", [BEFORE, AFTER])
@pytest.mark.parametrize("cut_s", [CUT_S, None])
def test_a_unique_key_that_two_items_had(shard: int, taken: float, cut_s: float | None) -> None:
    uniques = unique_items(shard, taken, taken + 1)
    assert two_at_once(uniques, cut_s)
    uniques.history.said(ack_of("item 0", taken + 0.6))
    assert judge(Log(verbs=[uniques]), cut_s) == []


def ack_of(item_id: str, at: float) -> Word:
    return Word("ack", "north", item_id, "token", "info", "", at, at)


def two_at_once(uniques: Any, cut_s: float | None) -> bool:
    return any("two were there at once" in fault for fault in judge(Log(verbs=[uniques]), cut_s))


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("first", [BEFORE, AFTER])
@pytest.mark.parametrize("second", [FELL_S - 10, FELL_S + 1, STOOD_S + 10])
@pytest.mark.parametrize("cut_s", [CUT_S, None])
def test_a_unique_key_whose_item_the_standby_may_not_have_heard_of(
    shard: int, first: float, second: float, cut_s: float | None
) -> None:
    """What the former server answered holds until it is gone, what it had told its standby afterwards too."""
    uniques = unique_items(shard, first, second)
    is_unsure = second > FELL_S and (first == AFTER or second < STOOD_S)
    may_be = shard == 1 and cut_s is not None and is_unsure
    assert two_at_once(uniques, cut_s) is not may_be


@pytest.mark.parametrize(("again", "is_fault"), [(STOOD_S - 1, False), (STOOD_S + 5, True)])
@pytest.mark.parametrize("acked", [AFTER + 5, None])
def test_a_unique_key_whose_item_comes_from_the_standby(again: float, is_fault: bool, acked: float | None) -> None:
    """It was not lost, so it had its key all the time; an ack of before the standby took over was."""
    uniques = unique_items(1, AFTER, STOOD_S + 1)
    if acked is not None:
        uniques.history.said(ack_of("item 0", acked))
    uniques.history.delivered(Leased("", "north", uniques.topic, "item 0", "again", 2, LEASE_S, again, again))
    assert two_at_once(uniques, CUT_S) is is_fault
    uniques.history.said(ack_of("item 0", STOOD_S + 0.5))
    assert not two_at_once(uniques, CUT_S)


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("promised", [BEFORE, AFTER])
@pytest.mark.parametrize("state", ["", "gone", "failed"])
def test_a_promised_run_that_is_gone_or_did_not_succeed(shard: int, promised: float, state: str) -> None:
    runs = a(Runs, 0)
    runs.runs["0-1"] = Run(1, promised, _make(shard)[0], promised, state)
    assert bool(judge(Log(verbs=[runs]), CUT_S)) is not (shard == 1 and promised == AFTER and state == "gone")


@pytest.mark.parametrize(("output", "is_fault"), [({"n": 1}, False), ({"n": 2}, True), (None, True)])
def test_a_run_that_ended_with_what_it_was_not_sent(output: Any, is_fault: bool) -> None:
    runs = a(Runs, 0)
    runs.runs["0-1"] = Run(1, BEFORE, _make(0)[0], BEFORE, "succeeded", output)
    assert bool(judge(Log(verbs=[runs]), CUT_S)) is is_fault
