"""What clients did and were answered, as records that can be judged later (`tests.integration.soak.judge`)."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.integration.soak.calls import Known


@dataclass(slots=True)
class Sent:
    """An item that somebody tried to enqueue, once or several times. `tag` is its payload, and its own."""

    tag: str
    id: str | None = None
    key: str | None = None
    delay_s: float = 0.0
    disabled: bool = False
    is_once: bool = False
    attempts_max: int = 0
    tells: bool = False
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


@dataclass(frozen=True, slots=True)
class Delivery:
    """An item in the answer to a dequeue."""

    tag: str
    id: str
    token: str
    attempt: int
    lease_s: float
    sent: float
    done: float


@dataclass(frozen=True, slots=True)
class Word:
    """What was said of an item: ack, nack, extend (with a token), cancel or revive; `status` is the answer."""

    verb: str
    id: str
    token: str
    known: Known
    status: str
    sent: float
    done: float
    lease_s: float = 0.0
    delay_s: float = 0.0

    @property
    def may_have_acted(self) -> bool:
        return self.known == "info" or self.status in _DID[self.verb]


_DID = {
    "ack": {"acked", "already_acked"},
    "nack": {"requeued", "dead"},
    "extend": {"extended"},
    "cancel": {"cancelled", "already_cancelled"},
    "revive": {"revived"},
}


@dataclass(frozen=True, slots=True)
class End:
    """A completion item that came: its own id, and what it says."""

    id: str
    of: str
    outcome: str


class History:
    """Everything, by item. Not more than a soak's worth fits."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.deliveries: dict[str, list[Delivery]] = defaultdict(list)
        self.words: dict[str, list[Word]] = defaultdict(list)
        self.ends: dict[str, list[End]] = defaultdict(list)
        self.left: dict[str, str] = {}
        self.counts: Counter[str] = Counter()

    def add(self, sent: Sent) -> None:
        assert sent.tag not in self.sent
        self.sent[sent.tag] = sent

    def delivered(self, delivery: Delivery) -> None:
        self.deliveries[delivery.id].append(delivery)
        self.counts["delivered"] += 1

    def said(self, word: Word) -> None:
        self.words[word.id].append(word)
        self.counts[f"{word.verb} {word.known}"] += 1

    def told(self, end: End) -> None:
        self.ends[end.of].append(end)

    def acts(self, item_id: str, *verbs: str) -> list[Word]:
        """What was said to the item with these verbs and may have had its effect."""
        return [word for word in self.words[item_id] if word.verb in verbs and word.may_have_acted]
