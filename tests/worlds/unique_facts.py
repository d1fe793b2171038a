"""Items and DAGs with unique keys, of which one at a time may be queued or running."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import inf

from tests.worlds.dag_facts import Dag
from tests.worlds.facts import TICK_S, History, Sent
from tests.worlds.schedule_facts import at_s


@dataclass(frozen=True, slots=True)
class Taken:
    """A key that an enqueue was given for an item, by its answer."""

    place: tuple[str, str]  # its namespace, and the key
    sent: Sent
    id: str
    began: float
    done: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A key that an enqueue was not given, since an item has it."""

    place: tuple[str, str]
    began: float
    done: float


@dataclass(frozen=True, slots=True)
class Followed:
    """What may not be, unless somebody else has ended the item at that moment, or something to its whole topic;
    `ends` of the item, and `bulks`, are the caller's own."""

    sent: Sent
    ends: int
    at: float
    fault: str
    bulks: int = 0


@dataclass
class UniqueFacts:
    """Of items those that were taken in; of DAGs all that were asked for."""

    items: list[Taken] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    followed: list[Followed] = field(default_factory=list)
    unheard: set[tuple[str, str]] = field(
        default_factory=set
    )  # places that an item may have which nobody knows of
    dags: list[tuple[tuple[str, str], Dag]] = field(default_factory=list)


def judge(facts: UniqueFacts, history: History, *, is_inside: bool) -> list[str]:
    """Every violation, as a sentence. What DAGs show of times is compared where all clocks stand together."""
    found = [
        f"of the key {first.place} two were there at once: {first.id} until {_end(history, first)} at least, "
        f"{second.id} taken in between {second.began} and {second.done}"
        for first, second in _pairs(facts.items)
        if first.done < second.began and second.done < _end(history, first)
    ]
    found += _refused(facts, history)
    for one in facts.followed:
        words = [word for item_id in one.sent.ids for word in history.acts(item_id, "ack", "nack", "cancel")]
        bulks = [bulk for bulk in history.bulks if bulk.sent == one.at and bulk.meets(*one.sent.place)]
        if len(words) <= one.ends and len(bulks) <= one.bulks:
            found.append(one.fault)
    return found + (list(_dags(facts)) if is_inside else [])


def _refused(facts: UniqueFacts, history: History) -> Iterator[str]:
    """Of those that were taken in one at least may still have been queued or running."""
    for refused in facts.refused:
        if refused.place in facts.unheard:
            continue
        owners = [one for one in facts.items if one.place == refused.place and one.began <= refused.done]
        if all(_is_over(history, one, refused.began) for one in owners):
            yield f"the key {refused.place} was said to be in use at {refused.began}, when all were over: {owners}"


def _is_over(history: History, taken: Taken, at: float) -> bool:
    """Whether it was acked, cancelled or dead by then for certain."""
    words = [word for word in history.words.get(taken.id, ()) if word.is_own and word.done < at]
    is_redriven = any(bulk.kind == "redrive" and bulk.meets(*taken.sent.place) for bulk in history.bulks)
    dead = {"dead"} if not is_redriven else set()
    return any(
        word.status in {"acked", "cancelled"} | dead and word.verb in ("ack", "nack", "cancel") for word in words
    )


def _pairs(items: list[Taken]) -> Iterator[tuple[Taken, Taken]]:
    for one, other in combinations(items, 2):
        if one.place == other.place:
            yield (one, other) if one.began <= other.began else (other, one)


def _end(history: History, taken: Taken) -> float:
    """Until then the item was there for certain: nothing that may end it, or kill it, had been said."""
    words = [
        word.sent
        for word in history.acts(taken.id, "ack", "cancel", "nack")
        if word.verb != "nack" or word.status != "requeued"
    ]
    bulks = [bulk.sent for bulk in history.bulks if bulk.kind != "redrive" and bulk.meets(*taken.sent.place)]
    return min([*words, *bulks, history.ended_s or inf])


def _dags(facts: UniqueFacts) -> Iterator[str]:
    """Of one key no two go on at once; those that were retried have gone on at other times, too."""
    made = [
        (place, dag)
        for place, dag in facts.dags
        if dag.shown.get("finished_at") and not any(dag.did("retry", "skip"))
    ]
    for (place, one), (other_place, other) in combinations(made, 2):
        first, second = sorted((one, other), key=lambda dag: at_s(dag.shown["created_at"]))
        begins_s, ends_s = at_s(second.shown["created_at"]), at_s(first.shown["finished_at"])
        if place == other_place and begins_s < ends_s - TICK_S:
            yield f"of the key {place} {second.id} was made at {begins_s}, and {first.id} went on until {ends_s}"
