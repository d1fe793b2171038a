"""Where waiting consumers meet ready items.

One `Line` per topic that somebody dequeues from: its buffer of keys and the calls that wait. A key that becomes
ready wakes one waiting call; a call that leaves keys behind wakes the next, so a thousand waiting consumers do not
stampede for one item. What a line knows comes from looks at the shards (services.queue.dispatch.key_refill): they
are authoritative, and keys told by `ready` only save the time until the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from datetime import datetime
from functools import partial

from services.queue.dispatch import claiming
from services.queue.dispatch.announcements import Announcer
from services.queue.dispatch.claiming import Claims
from services.queue.dispatch.demand import NOTED_S, Asked
from services.queue.dispatch.direct_handoff import HANDED_ENTRIES_MAX, HANDED_TOPICS_MAX, Handing, Line
from services.queue.dispatch.key_budget import KeptKeys
from services.queue.dispatch.key_refill import Looking
from services.queue.dispatch.resting_shards import Resting
from services.queue.keys.key_cache import Heads
from services.queue.keys.priority_shares import Bands, Shares
from services.queue.model import EARLIEST, Key, Ready, TopicId
from services.queue.settings import QueueSettings
from services.queue.store import items
from services.queue.store.dequeue_encoding import Unused
from services.queue.store.shard_store import Store
from shared.clock import Clock
from shared.errors import ShardUnavailable
from shared.ids import ShardNo

# So long a process that goes waits for what goes on behind its answers.
LATE_S_MAX = 2.0


class Dispatch:
    """All lines of this process."""

    def __init__(
        self,
        stores: Sequence[Store],
        settings: QueueSettings,
        clock: Clock,
        *,
        announcer: Announcer,
        owns: Callable[[ShardNo], bool],
        hand_back: Callable[[str, Sequence[Unused]], Awaitable[None]],
        doubt: Callable[[ShardNo, str, str], None],
    ) -> None:
        self._owns = owns
        self._stores: dict[ShardNo, Store] = {}
        self._dropped: set[ShardNo] = set()
        self._settings = settings
        self._clock = clock
        self.announcer = announcer
        self.asked = Asked(clock, announcer)
        self._hand_back = hand_back
        self._doubt = doubt
        self._late: set[asyncio.Task[None]] = set()
        self.shares: dict[tuple[str, str], Shares] = {}
        self._lines: dict[tuple[str, str], Line] = {}
        self._by_id: dict[tuple[int, TopicId], Line] = {}
        self._recent: dict[tuple[int, str], dict[TopicId, None]] = {}
        self.is_leaving = False
        self._strangers: dict[tuple[int, int], tuple[list[Key], asyncio.Task[None]]] = {}
        self._kept = KeptKeys(settings.kept_keys_max)
        self.rests = Resting(clock)
        self.looking = Looking(
            self._lines,
            self._kept,
            settings,
            clock,
            met=self._met,
            lost=self._lost,
            keep=self.keep,
            rests=self.rests,
        )
        self.claims = Claims(
            settings, self.rests, topic_id=self.looking.topic_id, give_back=self.give_back, doubt=doubt
        )
        for store in stores:
            self.join(store)

    def join(self, store: Store) -> None:
        """Serve from one more shard."""
        self._stores[store.number] = store
        store.shard.history.listeners.append(partial(self.forget_shard, store.number))
        self.looking.join(store)
        self.claims.join(store)
        for line in self._lines.values():
            line.buffer.join(store.number)
            line.wake_one()

    def drop(self, shard: ShardNo) -> None:
        """Serve from a shard no more: it left the map. Calls that wait look at the others."""
        self.looking.drop(shard)
        self._dropped.add(shard)
        self.forget_shard(shard)

    def hold(self, shard: ShardNo) -> None:
        """Serve nothing of a shard until it is released."""
        self.rests.held.add(shard)

    def release(self, shard: ShardNo) -> None:
        """Serve from a shard that was held."""
        if shard in self.rests.held:
            self.rests.held.remove(shard)
            self.forget_keys()

    def ready(self, shard: ShardNo, items: Sequence[Ready]) -> None:
        """Items of a shard have become deliverable: remember their keys and wake who waits for them."""
        if items:
            topics: dict[TopicId, list[Key]] = {}
            for topic_id, key in items:
                topics.setdefault(topic_id, []).append(key)
            for topic_id, keys in topics.items():
                self.ready_in(shard, topic_id, keys)

    def ready_in(self, shard: ShardNo, topic_id: TopicId, keys: Sequence[Key]) -> None:
        """As `ready`, for items of one topic."""
        line = self._by_id.get((shard, topic_id))
        pair = self._stores[shard].names.pair(topic_id)
        if pair is None:
            self._introduce(shard, topic_id, keys)
            return
        line = line or self._meet(shard, topic_id, pair)
        taken = 0
        if line is not None:
            line.buffer.push(shard, keys)
            self._kept.gain(len(keys), self._lines.values())
            taken = line.wanted(len(keys))
            line.wake_one()
        if len(keys) > taken:  # the calls that wait here take the others: each that is woken wakes the next
            self.announcer.tell(*pair, shard, keys[taken:])

    def handing(self, shard: ShardNo, verb: str, entries: int, *, waits: bool = False) -> Handing:
        """What a flush of so many entries may lease at once to calls that wait, by what became ready before. One
        that itself may have to wait (`waits`) takes no line's last call along: small flushes would find nobody to
        hand to."""
        recent = self._recent.setdefault((shard, verb), {})
        lines = self._offerable(shard, recent, entries)
        if waits:
            lines = [(topic_id, line) for topic_id, line in lines if len(line.waiting) > 1]
        return self._handing(shard, lines, recent, entries)

    def handing_of(self, shard: ShardNo, topics: Set[tuple[str, str]], entries: int) -> Handing:
        """The same of a flush of which it is known what it makes ready, if it is of few topics."""
        names = self._stores[shard].names
        refs = (names.known(*pair) for pair in topics) if len(topics) <= HANDED_TOPICS_MAX else ()
        lines = self._offerable(shard, [ref.topic_id for ref in refs if ref is not None], entries)
        return self._handing(shard, lines, {}, entries)

    def _handing(
        self, shard: ShardNo, lines: Sequence[tuple[TopicId, Line]], recent: dict[TopicId, None], entries: int
    ) -> Handing:
        doubt = partial(self._doubt, shard)
        return Handing(lines, recent, self.give_back, doubt, entries, claiming.CLAIM_S_MAX)

    def is_awaited(self, shard: ShardNo, topics: Iterable[tuple[str, str]], entries: int) -> bool:
        """Whether `handing_of` may have something to offer."""
        lines = (self._lines.get(pair) for pair in topics)
        return entries <= HANDED_ENTRIES_MAX and any(line is not None and line.waiting for line in lines)

    def _offerable(
        self, shard: ShardNo, topic_ids: Iterable[TopicId], entries: int
    ) -> Sequence[tuple[TopicId, Line]]:
        """The lines of these topics, where a flush of so many entries may lease to who waits there."""
        if entries > HANDED_ENTRIES_MAX or self.is_leaving or shard in self.rests.held:
            return ()
        known = ((topic_id, self._by_id.get((shard, topic_id))) for topic_id in topic_ids)
        return [(topic_id, line) for topic_id, line in known if line is not None]

    async def promote(self, shard: ShardNo, limit: int, due_from: datetime = EARLIEST) -> int:
        """Make ready what is due on a shard, so many items at most; how many that were."""
        promoted = await items.promote(self._stores[shard].pool, limit, due_from)
        self.ready(shard, promoted)
        return len(promoted)

    def set_shares(self, shares: dict[tuple[str, str], Shares]) -> None:
        """These topics, and no others, have minimum shares; calls that wait keep what they began with."""
        before, self.shares = self.shares, shares
        for pair in before.keys() | shares.keys():
            if before.get(pair) != shares.get(pair) and (line := self._lines.pop(pair, None)) is not None:
                for shard, topic_id in line.topic_ids.items():
                    self._by_id.pop((shard, topic_id), None)
                line.wake_all()

    def takes_turns(self, namespace: str, topic: str) -> None:
        """The items of a topic are in lanes: what is kept of it is ordered by places, not by time."""
        line = self._lines.get((namespace, topic))
        if line is not None:
            line.buffer.takes_turns = True

    async def place_lanes(self, shard: ShardNo) -> None:
        """Give items of lanes that this process has just written their places, before it answers.

        Where it cannot, the reaper does: until then they are delayed by nothing but that.
        """
        if self._stores[shard].has_lanes:
            with contextlib.suppress(ShardUnavailable):
                await self.promote(shard, self._settings.promote_items_max)

    def hinted(self, namespace: str, topic: str, shard: ShardNo, read: Callable[[], Sequence[Key]]) -> None:
        """Another host says that keys, which `read` gives, became ready."""
        line = self._lines.get((namespace, topic))
        if line is None or shard not in self._stores:
            return
        if not line.calls and line.buffer.note(shard):
            return
        keys = read()
        line.buffer.push(shard, keys)
        self._kept.gain(len(keys), self._lines.values())
        line.wake_one()

    def changed(self, namespace: str, topic: str) -> None:
        """A topic was paused, resumed or purged here: what any process keeps of it is void."""
        self.forget(namespace, topic)
        self.announcer.tell_change(namespace, topic)

    def forget(self, namespace: str, topic: str) -> None:
        """What is kept of a topic is void."""
        line = self._lines.get((namespace, topic))
        if line is not None:
            line.forget()
            line.wake_one()

    def wake(self, namespace: str, topic: str) -> None:
        """Let a call that waits for a topic look again."""
        line = self._lines.get((namespace, topic))
        if line is not None:
            line.wake_one()

    def look_again(self, namespace: str, topic: str) -> None:
        """What may be handed out of a topic has changed: nothing is passed over any more, all calls look again."""
        line = self._lines.get((namespace, topic))
        if line is not None:
            if line.aside:
                line.forget()
            line.wake_all()

    def forget_keys(self) -> None:
        """Look at every shard afresh: one has moved."""
        for line in self._lines.values():
            line.forget()
            line.wake_one()

    def forget_shard(self, shard: ShardNo) -> None:
        """The shard has another history: no number and no key that is known of it holds."""
        self._by_id = {place: line for place, line in self._by_id.items() if place[0] != shard}
        for place in [place for place in self._recent if place[0] == shard]:
            self._recent[place].clear()
        for line in self._lines.values():
            line.topic_ids.pop(shard, None)
        self.forget_keys()

    def leave(self) -> None:
        """This process is going: calls that wait end, later ones wait for a moment only."""
        self.is_leaving = True
        for line in self._lines.values():
            line.wake_all()

    async def ended(self) -> None:
        """What goes on behind answers has ended, or had its moment: it gives back what nobody else would."""
        if self._late:
            await asyncio.wait(self._late, timeout=LATE_S_MAX)

    def forget_idle(self) -> int:
        """Drop lines that nobody has wanted for a while."""
        since_s = self._clock.monotonic_s() - self._settings.buffer_idle_s
        for line in [line for line in self._lines.values() if line.is_idle(since_s)]:
            del self._lines[line.namespace, line.topic]
            for shard, topic_id in line.topic_ids.items():
                self._by_id.pop((shard, topic_id), None)
        return 0

    def line(self, namespace: str, topic: str) -> Line:
        """The line of a topic that somebody wants."""
        line = self._lines.get((namespace, topic))
        if line is None:
            shares = self.shares.get((namespace, topic))
            buffer = Bands(shares, self._heads) if shares else self._heads()
            line = Line(namespace, topic, buffer)
            self._lines[namespace, topic] = line
        line.used_s = now_s = self._clock.monotonic_s()
        if now_s - line.noted_s >= NOTED_S:
            self.asked.note([line])
        return line

    def _heads(self) -> Heads:
        keys_max, late_s = self._settings.buffer_keys_max, self._settings.late_s
        shards = [shard for shard in self._stores if shard not in self._dropped]
        return Heads(shards, self._owns, self._clock, keys_max=keys_max, late_s=late_s)

    def _introduce(self, shard: ShardNo, topic_id: TopicId, keys: Sequence[Key]) -> None:
        """Learn the name of a topic that another process made, then tell of its keys."""

        async def learn() -> None:
            try:
                known = await self._stores[shard].names.name_of([topic_id])
            except ShardUnavailable:
                return
            finally:
                waiting = self._strangers.pop((shard, topic_id))[0]
            if known:
                self.ready_in(shard, topic_id, waiting)

        if (shard, topic_id) in self._strangers:
            self._strangers[shard, topic_id][0].extend(keys)
        else:
            self._strangers[shard, topic_id] = (list(keys), asyncio.create_task(learn()))

    def _meet(self, shard: ShardNo, topic_id: TopicId, pair: tuple[str, str]) -> Line | None:
        line = self._lines.get(pair)
        if line is not None:
            self._met(line, shard, topic_id)
        return line

    def _met(self, line: Line, shard: ShardNo, topic_id: TopicId) -> None:
        before = line.topic_ids.get(shard)
        if before is not None:
            self._by_id.pop((shard, before), None)
        line.topic_ids[shard] = topic_id
        self._by_id[shard, topic_id] = line

    def _lost(self, line: Line, shard: ShardNo) -> None:
        """The number is the topic's no more: it was deleted, and another of its name may be there since."""
        topic_id = line.topic_ids.pop(shard, None)
        if topic_id is not None:
            self._by_id.pop((shard, topic_id), None)
            self._stores[shard].names.forget([topic_id])

    def give_back(self, namespace: str, leased: list[Unused]) -> None:
        """What was leased for a call that was cut short."""
        self.keep(self._hand_back(namespace, leased))

    def keep(self, work: Awaitable[None]) -> None:
        """Hold on to work that goes on behind an answer."""
        task = asyncio.ensure_future(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)
