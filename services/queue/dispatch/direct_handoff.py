"""Calls that wait for items of a topic, and items that are handed to them where they become ready.

A call that waits alone for one topic, with nothing of the topic in sight, says what it would take.
A flush that makes items of the topic ready offers that to its statement: what the call would claim next is
then leased to it in the same transaction, and it is answered after one commit instead of two and a wake-up.
Where there is anything to choose, nothing is offered, and the call is woken to look for itself.

Nothing depends on an offer: a flush that is refused with one is sent again without, and whatever a call could not
be told is given back like any lease that nobody uses; also what a flush has leased whose answer was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import NamedTuple, TypeVar

from services.queue.keys.key_buffer import START
from services.queue.keys.key_cache import Heads
from services.queue.keys.priority_shares import Bands
from services.queue.keys.scan_floor import KeysFloor
from services.queue.model import Bound, Key, Offer, TopicId
from services.queue.quotas import Tenant, Use
from services.queue.store.dequeue_encoding import Handed, Unused, unused
from shared.errors import Invalid, ServiceError
from shared.fallback import Fallback
from shared.ids import ShardNo

T = TypeVar("T")

# Flushes of more are as fast by the usual way, and so is a process that keeps more topics ready by one verb.
HANDED_ENTRIES_MAX = 64
HANDED_TOPICS_MAX = 8
# How many polls after it was last asked for a topic is still looked at with others.
AHEAD_POLLS = 5
# A look reads the keys of so many calls at least, and of a busy topic such a part of what a poll's time takes:
# keys that are not used by then are read again.
CALLS_A_LOOK = 2
LOOKS_A_POLL = 16
LOOK_KEYS_MIN = 32
# Calls for up to so many share what becomes ready. Who asks for more is filled: it works on many at once, and
# answers of few cost the service, and with it the topic's throughput, as much as answers of many.
SHARED_COUNT_MAX = 32


class Terms(NamedTuple):
    """What a waiting call would take; nothing once it is `gone`."""

    token: str
    lease_s: float | None
    items_max: int
    gone: asyncio.Future[None] | None
    worker: str | None = None
    tenant: Tenant | None = None

    def reserve(self, share: int) -> int:
        """How many items it may be handed now, no more than its share of them: of a namespace with quotas they are
        counted as on their way."""
        room = min(self.items_max, share)
        if self.tenant is None:
            return room
        room = self.tenant.room(room)
        self.tenant.gain(Use(leased=room))
        return room

    def reserved(self, room: int, used: int) -> None:
        """So many of those that were reserved have been handed to it."""
        if self.tenant is not None:
            self.tenant.gained(Use(leased=room), Use(leased=room - used))


class Place(asyncio.Future[list[Handed]]):
    """A call's place in a line. Its result are the items handed to it; none: it is to look for itself."""

    def __init__(self, terms: Terms | None) -> None:
        super().__init__()
        self.terms = terms
        self.is_offered = False
        self.is_awaited = False  # its call has done with waiting, but for the flush that may lease to it
        self.is_left = False  # whoever waited here was cancelled while a flush had it


