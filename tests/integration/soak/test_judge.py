"""The judges notice what they are for: each history below breaks one promise, and the sound one breaks none."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.integration.soak import dag_judge, judge
from tests.integration.soak.dag_load import Node, Plan, Step
from tests.integration.soak.history import Delivery, End, History, Sent, Word


def delivery(item: str, attempt: int, sent: float, done: float, tag: str = "a") -> Delivery:
    return Delivery(tag, item, f"token {item} {attempt}", attempt, 3.0, sent, done)


def word(verb: str, item: str, attempt: int, sent: float, status: str, **more: float) -> Word:
    known = "ok" if status else "info"
    return Word(verb, item, f"token {item} {attempt}", known, status, sent, sent + 0.1, **more)  # type: ignore[arg-type]


def sound() -> History:
    """`a` was given back once, then acked; `b` died; `c` was cancelled before anybody revived it."""
    history = History()
    history.add(Sent("a", delay_s=0.5, first_sent=1.0, known={"info", "ok"}, ids={"A"}, tells=True))
    history.add(Sent("b", first_sent=1.0, known={"ok"}, ids={"B"}, attempts_max=1))
    history.add(Sent("c", first_sent=1.0, known={"ok"}, ids={"C"}, disabled=True))
    history.add(Sent("d", first_sent=1.0, known={"fail"}))
    for one in (delivery("A", 1, 1.2, 1.6), delivery("A", 2, 2.0, 2.6), delivery("B", 1, 1.0, 1.1, "b")):
        history.delivered(one)
    history.said(word("nack", "A", 1, 1.7, "requeued", delay_s=0.5))
    history.said(word("ack", "A", 2, 2.7, "acked"))
    history.said(word("cancel", "C", 0, 2.0, "cancelled"))
    history.told(End("E", "A", "acked"))
    history.told(End("E", "A", "acked"))  # it came twice, and is one
    history.left["B"] = "dead"
    return history


def test_a_sound_history_is_sound() -> None:
    assert judge.judge(sound()) == []
    assert judge.fates(sound()) == {"enqueued": 3, "acked": 1, "dead": 1, "cancelled": 1}


def lost(history: History) -> None:
    history.add(Sent("e", known={"ok"}, ids={"F"}))


def not_drained(history: History) -> None:
    history.add(Sent("e", known={"ok"}, ids={"F"}))
    history.left["F"] = "ready"


def died_without_a_reason(history: History) -> None:
    history.sent["b"].attempts_max = 0


def from_nowhere(history: History) -> None:
    history.left["X"] = "dead"


def refused_and_came(history: History) -> None:
    history.delivered(delivery("D", 1, 3.0, 3.1, "d"))


def two_ids(history: History) -> None:
    history.delivered(delivery("A2", 1, 3.0, 3.1, "a"))


def other_content(history: History) -> None:
    history.delivered(delivery("A", 3, 9.0, 9.1, "z"))
    history.words["A"].clear()


def before_its_delay(history: History) -> None:
    history.deliveries["A"][0] = delivery("A", 1, 1.2, 1.4)


def given_back_and_early(history: History) -> None:
    history.deliveries["A"][1] = delivery("A", 2, 2.0, 2.1)


def before_the_revive(history: History) -> None:
    history.words["C"].clear()
    history.said(word("revive", "C", 0, 5.0, "revived"))
    history.delivered(delivery("C", 1, 3.0, 3.5, "c"))
    history.said(word("ack", "C", 1, 5.0, "acked"))


def attempts_over(history: History) -> None:
    history.delivered(delivery("B", 2, 9.0, 9.1, "b"))


def leased_twice(history: History) -> None:
    history.words["A"].pop(0)


def extended_and_leased(history: History) -> None:
    history.words["A"][0] = word("extend", "A", 1, 1.7, "extended", lease_s=9.0)


def acked_and_came(history: History) -> None:
    history.delivered(delivery("A", 3, 9.0, 9.1))


def acked_twice(history: History) -> None:
    history.said(word("ack", "A", 1, 2.4, "acked"))


def an_old_token_counted(history: History) -> None:
    history.said(word("extend", "A", 1, 2.65, "extended", lease_s=1.0))


def cancelled_and_came(history: History) -> None:
    history.said(word("revive", "C", 0, 1.5, "revived"))
    history.delivered(delivery("C", 1, 9.0, 9.1, "c"))


def an_attempt_twice(history: History) -> None:
    history.deliveries["A"][1] = replace(history.deliveries["A"][1], attempt=1)


def attempts_backwards(history: History) -> None:
    history.deliveries["A"][1] = delivery("A", 2, 0.0, 0.1)


def end_untold(history: History) -> None:
    history.ends.clear()


def end_told_twice(history: History) -> None:
    history.told(End("E2", "A", "acked"))


def end_told_wrong(history: History) -> None:
    history.ends["A"] = [End("E", "A", "cancelled")]


def twice_of_once(history: History) -> None:
    history.sent["a"].is_once = True


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lost, "gone without a reason"),
        (not_drained, "ready without a reason"),
        (died_without_a_reason, "died without a reason"),
        (from_nowhere, "by nobody"),
        (refused_and_came, "refused for certain"),
        (two_ids, "has the ids"),
        (other_content, "came as z"),
        (before_its_delay, "too early"),
        (given_back_and_early, "came before"),
        (before_the_revive, "before anybody revived"),
        (attempts_over, "for the 2. time of 1"),
        (leased_twice, "leased twice"),
        (extended_and_leased, "leased twice"),
        (acked_and_came, "was acked, and came again"),
        (acked_twice, "under 2 tokens"),
        (an_old_token_counted, "with the token of attempt 1"),
        (cancelled_and_came, "was cancelled, and came again"),
        (an_attempt_twice, "two leases are attempt 1"),
        (attempts_backwards, "attempt 2 came before attempt 1"),
        (end_untold, "told by 0 items"),
        (end_told_twice, "told by 2 items"),
        (end_told_wrong, "which nobody brought about"),
        (twice_of_once, "at most once, and came again"),
    ],
)
def test_a_broken_promise_is_told(fault: Callable[[History], None], says: str) -> None:
    history = sound()
    fault(history)
    found = judge.judge(history)
    assert any(says in line for line in found), found


def test_what_nobody_was_answered_for_is_allowed_for() -> None:
    """It may be gone, be there, have been acked or have come."""
    history = History()
    history.add(Sent("a", id="A", known={"info"}, ids={"A"}))
    assert judge.judge(history) == []
    history.delivered(delivery("A", 1, 1.0, 1.1))
    history.said(word("ack", "A", 1, 2.0, ""))
    history.delivered(delivery("A", 2, 4.2, 4.3))
    assert judge.judge(history) == []
    assert judge.fates(history) == {"recovered": 1}


def plan(**changes: str) -> Plan:
    """`up` fails in its first generation, `down` waits for it, `after` waits for its end only."""
    nodes = [
        Node("up", [], "all_succeeded", "first", waits=True, resolved_s=1.0),
        Node("down", ["up"], "all_succeeded", "never", waits=False),
        Node("after", ["up"], "all_done", "never", waits=False),
    ]
    made = Plan("p", {node.key: node for node in nodes}, is_retried=False, is_cancelled=False, id="P")
    made.states = {"up": "failed", "down": "skipped", "after": "succeeded"} | changes
    counts = {state: list(made.states.values()).count(state) for state in set(made.states.values())}
    made.shown = {"state": "failed", "nodes": {"total": 3} | counts}
    return made


def steps() -> dict[tuple[str, str], list[Step]]:
    return {
        ("P", "up"): [Step("delivered", "U", 1, 1.1, 1.2), Step("failed", "U", 1, 1.3, 1.4)],
        ("P", "after"): [Step("delivered", "V", 1, 1.2, 1.5), Step("acked", "V", 1, 1.6, 1.7)],
    }


def test_a_dag_that_went_as_planned_is_sound() -> None:
    assert dag_judge.judge([plan()], steps()) == []


@pytest.mark.parametrize(
    ("node", "step", "says"),
    [
        ("down", Step("delivered", "W", 1, 1.5, 1.6), "to be skipped"),
        ("up", Step("delivered", "U", 2, 1.5, 1.6), "nobody retried"),
        ("up", Step("delivered", "U2", 1, 1.5, 1.6), "2 items in generation 1"),
        ("up", Step("delivered", "U", 1, 0.5, 0.9), "its external"),
        ("after", Step("delivered", "V", 1, 1.0, 1.25), "up had ended"),
    ],
)
def test_a_delivery_that_must_not_be_is_told(node: str, step: Step, says: str) -> None:
    found = steps()
    found[("P", node)] = [*found.get(("P", node), []), step]
    assert any(says in line for line in dag_judge.judge([plan()], found))


def test_an_end_that_was_not_planned_is_told() -> None:
    assert dag_judge.judge([plan(down="succeeded")], steps()) != []
    assert dag_judge.judge([plan(after="released")], steps()) != []
    unended = plan()
    unended.shown = {}
    assert dag_judge.judge([unended], steps()) == ["p (P) did not end"]
    retried = plan()
    retried.was_retried = True
    assert dag_judge.judge([retried], steps()) != []


def test_a_cancel_is_final() -> None:
    made = plan(down="cancelled")
    made.is_cancelled, made.shown, made.cancelled_s = True, {"state": "cancelled"}, 1.0
    [*found] = dag_judge.judge([made], steps())
    assert [line for line in found if "cancel was final" in line]
    made.cancelled_s = 2.0
    assert dag_judge.judge([made], steps()) == []
    made.states["down"] = "blocked"
    assert dag_judge.judge([made], steps()) != []
