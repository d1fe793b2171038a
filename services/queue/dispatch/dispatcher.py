"""Where waiting consumers meet ready items.

One `Line` per topic that somebody dequeues from: its buffer of keys and the calls that wait. A key that becomes
ready wakes one waiting call; a call that leaves keys behind wakes the next, so a thousand waiting consumers do not
stampede for one item. What a line knows comes from looks at the shards (services.queue.dispatch.key_refill): they
are the truth, the keys told by `ready` only save the time until the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from services.queue.dispatch.claiming import Claims, Holder
from services.queue.dispatch.demand import Asked
from services.queue.dispatch.direct_handoff import HANDED_ENTRIES_MAX, Handing, Line, Terms
from services.queue.dispatch.key_budget import KeptKeys, KeysUse
from services.queue.dispatch.key_cache import Heads
from services.queue.dispatch.key_refill import Looking
from services.queue.dispatch.priority_shares import Bands, Shares
from services.queue.dispatch.resting_shards import Resting
from services.queue.model import EARLIEST, Demand, Key, Ready
from services.queue.quotas import Tenant, Use
from services.queue.settings import QueueSettings
from services.queue.store.dequeue_encoding import Group, Leased, returnable
from services.queue.store.names import SQL
from services.queue.store.shard_store import Store
from shared.clock import Clock
from shared.errors import ShardUnavailable

# Where what a call would take is gone each time it comes for it, it tries for so long after its deadline.
MISSES_S_MAX = 1.0


class Dispatch:
    """All lines of this process."""

    def __init__(
        self, stores: Sequence[Store], settings: QueueSettings, clock: Clock, *, owns: Callable[[int], bool]
    ) -> None:
        self._owns = owns
        self._stores: dict[int, Store] = {}
        self._settings = settings
        self._clock = clock
        self.tell: Callable[[str, str, int, Sequence[Key]], None] | None = None
        self.want: Callable[[str, str], None] | None = None
        self.tell_change: Callable[[str, str], None] | None = None
        self.asked = Asked(clock)
        self.hand_back: Callable[[str, list[tuple[str, str]]], Awaitable[None]] | None = None
        self._late: set[asyncio.Task[None]] = set()
        self.shares: dict[tuple[str, str], Shares] = {}
        self._lines: dict[tuple[str, str], Line] = {}
        self._by_id: dict[tuple[int, int], Line] = {}
        self._recent: dict[tuple[int, str], dict[int, None]] = {}
        self._is_leaving = False
        self._strangers: dict[tuple[int, int], tuple[list[Key], asyncio.Task[None]]] = {}
        self._kept = KeptKeys(settings.kept_keys_max)
        self._rests = Resting(clock)
        self.looking = Looking(
            self._lines,
            self._kept,
            settings,
            clock,
            met=self._met,
            lost=self._lost,
            keep=self._keep,
            rests=self._rests,
        )
        self._claims = Claims(
            settings, self._rests, topic_id=self.looking.topic_id, give_back=self._give_back, keep=self._keep
        )
        for store in stores:
            self.join(store)

    def join(self, store: Store) -> None:
        """Serve from one more shard."""
        self._stores[store.number] = store
        store.shard.history.listeners.append(partial(self.forget_shard, store.number))
        self.looking.join(store)
        self._claims.join(store)
        for line in self._lines.values():
            line.buffer.join(store.number)
            line.wake_one()

    def hold(self, shard: int) -> None:
        """Serve nothing of a shard until it is released."""
        self._rests.held.add(shard)

    def release(self, shard: int) -> None:
        """Serve from a shard that was held."""
        if shard in self._rests.held:
            self._rests.held.remove(shard)
            self.forget_keys()

    def ready(self, shard: int, items: Sequence[Ready]) -> None:
        """Items of a shard have become deliverable: remember their keys and wake who waits for them."""
        if items:
            topics: dict[int, list[Key]] = {}
            for topic_id, key in items:
                topics.setdefault(topic_id, []).append(key)
            for topic_id, keys in topics.items():
                self.ready_in(shard, topic_id, keys)

    def ready_in(self, shard: int, topic_id: int, keys: Sequence[Key]) -> None:
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
            taken = line.wake_one()
        if self.tell is not None and len(keys) > taken:
            # What who was woken here takes is as good as taken.
            self.tell(*pair, shard, keys[taken:])

    def handing(self, shard: int, verb: str, entries: int, *, waits: bool = False) -> Handing:
        """What a flush of so many entries may lease at once to calls that wait, by what became ready before. One
        that itself `waits` for others takes no call along: small flushes would find nobody to hand to."""
        recent = self._recent.setdefault((shard, verb), {})
        lines: list[tuple[int, Line]] = []
        if entries <= HANDED_ENTRIES_MAX and not waits and not self._is_leaving and shard not in self._rests.held:
            known = ((topic_id, self._by_id.get((shard, topic_id))) for topic_id in recent)
            lines = [(topic_id, line) for topic_id, line in known if line is not None]
        return Handing(lines, recent, self._give_back)

    async def promote(self, shard: int, limit: int, due_from: datetime = EARLIEST) -> int:
        """Make ready what is due on a shard, so many items at most; how many that were."""
        rows = await self._stores[shard].pool.fetch(SQL.promote, limit=limit, due_from=due_from)
        self.ready(
            shard, [Ready(row["topic_id"], Key(row["priority"], row["deliver_at"], row["id"])) for row in rows]
        )
        return len(rows)

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

    async def place_lanes(self, shard: int) -> None:
        """Give items of lanes that this process has just written their places, before it answers.

        Where it cannot, the reaper does: until then they are delayed by nothing but that.
        """
        if self._stores[shard].has_lanes:
            with contextlib.suppress(ShardUnavailable):
                await self.promote(shard, self._settings.promote_items_max)

    def hinted(self, namespace: str, topic: str, shard: int, read: Callable[[], Sequence[Key]]) -> None:
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
        if self.tell_change is not None:
            self.tell_change(namespace, topic)

    def forget(self, namespace: str, topic: str) -> None:
        """What is kept of a topic is void."""
        line = self._lines.get((namespace, topic))
        if line is not None:
            line.forget()
            line.wake_one()

    def forget_keys(self) -> None:
        """Look at every shard afresh: one has moved."""
        for line in self._lines.values():
            line.forget()
            line.wake_one()

    def forget_shard(self, shard: int) -> None:
        """The shard has another history: no number and no key that is known of it holds."""
        self._by_id = {place: line for place, line in self._by_id.items() if place[0] != shard}
        for place in [place for place in self._recent if place[0] == shard]:
            self._recent[place].clear()
        for line in self._lines.values():
            line.topic_ids.pop(shard, None)
        self.forget_keys()

    def leave(self) -> None:
        """This process is going: calls that wait end, later ones wait for a moment only."""
        self._is_leaving = True
        for line in self._lines.values():
            line.wake_all()

    def check(self, namespace: str) -> None:
        """Raises Overloaded while claims wait too long on every shard."""
        self._claims.check(namespace)

    async def dequeue(
        self,
        namespace: str,
        demands: Sequence[Demand],
        *,
        token: str,
        lease_s: float | None = None,
        worker: str | None = None,
        wait_s: float = 0.0,
        gone: asyncio.Future[None] | None = None,
        tenant: Tenant | None = None,
        waits: Callable[[], None] = lambda: None,
    ) -> Leased:
        """Lease all that is ready up to each demand's count, best first; wait only when there is nothing.

        The answer goes topic by topic, each in its order of service. Nothing is claimed for a call after its
        `gone` is done. `waits` is told before each wait.
        """
        lines = [self._line(namespace, demand.topic) for demand in demands]
        self.asked.note(lines)
        counts = [demand.count for demand in demands]
        leased = Leased(len(demands))
        was_leaving = self._is_leaving
        deadline_s = self._clock.monotonic_s() + (min(wait_s, self._settings.poll_s) if was_leaving else wait_s)
        with KeysUse(lines):
            while gone is None or not gone.done():
                if tenant is not None and not any(counts := tenant.cut(counts)):
                    left_s = deadline_s - self._clock.monotonic_s()
                    if leased or left_s <= 0:
                        break
                    waits()
                    await tenant.wait_for_room(left_s, gone)
                    counts = [demand.count for demand in demands]
                    continue
                for i, line in enumerate(lines):
                    filling = self.looking.supply(line, counts[i], deadline_s)
                    if filling is not None:
                        await filling
                if tenant is not None:
                    counts = tenant.cut(counts)  # others may have taken room while this call looked
                taken = [self._take(line, counts[i]) for i, line in enumerate(lines)]
                for i, line in enumerate(lines):
                    if len(line.buffer):
                        line.wake_one()
                    self.looking.look_ahead(line, len(taken[i]))
                missed = await self._serve(lines, taken, (token, lease_s, worker), leased, tenant)
                counts = [demand.count - leased.counts[i] for i, demand in enumerate(demands)]
                left_s = deadline_s - self._clock.monotonic_s()
                is_full = bool(leased and leased.is_cut)
                if missed and any(counts) and left_s > -MISSES_S_MAX and not is_full:
                    continue  # others may be ready in the place of what is gone
                is_over = bool(leased) or left_s <= 0 or self._is_leaving != was_leaving
                is_plain = not is_over and tenant is None and worker is None and len(lines) == 1
                terms = Terms(token, lease_s, counts[0], gone) if is_plain else None
                if is_over or await self._wait(lines, left_s, gone, terms, leased, waits):
                    break
        if gone is not None and gone.done():
            for line in lines:
                line.wake_one()  # the wake-up that this call may have swallowed is passed on
        return leased

    def _take(self, line: Line, count: int) -> list[Key]:
        """The keys to claim next: none of shards that rest. A look will meet those again."""
        for shard in self._rests.now():
            line.buffer.skip(shard)
        return line.take(count)

    def forget_idle(self) -> int:
        """Drop lines that nobody has wanted for a while."""
        since_s = self._clock.monotonic_s() - self._settings.buffer_idle_s
        for line in [line for line in self._lines.values() if line.is_idle(since_s)]:
            del self._lines[line.namespace, line.topic]
            for shard, topic_id in line.topic_ids.items():
                self._by_id.pop((shard, topic_id), None)
        return 0

    def _line(self, namespace: str, topic: str) -> Line:
        line = self._lines.get((namespace, topic))
        if line is None:
            shares = self.shares.get((namespace, topic))
            buffer = Bands(shares, self._heads) if shares else self._heads()
            line = Line(namespace, topic, buffer)
            self._lines[namespace, topic] = line
        line.used_s = self._clock.monotonic_s()
        return line

    def _heads(self) -> Heads:
        keys_max, late_s = self._settings.buffer_keys_max, self._settings.late_s
        return Heads(list(self._stores), self._owns, self._clock, keys_max=keys_max, late_s=late_s)

    def _introduce(self, shard: int, topic_id: int, keys: Sequence[Key]) -> None:
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

    def _meet(self, shard: int, topic_id: int, pair: tuple[str, str]) -> Line | None:
        line = self._lines.get(pair)
        if line is not None:
            self._met(line, shard, topic_id)
        return line

    def _met(self, line: Line, shard: int, topic_id: int) -> None:
        before = line.topic_ids.get(shard)
        if before is not None:
            self._by_id.pop((shard, before), None)
        line.topic_ids[shard] = topic_id
        self._by_id[shard, topic_id] = line

    def _lost(self, line: Line, shard: int) -> None:
        """The number is the topic's no more: it was deleted, and another of its name may be there since."""
        topic_id = line.topic_ids.pop(shard, None)
        if topic_id is not None:
            self._by_id.pop((shard, topic_id), None)
            self._stores[shard].names.forget([topic_id])

    async def _serve(
        self,
        lines: Sequence[Line],
        taken: Sequence[list[Key]],
        holder: Holder,
        leased: Leased,
        tenant: Tenant | None,
    ) -> bool:
        """Claim keys and add what was got to `leased`; true when some were gone."""
        wanted = sum(map(len, taken))
        if not wanted:
            return False
        if tenant is not None:
            tenant.gain(Use(leased=wanted))
        groups: list[Group] = []
        try:
            groups = await self._claims.claim(lines, taken, holder, leased)
        finally:
            got = sum([group.items for group in groups])
            if tenant is not None:
                tenant.gained(Use(leased=wanted), Use(leased=wanted - got))
        if len(groups) == 1 and len(lines) == 1:
            leased.add(0, taken[0], groups[0], self._topic(groups[0]))
        else:
            leased.add_mixed(taken, [(group, self._topic(group)) for group in groups])
        return got < wanted

    def _topic(self, group: Group) -> str:
        return (self._stores[group.shard].names.pair(group.topic_id) or ("", ""))[1]

    def _give_back(self, namespace: str, held: list[tuple[str, str]]) -> None:
        """What was leased for a call that was cut short."""
        if self.hand_back is not None:
            self._keep(self.hand_back(namespace, held))

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _wait(
        self,
        lines: Sequence[Line],
        left_s: float,
        gone: asyncio.Future[None] | None,
        terms: Terms | None,
        leased: Leased,
        waits: Callable[[], None],
    ) -> bool:
        """Until there is something to look for; true when items were handed to this call: they are in `leased`."""
        waits()
        self.asked.note(lines)
        if self.want is not None:
            for line in lines:
                self.want(line.namespace, line.topic)
        places = [line.wait(terms) for line in lines]
        wanted: list[asyncio.Future[Any]] = [*places] if gone is None else [*places, gone]
        poll_s = self._settings.poll_s * random.uniform(1.0, 1.5)  # noqa: S311 - jitter
        try:
            await asyncio.wait(wanted, timeout=min(left_s, poll_s), return_when=asyncio.FIRST_COMPLETED)
            offered = [place for place in places if place.is_offered and not place.done()]
            for place in offered:
                place.is_awaited = True
            if offered:
                await asyncio.wait(offered)  # a flush is about to say what it has leased to this call
        except asyncio.CancelledError:
            for line, place in zip(lines, places, strict=True):
                place.is_left = True
                if place.done() and not place.cancelled() and place.result():
                    self._give_back(line.namespace, returnable(place.result()))
            raise
        finally:
            for line, place in zip(lines, places, strict=True):
                if place.done() or place.is_offered:
                    continue
                place.cancel()
                with contextlib.suppress(ValueError):
                    line.waiting.remove(place)
        for line, place in zip(lines, places, strict=True):
            if not place.cancelled():
                leased.add_handed(place.result(), line.topic)
        return bool(leased)