class Line:
    """One topic: keys ahead, and the calls that wait for more. Of these there may be many thousands."""

    __slots__ = (
        "_wakes",
        "aside",
        "aside_turn",
        "aside_until_s",
        "buffer",
        "calls",
        "filling",
        "floors",
        "late",
        "namespace",
        "noted_s",
        "offered",
        "refreshed_s",
        "taken",
        "taken_before",
        "topic",
        "topic_ids",
        "used_s",
        "waiting",
        "woken",
    )

    def __init__(self, namespace: str, topic: str, buffer: Heads | Bands) -> None:
        self.namespace = namespace
        self.topic = topic
        self.buffer = buffer
        self.waiting: list[Place] = []  # an empty deque takes ten times as much
        self.aside = 0  # items that are passed over, since their keys have no room: until when, as of which turn
        self.aside_until_s = 0.0
        self.aside_turn = 0
        self.woken = 0  # calls that are about to look again
        self.offered = 0
        self.topic_ids: dict[ShardNo, TopicId] = {}
        self.refreshed_s = float("-inf")
        self.used_s = 0.0
        self.noted_s = float("-inf")
        self.filling = asyncio.Lock()
        self.late: dict[ShardNo, asyncio.Task[None]] = {}
        self.floors: dict[ShardNo, KeysFloor] = {}
        self.calls = 0
        self.taken = 0
        self.taken_before = 0
        self._wakes = 0

    def wake_one(self) -> bool:
        """Let the call that waits longest look again; whether one waited."""
        self._wakes += 1
        while self.waiting:
            place = self.waiting.pop(0)
            if not place.done():
                self._wake(place)
                return True
        return False

    def leave(self, place: Place) -> None:
        """Its call waits no more: it looks for itself now, has been handed items, or ends."""
        if place.done():
            self.woken -= not place.cancelled() and not place.result()
        elif not place.is_offered:
            place.cancel()
            with contextlib.suppress(ValueError):
                self.waiting.remove(place)

    @property
    def others(self) -> int:
        """How many calls besides the one that asks are after items of the topic now."""
        return len(self.waiting) + self.woken

    def wanted(self, count: int) -> int:
        """How many of so many items the calls that wait take together, one each at least."""
        taken = 0
        for place in self.waiting:
            if taken >= count:
                return count
            taken += 1 if place.terms is None else place.terms.items_max
        return min(taken, count)

    def share(self, count: int, items: int | None = None) -> int:
        """How many a call that wants `count` takes of so many items (of those in sight): where others wait for
        them too, a part of them, so that each has as many."""
        if not (self.waiting or self.woken) or count > SHARED_COUNT_MAX:
            return count
        return min(count, -(-(len(self.buffer) if items is None else items) // (1 + self.others)))

    def wake_all(self) -> None:
        """Let every call that waits look again."""
        while self.wake_one():
            pass

    def take(self, count: int) -> list[Key]:
        """The keys to serve next, as far as every shard is known."""
        keys = self.buffer.take(count)
        self.taken += len(keys)
        return keys

    def refreshed(self, now_s: float) -> None:
        """The line begins to be looked at from the heads of its shards."""
        self.refreshed_s = now_s
        self.taken_before, self.taken = self.taken, 0

    def depth(self, count: int, keys_max: int) -> int:
        """How many keys a look for a call of `count` reads of a shard: some calls', or a part of a poll's."""
        used = max(self.taken, self.taken_before) // LOOKS_A_POLL
        return min(max(used, count * CALLS_A_LOOK, LOOK_KEYS_MIN), keys_max)

    def start(self, shard: ShardNo, after: Bound, now_s: float) -> Bound:
        """From where to look for keys behind `after`; places of lanes are no times and have no front."""
        if after != START or self.buffer.takes_turns:
            return after
        return self.floors.setdefault(shard, KeysFloor()).start(now_s)

    def found(self, shard: ShardNo, after: Bound, keys: Sequence[Key]) -> None:
        """A look behind `after` found these."""
        if after == START and shard in self.floors:
            self.floors[shard].found(keys)

    def forget(self) -> None:
        """What is known of the topic's keys is void."""
        self.buffer.clear()
        self.floors.clear()
        self.aside = 0

    def is_idle(self, since_s: float) -> bool:
        """Whether nobody has wanted the topic since then."""
        return not self.waiting and not self.offered and self.used_s < since_s

    @property
    def is_dry(self) -> bool:
        """Whether what becomes ready next may be handed to who waits here."""
        return isinstance(self.buffer, Heads) and self.buffer.hands_over

    def is_due(self, now_s: float, poll_s: float, *, ahead: bool) -> bool:
        """Whether to look afresh along with another line: in use, and half a poll old at least.

        `ahead`: also one that is asked for now and then: else its next call would wait for looks of its own.
        """
        if now_s - self.refreshed_s < poll_s / 2 or self.filling.locked():
            return False
        idle_s = now_s - self.used_s
        if self.waiting or idle_s < poll_s:
            return True
        return ahead and idle_s < poll_s * AHEAD_POLLS

    def wait(self, terms: Terms | None = None) -> Place:
        """A place at the end of the line."""
        place = Place(terms)
        self.waiting.append(place)
        return place

    def offer(self) -> tuple[Place, int] | None:
        """Take the call that waits longest out of the line, if what becomes ready may be handed to it."""
        while self.waiting and self.waiting[0].done():
            self.waiting.pop(0)
        if not self.waiting or not self.is_dry:
            return None
        terms = self.waiting[0].terms
        if terms is None or (terms.gone is not None and terms.gone.done()):
            return None
        place = self.waiting.pop(0)
        place.is_offered = True
        self.offered += 1
        return place, self._wakes

    def take_back(self, place: Place, wakes: int | None) -> None:
        """Nothing was handed to this call: it waits again, or looks for itself if it has been woken meanwhile, or
        may have been leased something that it will not be told of (`wakes` None)."""
        place.is_offered = False
        self.offered -= 1
        if self._wakes != wakes or place.is_awaited:
            self._wake(place)
        else:
            self.waiting.insert(0, place)

    def _wake(self, place: Place) -> None:
        self.woken += 1
        place.set_result([])


class Handing:
    """The offers of one flush, within a `with` block; places that got nothing go back at its end. No call waits
    for it longer than `late_s`."""

    def __init__(
        self,
        lines: Sequence[tuple[TopicId, Line]],
        recent: dict[TopicId, None],
        hand_back: Callable[[str, list[Unused]], None],
        doubt: Callable[[str, str], None],
        entries: int,
        late_s: float,
    ) -> None:
        self._recent = recent
        self._late_s = late_s
        self._late: dict[str, Line] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._hand_back = hand_back
        self._doubt = doubt
        self._open: dict[str, tuple[Line, Place, int, int]] = {}
        self.offers: list[Offer] = []
        for topic_id, line in lines:
            taken = line.offer()
            if taken is not None:
                place, wakes = taken
                assert place.terms is not None, "only these are offered"
                terms = place.terms
                room = terms.reserve(line.share(terms.items_max, entries))
                self._open[terms.token] = (line, place, wakes, room)
                if room:
                    self.offers.append(Offer(topic_id, terms.token, terms.lease_s or 0.0, room, terms.worker))

    def __enter__(self) -> Handing:
        if self._open:
            self._timer = asyncio.get_running_loop().call_later(self._late_s, self._go_on)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        is_unsure = isinstance(error, ServiceError) and error.outcome == "unknown"
        self._close(is_unsure=is_unsure)
        if is_unsure:  # the statement may come from here on as well
            for token, line in self._late.items():
                self._doubt(line.namespace, token)

    def _go_on(self) -> None:
        """The flush takes too long: calls go on without it, and whatever it leases is nobody's."""
        self._late = {token: line for token, (line, *_) in self._open.items()}
        self._close(is_unsure=True)

    def _close(self, *, is_unsure: bool) -> None:
        for token, (line, place, wakes, room) in self._open.items():
            if is_unsure:
                self._doubt(line.namespace, token)
            if place.terms is not None:
                place.terms.reserved(room, 0)
            if place.is_left:
                line.offered -= 1
                place.cancel()
            else:
                line.take_back(place, None if is_unsure else wakes)
        self._open.clear()

    async def flush(self, work: Callable[[Sequence[Offer]], Awaitable[T]]) -> T:
        """Run a flush with the offers; should the database refuse it so, without them."""
        try:
            return await work(self.offers)
        except Invalid:
            if not self.offers:
                raise
            Fallback("refused").counted("handoff")
            return await work(())

    def saw(self, topic_ids: Sequence[TopicId]) -> None:
        """Items of these topics became ready: it is their lines that a next flush looks at."""
        for topic_id in topic_ids:
            self._recent.pop(topic_id, None)
            self._recent[topic_id] = None
        while len(self._recent) > HANDED_TOPICS_MAX:
            del self._recent[next(iter(self._recent))]

    def hand(self, leased: Sequence[Handed]) -> None:
        """Tell the calls what the flush, committed, has leased to them."""
        self.saw([lease.topic_id for _, lease in leased])
        parts: dict[str, list[Handed]] = {}
        for entry in leased:
            parts.setdefault(entry[1].token, []).append(entry)
        for token, part in parts.items():
            if token in self._late:
                self._hand_back(self._late[token].namespace, unused(part))
                continue
            line, place, _, room = self._open.pop(token)
            line.offered -= 1
            if place.terms is not None:
                place.terms.reserved(room, len(part))
            if place.is_left:
                self._hand_back(line.namespace, unused(part))
                place.cancel()
            else:
                place.set_result(sorted(part, key=lambda entry: entry[0]))
