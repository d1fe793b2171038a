"""What clients did to items and were answered, as records that can be judged later (`queue_oracle`).

Times are the world's: all calls of a round were sent at its moment and are over `TICK_S / 2` later.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tests.worlds.wire import Known

TICK_S = 0.001


@dataclass(slots=True)
class Sent:
    """An item that somebody tried to enqueue, once or several times. `tag` is its payload, and its own."""

    tag: str
    namespace: str
    topic: str
    body: dict[str, Any]
    id: str | None = None
    met_cancel: bool = False  # a cancel of its id may have come before it
    first_sent: float = 0.0
    known: set[Known] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)

    @property
    def is_promised(self) -> bool:
        return "ok" in self.known

    @property
    def is_possible(self) -> bool:
        """Whether it may be there."""
        return bool(self.known - {"fail"})

    @property
    def place(self) -> tuple[str, str]:
        return self.namespace, self.topic

    @property
    def delay_s(self) -> float:
        return float(self.body.get("delay_s", 0.0))

    @property
    def disabled(self) -> bool:
        return bool(self.body.get("disabled"))

    @property
    def is_once(self) -> bool:
        return self.body.get("delivery") == "at_most_once"

    @property
    def attempts_max(self) -> int:
        return int(self.body.get("max_attempts", 0))

    @property
    def tells(self) -> bool:
        return "ack_topic" in self.body


@dataclass(frozen=True, slots=True)
class Delivery:
    """An item in the answer to a dequeue of `namespace`; `dag` of a DAG's item says which node it is."""

    tag: str
    namespace: str
    topic: str
    id: str
    token: str
    attempt: int
    lease_s: float
    sent: float
    done: float
    dag: dict[str, Any] | None = None
    inputs: Any = None


@dataclass(frozen=True, slots=True)
class Word:
    """What `namespace` said of an item (ack, nack, extend, log, with a token; cancel, revive), and the answer.

    `given` are the other members of the element; `is_own`: the item is that namespace's.
    """

    verb: str
    namespace: str
    id: str
    token: str
    known: Known
    status: str
    sent: float
    done: float
    given: dict[str, Any] = field(default_factory=dict)
    is_own: bool = True

    @property
    def may_have_acted(self) -> bool:
        return self.is_own and (self.known == "info" or self.status in DID[self.verb])

    def number(self, name: str, default: float) -> float:
        return float(self.given.get(name, default))


DID = {
    "ack": {"acked", "already_acked"},
    "nack": {"requeued", "dead"},
    "extend": {"extended"},
    "cancel": {"cancelled", "already_cancelled"},
    "revive": {"revived"},
    "log": {"written", "full"},
}


@dataclass(frozen=True, slots=True)
class Bulk:
    """Something done to many items at once (purge, cancel, redrive), from `sent` on; nobody knows how far."""

    kind: str
    namespace: str
    topic: str | None
    sent: float

    def meets(self, namespace: str, topic: str) -> bool:
        return self.namespace == namespace and self.topic in (None, topic)


@dataclass(frozen=True, slots=True)
class Gate:
    """A topic was paused, or went on."""

    is_paused: bool
    namespace: str
    topic: str
    known: Known
    sent: float
    done: float


@dataclass(frozen=True, slots=True)
class Unheard:
    """A dequeue of these topics that was not answered, or by a process that did not hear all that it was given:
    who knows what that was."""

    namespace: str
    topics: frozenset[str]
    sent: float


@dataclass(frozen=True, slots=True)
class End:
    """A completion item that came: its own id, and what it says."""

    id: str
    of: str
    namespace: str
    outcome: str
    output: Any
    attempt: int = 1


class History:
    """Everything, by item."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.deliveries: dict[str, list[Delivery]] = defaultdict(list)
        self.words: dict[str, list[Word]] = defaultdict(list)
        self.ends: dict[str, list[End]] = defaultdict(list)
        self.bulks: list[Bulk] = []
        self.unheard: list[Unheard] = []
        self.asked: list[Unheard] = []  # dequeues that were answered
        # When connections ended, and until when servers were hurt: what was claimed then nobody was told.
        self.cuts: set[float] = set()
        self.hurt_until = -inf
        self.moves = self.moved = 0  # changes of the shard map that were begun, and that are over
        self.gates: list[Gate] = []
        self.left: dict[str, str] = {}  # what is there in the end, in which state
        self.tags: dict[str, str] = {}  # of what was there in the end
        self.made: set[str] = set()  # of what was there, items that the services made: of nodes, and of ends
        self.counts: Counter[str] = Counter()
        self.ended_s = 0.0

    def delivered(self, delivery: Delivery) -> None:
        self.deliveries[delivery.id].append(delivery)
        self.counts["delivered"] += 1

    def said(self, word: Word) -> None:
        self.words[word.id].append(word)
        self.counts[f"{word.verb} {word.status or word.known}"] += 1

    def told(self, end: End) -> None:
        self.ends[end.of].append(end)

    def may_have_come(self, sent: Sent) -> bool:
        """Whether an item came, or may have come in an answer that nobody has read."""
        return any(self.deliveries.get(item_id) for item_id in sent.ids) or any(
            call.namespace == sent.namespace and sent.topic in call.topics and call.sent >= sent.first_sent
            for call in (
                *self.unheard,
                *(one for one in self.asked if one.sent in self.cuts or one.sent <= self.hurt_until),
            )
        )

    def acts(self, item_id: str, *verbs: str) -> list[Word]:
        """What was said to the item with these verbs and may have had its effect."""
        return [word for word in self.words[item_id] if word.verb in verbs and word.may_have_acted]

    def acked(self, item_ids: Iterable[str]) -> list[Word]:
        """The ack that ended one of these; where nobody was told so, all that may have."""
        acks = [word for item_id in item_ids for word in self.acts(item_id, "ack")]
        return [word for word in acks if word.status == "acked"] or acks

    def bulk(self, sent: Sent, *kinds: str) -> bool:
        """Whether something of these kinds was done to all that an item was among."""
        return any(bulk.kind in kinds and bulk.meets(sent.namespace, sent.topic) for bulk in self.bulks)
