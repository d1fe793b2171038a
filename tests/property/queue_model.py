"""The queue, as a page of plain Python: what every verb may answer, and where every item is.

Time stands still between calls to `pass_time`. An item is in one state; ends are told to the ack topic.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.support.queue_host import AT_ONCE

LIVING = ("ready", "delayed", "leased", "disabled", "dead")


@dataclass
class Item:
    """One item; times in seconds of the model's clock."""

    id: str
    priority: int
    lease_s: float
    max_attempts: int
    delay_s: float
    ttl_s: float | None
    at_most_once: bool
    tells: bool
    state: str = "ready"
    attempts: int = 0
    deliver_at_s: float = 0.0
    expires_at_s: float | None = None
    lease_until_s: float = 0.0
    token: str = ""

    @property
    def is_last(self) -> bool:
        return bool(self.max_attempts) and self.attempts + 1 >= self.max_attempts


@dataclass
class Model:
    """One topic."""

    items: dict[str, Item] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    told: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("acked", "dead", "expired", "cancelled"), 0)
    )
    now_s: float = 0.0

    def counts(self) -> dict[str, int]:
        states = [item.state for item in self.items.values()]
        return {state: states.count(state) for state in LIVING}

    def enqueue(self, item: Item, disabled: bool) -> None:
        self.items[item.id] = item
        item.state = "disabled"
        if not disabled:
            self._open(item)

    def dequeue(self, count: int) -> list[Item]:
        ready = [item for item in self.items.values() if item.state == "ready"]
        return sorted(ready, key=lambda item: (item.priority, item.deliver_at_s, item.id))[:count]

    def leased(self, item_id: str, token: str, lease_s: float) -> Item:
        item = self.items[item_id]
        item.state, item.token, item.lease_until_s = "leased", token, self.now_s + lease_s
        return item

    def holds(self, item_id: str, token: str) -> bool:
        item = self.items.get(item_id)
        return item is not None and item.state == "leased" and item.token == token

    def ack(self, item_id: str, token: str) -> str:
        if self.holds(item_id, token):
            self._end(item_id, "acked")
            return "acked"
        return ""

    def nack(self, item_id: str, token: str, *, delay_s: float, final: bool, costs: bool) -> str:
        if not self.holds(item_id, token):
            return ""
        item = self.items[item_id]
        if final or item.at_most_once or (costs and item.is_last):
            item.attempts += costs
            self._die(item)
            return "dead"
        item.attempts += costs
        self._ready(item, delay_s)
        return "requeued"

    def extend(self, item_id: str, token: str, lease_s: float | None) -> str:
        if not self.holds(item_id, token):
            return ""
        item = self.items[item_id]
        item.lease_until_s = self.now_s + (item.lease_s if lease_s is None else lease_s)
        return "extended"

    def cancel(self, item_id: str) -> str:
        item = self.items.get(item_id)
        if item is None:
            return "already_cancelled" if self.outcomes.get(item_id) == "cancelled" else "finished"
        if item.state == "dead":
            return "finished"
        self._end(item_id, "cancelled")
        return "cancelled"

    def revive(self, item_id: str) -> str:
        item = self.items.get(item_id)
        if item is None:
            return "cancelled" if self.outcomes.get(item_id) == "cancelled" else "finished"
        if item.state == "disabled":
            self._open(item)
            return "revived"
        return "finished" if item.state == "dead" else "already_enabled"

    def redrive(self) -> int:
        dead = [item for item in self.items.values() if item.state == "dead"]
        for item in dead:
            item.attempts = 0
            item.expires_at_s = None if item.ttl_s is None else self.now_s + item.ttl_s
            self._ready(item, 0)
        return len(dead)

    def purge(self) -> int:
        for item_id in list(self.items):
            self._end(item_id, "cancelled")
        return 0

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and everything that it does be done."""
        self.now_s += seconds
        for item in list(self.items.values()):
            if item.state == "leased" and item.lease_until_s <= self.now_s:
                self._lease_ran_out(item)
            elif item.state == "delayed" and item.deliver_at_s <= self.now_s:
                item.state, item.deliver_at_s = "ready", self.now_s
        for item in list(self.items.values()):
            if item.state in ("ready", "delayed") and self._past_ttl(item):
                self._end(item.id, "expired")

    def _lease_ran_out(self, item: Item) -> None:
        if item.at_most_once or self._past_ttl(item):
            self._end(item.id, "expired")
            return
        was_last = item.is_last
        item.attempts += 1
        if was_last:
            self._die(item)
        else:
            self._ready(item, 0)

    def _past_ttl(self, item: Item) -> bool:
        return item.expires_at_s is not None and item.expires_at_s <= self.now_s

    def _open(self, item: Item) -> None:
        item.expires_at_s = None if item.ttl_s is None else self.now_s + item.ttl_s
        self._ready(item, item.delay_s)

    def _ready(self, item: Item, delay_s: float) -> None:
        item.deliver_at_s = self.now_s + delay_s
        item.state = "delayed" if delay_s > 0 else "ready"

    def _die(self, item: Item) -> None:
        item.state, item.expires_at_s = "dead", None
        self.told["dead"] += item.tells

    def _end(self, item_id: str, outcome: str) -> None:
        item = self.items.pop(item_id)
        self.outcomes[item_id] = outcome if item.state != "dead" else "cancelled"
        self.told[outcome] += item.tells and item.state != "dead"


def request(item: Item, disabled: bool) -> dict[str, Any]:
    """The item as an enqueue call carries it."""
    body: dict[str, Any] = {"topic": "t", "id": item.id, "priority": item.priority, "lease_s": item.lease_s}
    # What comes back does so at once, as the model has it.
    body |= {"max_attempts": item.max_attempts, "disabled": disabled, "backoff": AT_ONCE}
    if item.delay_s:
        body["delay_s"] = item.delay_s
    if item.ttl_s is not None:
        body["ttl_s"] = item.ttl_s
    if item.at_most_once:
        body["delivery"] = "at_most_once"
    if item.tells:
        body["ack_topic"] = "done"
    return body
