"""What clients set for topics (limits, throttles), and what must not be handed out while that stands.

A limit stands from when every process has heard of it until somebody may have changed it. What is leased is told
by what clients were given, so it is never more than what there was.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from tests.worlds.facts import Delivery, History

Place = tuple[str, str]
_EPSILON = 1e-6


@dataclass(slots=True)
class Limited:
    """Limits of a topic, as the call that set them gave them, in force at every process from `since` on.

    `covers` are tokens of deliveries that were asked for later for certain, whatever the clock says.
    """

    place: Place
    given: dict[str, float]
    since: float
    until: float = inf
    covers: set[str] = field(default_factory=set)

    def holds(self, delivery: Delivery) -> bool:
        is_its = (delivery.namespace, delivery.topic) == self.place
        is_later = self.since < delivery.sent or delivery.token in self.covers
        return is_its and is_later and delivery.done < self.until


@dataclass(slots=True)
class Throttled:
    """Nothing of a topic, or of a key of it (`key`), is handed out from `since` to `until`; `covers` as above."""

    place: Place
    key: str
    since: float
    until: float
    covers: set[str] = field(default_factory=set)


@dataclass
class LimitFacts:
    """All of both, and who is just setting what."""

    limits: list[Limited] = field(default_factory=list)
    throttles: list[Throttled] = field(default_factory=list)
    # Changes that are under way, by number; those that were when another began stand for nothing.
    under_way: dict[Place, set[int]] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    changed: int = 0
    # Of topics that are scenes' alone: what stands there for certain, and those in which one goes on.
    scenes: dict[Place, Limited | None] = field(default_factory=dict)
    busy: set[Place] = field(default_factory=set)

    def changes(self, place: Place, now_s: float) -> int:
        """Somebody begins to set the limits of a topic: what stood may stand no more. This change's number.

        Of two at once, at one moment, either may come out: whichever began first, and was answered first.
        """
        for one in self.limits:
            if one.place == place:
                one.until = min(one.until, now_s)
        self.changed += 1
        others = self.under_way.setdefault(place, set())
        self.unsure |= {*others, self.changed} if others else set()
        others.add(self.changed)
        return self.changed

    def over(self, turn: int, place: Place) -> None:
        """A change was answered, or nobody waits for its answer any more."""
        self.under_way[place].discard(turn)

    def stands(self, turn: int, limited: Limited) -> Limited | None:
        """It was set, and every process has heard of it; None where somebody else was about to set another."""
        if turn in self.unsure:
            return None
        self.limits.append(limited)
        return limited

    def lifts(self, place: Place, key: str | None, now_s: float) -> None:
        """Somebody ends throttles: of a topic and all its keys, or of a key."""
        for one in self.throttles:
            if one.place == place and key in (None, one.key):
                one.until = min(one.until, now_s)


def judge(facts: LimitFacts, history: History) -> list[str]:
    """Every violation, as a sentence."""
    came = [one for deliveries in history.deliveries.values() for one in deliveries if one.dag is None]
    came.sort(key=lambda one: one.sent)
    found = []
    for limited in facts.limits:
        own = [one for one in came if (one.namespace, one.topic) == limited.place]
        for looks in (_in_flight, _in_flight_of_keys, _in_time):
            found += [f"{limited}: {fault}" for fault in looks(limited, own, history)]
    for throttled in facts.throttles:
        found += [
            f"{one.id} of {throttled.place} came, which was throttled: {throttled}: {one}"
            for one in came
            if (one.namespace, one.topic) == throttled.place
            and throttled.key in ("", _key(history, one))
            and (throttled.since < one.sent or one.token in throttled.covers)
            and one.done < throttled.until
        ]
    return found


def _key(history: History, delivery: Delivery) -> str:
    sent = history.sent.get(delivery.tag)
    return "" if sent is None else str(sent.body.get("fairness_key", ""))


def held_at(history: History, delivery: Delivery, at: float) -> bool:
    """Whether a lease stands at this time for certain: before its call is answered it may not have begun."""
    bound = delivery.sent + delivery.lease_s
    sent = history.sent.get(delivery.tag)
    own_s = 0.0 if sent is None else float(sent.body.get("lease_s", 60.0))
    for word in history.words.get(delivery.id, ()):
        if not word.may_have_acted or word.sent > at:
            continue
        if word.verb == "cancel" or (word.verb in ("ack", "nack") and word.token == delivery.token):
            return False
        if word.verb == "extend" and word.token == delivery.token:
            bound = min(bound, word.sent + word.number("lease_s", own_s))
    is_cancelled = sent is not None and any(
        bulk.kind != "redrive" and bulk.sent <= at and bulk.meets(*sent.place) for bulk in history.bulks
    )
    return delivery.done <= at < bound and not is_cancelled


def _in_flight(limited: Limited, own: list[Delivery], history: History) -> Iterator[str]:
    most = limited.given.get("concurrency")
    for one in own if most is not None else ():
        if limited.holds(one):
            # All of these stand at once, and the last of them was given under the limit.
            held = {other.id for other in own if held_at(history, other, one.done)}
            if most is not None and len(held) > most:
                yield f"at {one.done} there were leased {sorted(held)}"


def _in_flight_of_keys(limited: Limited, own: list[Delivery], history: History) -> Iterator[str]:
    most = limited.given.get("key_concurrency")
    given = [one for one in own if limited.holds(one) and _key(history, one)] if most is not None else []
    for one in given:
        held = {
            other.id
            for other in given
            if _key(history, other) == _key(history, one) and held_at(history, other, one.done)
        }
        if most is not None and len(held) > most:
            yield f"of {_key(history, one)} there were leased at {one.done} {sorted(held)}"


def _in_time(limited: Limited, own: list[Delivery], history: History) -> Iterator[str]:
    """From any delivery to any later one no more than the burst, and what the rate gives in that time."""
    given = [one for one in own if limited.holds(one)]
    lanes = {_key(history, one) for one in given} - {""}
    parts = [("rate", "burst", given)]
    parts += [("key_rate", "key_burst", [one for one in given if _key(history, one) == lane]) for lane in lanes]
    for rate, burst, part in parts:
        if rate not in limited.given:
            continue
        for n, first in enumerate(part):
            for m, last in enumerate(part[n:], 1):
                room = limited.given[burst] + limited.given[rate] * (last.done - first.sent)
                if m > room + _EPSILON:
                    yield f"{m} came from {first.sent} to {last.done}, by {rate}: {part[n : n + m]}"
                    return
