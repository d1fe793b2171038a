"""The oracles notice what they are for: each history below breaks one promise, and the sound one breaks none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.worlds import dag_oracle, queue_oracle, replay
from tests.worlds.dag_facts import Act, Dag, DagFacts, Edge, Node
from tests.worlds.facts import Bulk, Delivery, End, Gate, History, Sent, Unheard, Word

HALF = 0.0005


def sent(tag: str, topic: str = "a", known: str = "ok", item_id: str = "", **body: Any) -> Sent:
    made = Sent(tag, "red", topic, {"topic": topic, **body}, first_sent=1.0, known={known})  # type: ignore[arg-type]
    made.ids = {item_id} if item_id else set()
    return made


def delivery(item: str, attempt: int, at: float, tag: str = "a", **more: Any) -> Delivery:
    return Delivery(tag, "red", "a", item, f"token {item} {attempt}", attempt, 3.0, at, at + HALF, **more)


def word(verb: str, item: str, attempt: int, at: float, status: str, **given: Any) -> Word:
    known = "ok" if status else "info"
    token = f"token {item} {attempt}" if attempt else ""
    return Word(verb, "red", item, token, known, status, at, at + HALF, given)  # type: ignore[arg-type]


def sound() -> History:
    """`a` was given back once, then acked; `b` died; `c` was cancelled before anybody revived it."""
    history = History()
    history.sent["a"] = sent("a", item_id="A", delay_s=0.5, ack_topic="ends")
    history.sent["b"] = sent("b", item_id="B", max_attempts=1)
    history.sent["c"] = sent("c", item_id="C", disabled=True)
    history.sent["d"] = sent("d", known="fail")
    for one in (delivery("A", 1, 1.6), delivery("A", 2, 2.6), delivery("B", 1, 1.0, "b")):
        history.delivered(one)
    history.said(word("nack", "A", 1, 1.7, "requeued", delay_s=0.5))
    history.said(word("ack", "A", 2, 2.7, "acked", output="right"))
    history.said(word("cancel", "C", 0, 2.0, "cancelled"))
    history.told(End("E", "A", "red", "acked", "right"))
    history.told(End("E", "A", "red", "acked", "right"))  # it came twice, and is one
    history.left["B"] = "dead"
    history.ended_s = 20.0
    return history


def test_a_sound_history_is_sound() -> None:
    assert queue_oracle.judge(sound()) == []


def lost(history: History) -> None:
    history.sent["e"] = sent("e", item_id="F")


def not_drained(history: History) -> None:
    history.sent["e"] = sent("e", item_id="F")
    history.left["F"] = "ready"


def died_without_a_reason(history: History) -> None:
    history.sent["b"].body.clear()


def from_nowhere(history: History) -> None:
    history.left["X"] = "dead"


def refused_and_came(history: History) -> None:
    history.delivered(delivery("D", 1, 3.0, "d"))


def two_ids(history: History) -> None:
    history.delivered(delivery("A2", 1, 3.0, "a"))


def other_content(history: History) -> None:
    history.sent["z"] = sent("z", item_id="Z", ttl_s=1.0)
    history.delivered(delivery("A", 3, 9.0, "z"))


def to_another_tenant(history: History) -> None:
    history.deliveries["A"][0] = replace(delivery("A", 1, 1.6), namespace="blue")


def before_its_delay(history: History) -> None:
    history.deliveries["A"][0] = delivery("A", 1, 1.4)


def given_back_and_early(history: History) -> None:
    history.deliveries["A"][1] = delivery("A", 2, 2.1)


def before_the_revive(history: History) -> None:
    history.words["C"] = [word("revive", "C", 0, 5.0, "revived"), word("ack", "C", 1, 5.0, "acked")]
    history.delivered(delivery("C", 1, 3.0, "c"))


def attempts_over(history: History) -> None:
    history.delivered(delivery("B", 2, 9.0, "b"))


def leased_twice(history: History) -> None:
    history.words["A"].pop(0)


def extended_and_leased(history: History) -> None:
    history.words["A"][0] = word("extend", "A", 1, 1.7, "extended", lease_s=9.0)


def acked_and_came(history: History) -> None:
    history.delivered(delivery("A", 3, 9.0))


def acked_twice(history: History) -> None:
    history.said(word("ack", "A", 1, 2.4, "acked"))


def an_old_token_counted(history: History) -> None:
    history.said(word("extend", "A", 1, 2.65, "extended", lease_s=1.0))


def a_guessed_token_counted(history: History) -> None:
    history.said(replace(word("extend", "A", 1, 1.65, "extended", lease_s=1.0), token="guessed"))


def a_stranger_counted(history: History) -> None:
    history.said(replace(word("extend", "A", 1, 1.65, "extended", lease_s=1.0), is_own=False))


def a_holder_was_turned_away(history: History) -> None:
    history.said(word("extend", "A", 1, 1.65, "lease_lost", lease_s=1.0))


def cancelled_and_came(history: History) -> None:
    history.said(word("revive", "C", 0, 1.5, "revived"))
    history.delivered(delivery("C", 1, 9.0, "c"))


def an_attempt_twice(history: History) -> None:
    history.deliveries["A"][1] = replace(history.deliveries["A"][1], attempt=1)


def attempts_backwards(history: History) -> None:
    history.deliveries["A"][1] = delivery("A", 2, 0.0)


def end_untold(history: History) -> None:
    history.ends.clear()


def end_told_twice(history: History) -> None:
    history.told(End("E2", "A", "red", "acked", "right"))


def end_told_wrong(history: History) -> None:
    history.ends["A"] = [End("E", "A", "red", "cancelled", None)]


def output_of_another(history: History) -> None:
    history.said(word("ack", "A", 1, 2.4, "lease_lost", output="evil"))
    history.ends["A"] = [End("E", "A", "red", "acked", "evil")]


def came_though_paused(history: History) -> None:
    history.gates += [
        Gate(True, "red", "a", "ok", 1.9, 1.9 + HALF),
        Gate(False, "red", "a", "fail", 2.0, 2.0),
        Gate(False, "red", "a", "ok", 3.0, 3.0),
    ]


def cancelled_after_its_ack(history: History) -> None:
    history.said(word("cancel", "A", 0, 5.0, "cancelled"))


def already_acked_by_nobody(history: History) -> None:
    history.said(word("ack", "C", 1, 3.0, "already_acked"))


def back_without_its_backoff(history: History) -> None:
    history.words["A"][0] = word("nack", "A", 1, 1.7, "requeued")


def told_of_an_attempt_that_never_was(history: History) -> None:
    history.sent["c"].body |= {"ack_topic": "ends", "ttl_s": 1.0}
    history.told(End("E2", "C", "red", "expired", None, attempt=1))


def twice_of_once(history: History) -> None:
    history.sent["a"].body["delivery"] = "at_most_once"


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
        (to_another_tenant, "of red came to blue"),
        (before_its_delay, "too early"),
        (given_back_and_early, "came before"),
        (before_the_revive, "before anybody revived"),
        (attempts_over, "for the 2. time of 1"),
        (leased_twice, "leased twice"),
        (extended_and_leased, "leased twice"),
        (acked_and_came, "was acked, and came again"),
        (acked_twice, "under 2 tokens"),
        (an_old_token_counted, "with the token of attempt 1"),
        (a_guessed_token_counted, "a token that nobody was given"),
        (a_stranger_counted, "whose it is not"),
        (a_holder_was_turned_away, "under a lease that stands"),
        (cancelled_and_came, "was cancelled, and came again"),
        (an_attempt_twice, "two leases are attempt 1"),
        (attempts_backwards, "attempt 2 came before attempt 1"),
        (end_untold, "told by 0 items"),
        (end_told_twice, "told by 2 items"),
        (end_told_wrong, "which nobody brought about"),
        (output_of_another, "'evil' was told"),
        (came_though_paused, "which was paused"),
        (cancelled_after_its_ack, "and had been acked"),
        (already_acked_by_nobody, "already acked, by nobody"),
        (back_without_its_backoff, "came before"),
        (told_of_an_attempt_that_never_was, "and it never came"),
        (twice_of_once, "at most once, and came again"),
    ],
)
def test_a_broken_promise_is_told(fault: Callable[[History], None], says: str) -> None:
    history = sound()
    fault(history)
    found = queue_oracle.judge(history)
    assert any(says in line for line in found), found


def test_of_leases_of_one_round_nobody_knows_which_was_first_where_a_redrive_began_attempts_anew() -> None:
    history = sound()
    for attempt in (2, 3):
        history.delivered(delivery("B", attempt, 9.0, "b"))
    is_told = [line for line in queue_oracle.judge(history) if "leased twice" in line]
    history.bulks.append(Bulk("redrive", "red", "a", 9.0))
    assert is_told and not [line for line in queue_oracle.judge(history) if "leased twice" in line]


def test_what_a_pause_that_was_lifted_meanwhile_lets_go_is_no_fault() -> None:
    history = sound()
    came_though_paused(history)
    history.gates.append(Gate(False, "red", "a", "info", 1.9, 1.9 + HALF))
    assert queue_oracle.judge(history) == []


def test_what_may_have_come_in_an_answer_that_nobody_read_has_had_an_attempt() -> None:
    history = sound()
    told_of_an_attempt_that_never_was(history)
    history.unheard.append(Unheard("red", frozenset({"a"}), 1.0))
    assert not [line for line in queue_oracle.judge(history) if "never came" in line]


def test_what_was_claimed_while_connections_ended_may_have_had_an_attempt_that_nobody_was_told_of() -> None:
    """The process itself did not hear what it had claimed; its answer was one without it."""
    history = sound()
    told_of_an_attempt_that_never_was(history)
    history.asked.append(Unheard("red", frozenset({"a"}), 1.0))
    history.cuts.add(0.5)
    assert [line for line in queue_oracle.judge(history) if "never came" in line]
    history.cuts.add(1.0)
    assert not [line for line in queue_oracle.judge(history) if "never came" in line]
    history.cuts, history.hurt_until = set(), 1.0
    assert not [line for line in queue_oracle.judge(history) if "never came" in line]


def test_what_nobody_was_answered_for_is_allowed_for() -> None:
    """It may be gone, be there, have been acked or have come."""
    history = History()
    history.sent["a"] = sent("a", known="info", item_id="A", id="A")
    assert queue_oracle.judge(history) == []
    history.delivered(delivery("A", 1, 1.0))
    history.said(word("ack", "A", 1, 2.0, ""))
    history.delivered(delivery("A", 2, 4.2))
    assert queue_oracle.judge(history) == []


def test_what_was_purged_is_not_lost() -> None:
    history = sound()
    lost(history)
    history.bulks.append(Bulk("purge", "red", "a", 2.0))
    assert queue_oracle.judge(history) == []


# -- DAGs


def event(number: int, key: str, state: str, at_s: float, generation: int = 1) -> dict[str, Any]:
    made = {"id": str(number), "kind": "node" if key else "dag", "state": state, "at_s": at_s}
    return made | ({"key": key, "generation": generation} if key else {"held": False, "paused": False})


class World:
    """`up` waits for an external and gives `down` its output."""

    def __init__(self) -> None:
        self.facts, self.history = DagFacts(), History()
        dag = self.dag = self.facts.new(Dag("d", "red", {}, 1.0))
        self.facts.named(dag, "D")
        dag.nodes["up"] = Node("up", {"key": "up", "external": ["x"]}, 1.0, 1.0)
        dag.nodes["down"] = Node("down", {"key": "down", "pass_outputs": True}, 1.0, 1.0)
        dag.edges.append(Edge("up", "down", 1.0))
        dag.acts.append(Act("resolve", (), "ok", 1.5, 1.5, body={"external": [{"node": "up", "name": "x"}]}))
        self.deliver("up", 1, 2.0)
        self.history.said(word("ack", "up1", 1, 3.0, "acked", output="right"))
        self.deliver("down", 1, 4.0, inputs={"up": "right"})
        self.history.said(word("ack", "down1", 1, 5.0, "acked"))
        states = [("up", "blocked", 1), ("down", "blocked", 1), ("up", "released", 1.5), ("up", "succeeded", 3.0)]
        states += [("down", "released", 3.0), ("down", "succeeded", 5.0), ("", "succeeded", 5.0)]
        dag.events = [event(number, *of) for number, of in enumerate(states, 1)]
        for key, output, ups in (("up", "right", []), ("down", None, ["up"])):
            dag.views[key] = {
                "state": "succeeded",
                "generation": 1,
                "upstream": ups,
                "output": output,
                "dag": None,
            }
        dag.shown = {
            "state": "succeeded",
            "reason": None,
            "last_event_id": "7",
            "nodes": {"total": 2, "succeeded": 2, "blocked": 0},
        }

    def deliver(self, key: str, generation: int, at: float, **more: Any) -> None:
        of = {"id": "D", "node": key, "generation": generation}
        one = delivery(f"{key}{generation}", 1, at, dag=of, **more)
        self.history.delivered(one)
        self.facts.delivered(one, lambda _: None)

    def event(self, nth: int, **changes: Any) -> None:
        self.dag.events[nth] |= changes

    def judged(self) -> list[str]:
        return replay._faults(self.dag) + dag_oracle.judge(self.facts, self.history)


def test_a_sound_dag_is_sound() -> None:
    assert World().judged() == []


def test_a_released_node_goes_on_in_its_next_generation_whatever_its_dag_lets_go() -> None:
    world = World()
    paused = event(0, "", "running", 3.5) | {"paused": True}
    again = [event(0, "down", "released", 3.6, 2), event(0, "", "running", 3.7)]
    world.dag.events[5:5] = [paused, *again]
    world.event(8, generation=2)
    for number, one in enumerate(world.dag.events, 1):
        one["id"] = str(number)
    assert not [line for line in world.judged() if "lets nothing go" in line]
    again[0]["generation"], world.dag.events[4]["state"] = 1, "blocked"
    assert [line for line in world.judged() if "lets nothing go" in line]


def _a_timer_early(world: World) -> None:
    """`up` is a timer, and nobody is given anything of it."""
    world.dag.nodes["up"].spec |= {"timer": {"delay_s": 2.0}}


def _released_early(world: World) -> None:
    events = world.dag.events
    events[3], events[4] = events[4] | {"id": "4"}, events[3] | {"id": "5"}


def _released_early_in_its_second_generation(world: World) -> None:
    """Both run again, and `down` does not wait for it."""
    again = [("up", "blocked", 6.0, 2), ("down", "blocked", 6.0, 2), ("down", "released", 6.0, 2)]
    world.dag.events[6:6] = [event(number, *of) for number, of in enumerate(again, 7)]


def _unresolved(world: World) -> None:
    world.dag.acts.clear()


def _succeeded_by_an_old_generation(world: World) -> None:
    world.dag.events[3:3] = [event(4, "up", "blocked", 2.5, 2), event(5, "up", "released", 2.5, 2)]
    world.event(5, generation=2)


def _acked_and_forgotten(world: World) -> None:
    world.event(3, state="failed")


def _wrong_output(world: World) -> None:
    world.dag.views["up"]["output"] = "evil"


def _wrong_input(world: World) -> None:
    world.deliver("down", 1, 4.5, inputs={"up": "evil"})


def _before_its_release(world: World) -> None:
    world.deliver("down", 1, 2.9)


def _before_its_delay(world: World) -> None:
    world.dag.nodes["down"].spec["delay_s"] = 2.0


def _two_items(world: World) -> None:
    world.facts.deliveries["D", "down", 1].append(delivery("other", 1, 4.6))


def _after_its_cancel(world: World) -> None:
    world.dag.acts.append(Act("cancel", (), "ok", 3.5, 3.5, 200, "cancelled"))


def _an_edge_is_gone(world: World) -> None:
    world.dag.edges.append(Edge("other", "down", 1.0))


def _a_child_binds_nobody(world: World) -> None:
    world.dag.children.append(("up", "child", 1.8))


def _a_childs_child_binds_nobody(world: World) -> None:
    world.dag.children += [("child", "below", 1.7), ("up", "child", 1.8)]
    world.dag.views["down"]["upstream"].append("child")


def _a_node_is_gone(world: World) -> None:
    world.dag.nodes["third"] = Node("third", {}, 1.0, 1.0)


def _counts_are_wrong(world: World) -> None:
    world.dag.shown["nodes"]["total"] = 3


def _an_event_is_missing(world: World) -> None:
    del world.dag.events[2]


def _an_end_changes(world: World) -> None:
    world.dag.events.insert(6, event(7, "down", "failed", 5.0))


def _it_ends_too_soon(world: World) -> None:
    world.dag.events.insert(4, event(5, "", "succeeded", 3.0))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (_released_early, "while upstreams were {'up': 'released'}"),
        (_released_early_in_its_second_generation, "while upstreams were {'up': 'blocked'}"),
        (_unresolved, "before anybody resolved ['x']"),
        (_succeeded_by_an_old_generation, "nobody had acked it"),
        (_a_timer_early, "before its time"),
        (_acked_and_forgotten, "was acked and has not succeeded"),
        (_wrong_output, "has the output evil"),
        (_wrong_input, "was given evil"),
        (_before_its_release, "came before its release"),
        (_before_its_delay, "was to wait since 3.0, and came"),
        (_two_items, "is 2 items"),
        (_after_its_cancel, "after the cancel was final"),
        (_an_edge_is_gone, "is not there"),
        (_a_child_binds_nobody, "down waits for up, and not for its children ['child']"),
        (_a_childs_child_binds_nobody, "and not for its children ['below']"),
        (_a_node_is_gone, "third was taken and is not there"),
        (_counts_are_wrong, "it counts"),
        (_an_event_is_missing, "event 4 is the 3."),
        (_an_end_changes, "and became ('failed', 1)"),
        (_it_ends_too_soon, "it ended succeeded while"),
    ],
)
def test_what_a_dag_may_not_do_is_told(fault: Callable[[World], None], says: str) -> None:
    world = World()
    fault(world)
    found = world.judged()
    assert any(says in line for line in found), found


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_child_that_waits_by_itself_waits_for_no_other_child(is_answered: bool) -> None:
    world = World()
    world.dag.children.append(("up", "child", 1.8))
    if is_answered:
        world.dag.children.append(("up", "down", 1.8))
    else:
        world.dag.perhaps_children.append(("up", "down"))
    assert not [line for line in world.judged() if "its children" in line]
