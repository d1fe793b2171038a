"""What a gate makes of a shard that does not say its count in time, and of what it says then."""

import json
from datetime import UTC, datetime, timedelta

from services.queue.gates.limits import TopicLimits
from services.queue.gates.topic_gates import _Gate
from services.queue.store.gates import GateRow
from shared.ids import ShardNo

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Row:
    """A gate's row, as one call after another has it."""

    def __init__(self) -> None:
        self.granted, self.leased = "{}", "{}"

    def locked(self) -> _Gate:
        return _Gate(GateRow(None, AT, None, self.granted, self.leased, AT), TopicLimits(concurrency=10))

    def keep(self, gate: _Gate) -> None:
        self.granted, self.leased = json.dumps(gate.granted), gate.counts()


def grant(gate: _Gate, token: str, items: int) -> None:
    """As a call is granted so many, which did not hear the shard."""
    gate.granted[token] = [items, (AT + timedelta(seconds=60)).timestamp()]
    gate.keep_counts(items)


def test_it_counts_with_what_was_granted_before_and_since() -> None:
    row = Row()
    gate = row.locked()
    gate.heard("1", 5)
    grant(gate, "before", 2)
    row.keep(gate)
    gate = row.locked()
    unheard = gate.unheard("1")
    grant(gate, "then", 1)
    row.keep(gate)
    gate = row.locked()
    grant(gate, "since", 3)
    row.keep(gate)
    gate = row.locked()
    gate.heard_late("1", unheard._replace(change=unheard.change + 4))
    assert gate.leased == {"1": 4 + 2 + 1 + 3}
    assert gate.is_changed


def test_it_is_taken_once() -> None:
    row = Row()
    gate = row.locked()
    gate.heard("1", 5)
    unheard = gate.unheard("1")
    told = unheard._replace(change=unheard.change + 2)
    row.keep(gate)
    gate = row.locked()
    gate.heard_late("1", told)
    row.keep(gate)
    gate = row.locked()
    gate.heard_late("1", told)
    assert gate.leased == {"1": 2}


def test_it_is_void_where_the_shard_was_heard_since() -> None:
    """By this process or another, which may have granted on that."""
    row = Row()
    gate = row.locked()
    gate.heard("1", 5)
    unheard = gate.unheard("1")
    row.keep(gate)
    gate = row.locked()
    gate.heard("1", 1)
    grant(gate, "since", 8)
    row.keep(gate)
    gate = row.locked()
    gate.unheard("1")
    gate.heard_late("1", unheard._replace(change=unheard.change + 1))
    assert gate.leased == {"1": 9}


def test_a_shard_that_has_left_leaves_no_mark() -> None:
    gate = Row().locked()
    gate.unheard("1")
    gate.forget_removed({"0"}, 1)
    assert gate.counts() == "{}"


def test_what_was_claimed_elsewhere_is_not_leased_there() -> None:
    row = Row()
    gate = row.locked()
    gate.heard("0", 0)
    gate.heard("1", 5)
    grant(gate, "call", 3)
    row.keep(gate)
    gate = row.locked()
    gate.settle("call", 1, [ShardNo(0)])
    assert gate.leased == {"0": 3, "1": 5}


def test_where_that_is_not_known_it_may_be_anywhere() -> None:
    row = Row()
    gate = row.locked()
    gate.heard("1", 5)
    grant(gate, "call", 3)
    row.keep(gate)
    gate = row.locked()
    gate.settle("call", 0, None)
    assert gate.leased == {"1": 8}


def test_what_is_on_its_way_takes_its_room_once() -> None:
    row = Row()
    gate = row.locked()
    gate.heard("1", 2)
    grant(gate, "call", 3)
    row.keep(gate)
    gate = row.locked()
    gate.unheard("1")
    assert gate.grant("next", 10, 1).items == 10 - 2 - 3
