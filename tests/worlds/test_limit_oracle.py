"""The oracle of limits and throttles notices what it is for: each history breaks one, and the sound one none."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.worlds.facts import Bulk, Delivery, History, Sent, Word
from tests.worlds.limit_facts import Limited, LimitFacts, Throttled, judge

PLACE = ("red", "a")
HALF = 0.0005


class Scene:
    """A topic of which two may be leased at once, in force from 2 on; of a lane A and C come, B of none."""

    def __init__(self) -> None:
        self.facts, self.history = LimitFacts(), History()
        self.limit(concurrency=2)
        self.came("A", 3.0, "left")
        self.came("B", 3.0)
        self.said("ack", "A", 4.0, "acked")
        self.came("C", 5.0, "left")
        self.said("nack", "B", 6.0, "requeued")

    def limit(self, **given: float) -> None:
        turn = self.facts.changes(PLACE, 1.0)
        self.facts.stands(turn, Limited(PLACE, given, 2.0))
        self.facts.over(turn, PLACE)

    def came(self, item: str, at: float, key: str = "", lease_s: float = 60.0, topic: str = "a") -> Delivery:
        body = {"topic": topic} | ({"fairness_key": key} if key else {})
        self.history.sent.setdefault(item, Sent(item, "red", topic, body, item, known={"ok"}))
        one = Delivery(item, "red", topic, item, f"token {item} {at}", 1, lease_s, at, at + HALF)
        self.history.delivered(one)
        return one

    def said(self, verb: str, item: str, at: float, status: str) -> None:
        token = self.history.deliveries[item][-1].token
        self.history.said(Word(verb, "red", item, token, "ok", status, at, at + HALF))


def test_a_sound_history_is_sound() -> None:
    assert judge(Scene().facts, Scene().history) == []


def test_an_answer_that_came_later_may_have_got_its_lease_later() -> None:
    """Of two calls at once the second may be let in once what the first was given was acked."""
    scene = Scene()
    scene.limit(concurrency=1)
    scene.history.deliveries.clear()
    second = replace(scene.came("D", 7.0), done=9.0)
    scene.history.deliveries["D"] = [second]
    scene.came("E", 7.5)
    scene.said("ack", "E", 8.0, "acked")
    assert judge(scene.facts, scene.history) == []
    scene.history.deliveries["D"] = [replace(second, done=7.2)]
    assert judge(scene.facts, scene.history) != []


def test_what_came_at_the_moment_of_a_limit_is_judged_where_it_is_known_to_be_later() -> None:
    """The clock stands still: of a delivery at that moment only who made both calls can say which was first."""
    scene = Scene()
    scene.facts.limits[0].since = scene.facts.limits[0].since + 10.0
    [third] = [scene.came("D", 5.5)]
    assert judge(scene.facts, scene.history) == []
    scene.facts.limits[0].covers.add(third.token)
    assert judge(scene.facts, scene.history) != []


def test_what_came_at_the_moment_of_a_throttle_is_judged_where_it_is_known_to_be_later() -> None:
    scene = Scene()
    throttled = Throttled(PLACE, "", 7.0, 20.0)
    scene.facts.throttles.append(throttled)
    came = scene.came("D", 7.0)
    assert judge(scene.facts, scene.history) == []
    throttled.covers.add(came.token)
    assert judge(scene.facts, scene.history) != []


def _too_many(scene: Scene) -> None:
    scene.came("D", 5.5)


def _too_many_by_what_was_set_second(scene: Scene) -> None:
    scene.facts.over(scene.facts.changes(PLACE, 1.0), PLACE)
    scene.limit(concurrency=1)


def _too_many_at_once(scene: Scene) -> None:
    scene.came("D", 7.0)
    scene.came("E", 7.0)


def _too_many_of_a_key(scene: Scene) -> None:
    scene.limit(key_concurrency=1)
    scene.came("D", 7.0, "left")


def _too_soon(scene: Scene) -> None:
    scene.limit(rate=0.1, burst=2)


def _too_soon_of_a_key(scene: Scene) -> None:
    scene.limit(key_rate=0.1, key_burst=1)


def _throttled(scene: Scene) -> None:
    scene.facts.throttles.append(Throttled(PLACE, "", 4.0, 9.0))


def _throttled_key(scene: Scene) -> None:
    scene.facts.throttles.append(Throttled(PLACE, "left", 4.0, 9.0))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (_too_many, "there were leased"),
        (_too_many_at_once, "there were leased"),
        (_too_many_by_what_was_set_second, "there were leased"),
        (_too_many_of_a_key, "of left there were leased"),
        (_too_soon, "by rate"),
        (_too_soon_of_a_key, "by key_rate"),
        (_throttled, "which was throttled"),
        (_throttled_key, "which was throttled"),
    ],
)
def test_what_was_held_back_and_came_is_told(fault: Callable[[Scene], None], says: str) -> None:
    scene = Scene()
    fault(scene)
    found = judge(scene.facts, scene.history)
    assert found and all(says in line for line in found), found


def _another_topic(scene: Scene) -> None:
    scene.came("D", 5.5, topic="b")


def _while_it_may_be_changed(scene: Scene) -> None:
    scene.facts.changes(PLACE, 5.4)
    scene.came("D", 5.5)


def _before_all_have_heard(scene: Scene) -> None:
    scene.facts.limits[0].since = 5.6
    scene.came("D", 5.5)


def _leases_that_may_be_over(scene: Scene) -> None:
    scene.came("D", 7.0, lease_s=1.0)
    scene.came("E", 9.0)


def _what_may_have_been_cancelled(scene: Scene) -> None:
    scene.history.bulks.append(Bulk("purge", "red", None, 5.2))
    scene.came("D", 5.5)


def _throttles_that_were_ended(scene: Scene) -> None:
    scene.facts.throttles.append(Throttled(PLACE, "left", 4.0, 9.0))
    scene.facts.lifts(PLACE, None, 4.5)


def _another_key(scene: Scene) -> None:
    scene.facts.throttles.append(Throttled(PLACE, "right", 4.0, 9.0))


def _two_who_set_at_once(scene: Scene) -> None:
    """Either may have come out, whichever began later, and was answered later."""
    first, second = scene.facts.changes(PLACE, 1.0), scene.facts.changes(PLACE, 1.0)
    scene.facts.stands(second, Limited(PLACE, {"concurrency": 1}, 2.0))
    scene.facts.over(second, PLACE)
    scene.facts.stands(first, Limited(PLACE, {"concurrency": 1}, 2.0))
    scene.facts.over(first, PLACE)


@pytest.mark.parametrize(
    "change",
    [
        _another_topic,
        _while_it_may_be_changed,
        _before_all_have_heard,
        _leases_that_may_be_over,
        _what_may_have_been_cancelled,
        _throttles_that_were_ended,
        _another_key,
        _two_who_set_at_once,
    ],
)
def test_what_could_be_is_not_told(change: Callable[[Scene], None]) -> None:
    scene = Scene()
    change(scene)
    assert judge(scene.facts, scene.history) == []


def test_an_extension_may_have_shortened_a_lease() -> None:
    scene = Scene()
    scene.history.said(replace(_extended(scene), given={"lease_s": 0.1}))
    scene.came("D", 7.0)
    scene.came("E", 7.0)
    assert judge(scene.facts, scene.history) == []


def _extended(scene: Scene) -> Word:
    one = scene.history.deliveries["C"][0]
    return Word("extend", "red", "C", one.token, "info", "", 6.0, 6.0 + HALF)
