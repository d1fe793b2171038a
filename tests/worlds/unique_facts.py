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


@dataclass
class UniqueFacts:
    """Of items those that were taken in; of DAGs all that were asked for."""

    items: list[Taken] = field(default_factory=list)
    dags: list[tuple[tuple[str, str], Dag]] = field(default_factory=list)


def judge(facts: UniqueFacts, history: History, *, is_inside: bool) -> list[str]:
    """Every violation, as a sentence. What DAGs show of times is compared where all clocks stand together."""
    found = [
        f"of the key {first.place} two were there at once: {first.id} until {_end(history, first)} at least, "
        f"{second.id} taken in between {second.began} and {second.done}"
        for first, second in _pairs(facts.items)
        if first.done < second.began and second.done < _end(history, first)
    ]
    return found + (list(_dags(facts)) if is_inside else [])


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
