"""How the keys of ready items are read ahead from the shards.

Every line is looked at afresh from the head of each shard about once a second while somebody wants it: that poll
is authoritative. In between, a look continues where the last one ended. Neither delays a call: while the keys at
hand are enough, the poll runs beside the calls, and so does the next look once few keys are left.

A look reads a part of what is likely to be used before the next poll, not as many keys as it can: what is left
over then is read a second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from services.queue.dispatch.claim_flushes import looker
from services.queue.dispatch.direct_handoff import Line
from services.queue.dispatch.key_budget import KeptKeys
from services.queue.model import Bound, Key, KeyLook, TopicId
from services.queue.settings import QueueSettings
from services.queue.store.names import TopicRef
from services.queue.store.shard_store import Store
from shared.admission.connection_priority import Urgency
from shared.clock import Clock
from shared.errors import Unavailable
from shared.ids import ShardNo
from shared.log import log
from shared.postgres.batcher import Batcher
from shared.postgres.history import History

# A shard that takes longer is passed over, so that it holds up nobody who wants items of others.
PEEK_S_MAX = 1.0
# Topics looked at by one statement.
LOOKS_MAX = 32
# In polls: a line that was looked at longer ago is served no more before it has been looked at again.
STALE_POLLS = 1.25


class Looking:
    """Fills the buffers of a process' lines."""

    def __init__(
        self,
        lines: Mapping[tuple[str, str], Line],
        kept: KeptKeys,
        settings: QueueSettings,
        clock: Clock,
        *,
        met: Callable[[Line, ShardNo, TopicId], None],
        lost: Callable[[Line, ShardNo], None],
        keep: Callable[[Awaitable[None]], None],
        rests: Callable[[ShardNo], bool],
    ) -> None:
        """`met` is told the number that a line's topic has on a shard, `lost` that it has it no more, `keep` what
        runs beside the calls. A shard that `rests` is not looked at."""
        self._lines = lines
        self._kept = kept
        self._settings = settings
        self._clock = clock
        self._met = met
        self._lost = lost
        self._keep = keep
        self._rests = rests
        self._looks: dict[ShardNo, Batcher[tuple[KeyLook, int], list[Key] | None]] = {}
        self._finds: dict[ShardNo, Batcher[tuple[str, str], TopicRef | None]] = {}
        self._histories: dict[ShardNo, History] = {}
        self._dropped: set[ShardNo] = set()
        self._joined_s = float("-inf")

    def drop(self, shard: ShardNo) -> None:
        """Look at a shard no more."""
        self._dropped.add(shard)

    def join(self, store: Store) -> None:
        """Look at one more shard."""
        limits = self._settings.flush_limits._replace(items_max=LOOKS_MAX)
        self._histories[store.number] = store.shard.history
        self._looks[store.number] = Batcher(looker(store), limits, Urgency.DEQUEUE, store.pool)
        self._finds[store.number] = Batcher(store.names.find_all, limits, Urgency.DEQUEUE, store.pool)

    def supply(self, line: Line, count: int, deadline_s: float) -> Awaitable[None] | None:
        """See to it that `count` keys can be served in order, or all there are, as of about a second ago.

        What is to be awaited for that: mostly nothing. A call that can wait until `deadline_s` does so during a
        poll, where the last one has found nothing.
        """
        if not count:
            return None
        line.buffer.heed(count)
        now_s = self._clock.monotonic_s()
        age_s = now_s - line.refreshed_s
        is_short = bool(line.buffer.behind(count))
        is_due = age_s >= self._settings.poll_s
        if not is_due and not is_short:
            return None
        has_enough = not is_short and len(line.buffer) >= count and age_s < self._settings.poll_s * STALE_POLLS
        defers = line.is_dry and now_s < deadline_s
        if not is_due or not (has_enough or defers):
            return self.fill(line, count)
        if not line.filling.locked():
            self._refreshed(line)
            self._keep(self._look_again(line))
        return None

    def look_ahead(self, line: Line, taken: int) -> None:
        """A call has taken so many keys: read more where the next such calls would have to wait for that."""
        if taken and line.buffer.behind(self._depth(line, taken) // 2) and not line.filling.locked():
            self._keep(self._deepen(line, taken))

    async def fill(self, line: Line, count: int) -> None:
        """Look for `count` keys; from the heads if the last poll is long ago."""
        async with line.filling:
            if self._clock.monotonic_s() - line.refreshed_s >= self._settings.poll_s:
                self._refreshed(line)
                line.buffer.rewind()
            await self._look(line, line.buffer.behind(count), count)

    async def topic_id(self, line: Line, shard: ShardNo) -> TopicId | None:
        """The number of the line's topic on a shard; None: no item of it has ever come there."""
        topic_id = line.topic_ids.get(shard)
        if topic_id is None:
            edition = self._histories[shard].edition
            [found] = await self._finds[shard].submit([(line.namespace, line.topic)])
            self._histories[shard].check(edition)
            if found is None:
                return None
            topic_id = found.topic_id
            self._met(line, shard, topic_id)
        return topic_id

    def _depth(self, line: Line, count: int) -> int:
        return line.depth(count, self._settings.peek_keys_max)

    def _refreshed(self, line: Line) -> None:
        """A line begins to be looked at from the heads."""
        now_s = self._clock.monotonic_s()
        line.refreshed(now_s)
        self._join_looks(now_s)

    def _join_looks(self, now_s: float) -> None:
        """Look afresh at other lines in use too, if their turn is near: one statement a shard serves many."""
        poll_s = self._settings.poll_s
        if now_s - self._joined_s < poll_s / 2:
            return
        self._joined_s = now_s
        are_few = len(self._lines) <= LOOKS_MAX
        for line in self._lines.values():
            if line.is_due(now_s, poll_s, ahead=are_few):
                line.refreshed(now_s)
                self._keep(self._look_again(line))

    async def _look_again(self, line: Line) -> None:
        """A poll beside the calls: what is known is served until it is known better."""
        async with line.filling:
            await self._look(line, line.buffer.again(), 1)
        if len(line.buffer):
            line.wake_one()

    async def _deepen(self, line: Line, count: int) -> None:
        async with line.filling:
            depth = self._depth(line, count)
            await self._look(line, line.buffer.behind(depth // 2), count)

    async def _look(self, line: Line, wanted: Iterable[tuple[ShardNo, Bound]], count: int) -> None:
        depth = self._depth(line, count)
        peeks = {}
        for shard, bound in wanted:
            if shard in line.late or shard in self._dropped or self._rests(shard):
                line.buffer.pass_over(shard)
            else:
                peeks[asyncio.create_task(self._peek(line, shard, bound, depth))] = shard
        if not peeks:
            return
        try:
            await asyncio.wait(peeks, timeout=PEEK_S_MAX)
        finally:
            # Also when this call is cut off here: they go on, and no second one may overtake them.
            for task, shard in peeks.items():
                if not task.done():
                    line.late[shard] = task
                    line.buffer.pass_over(shard)

    async def _peek(self, line: Line, shard: ShardNo, after: Bound, limit: int) -> None:
        keys: list[Key] = []
        line.buffer.peeking(shard, after)
        try:
            topic_id = await self.topic_id(line, shard)
            if topic_id is not None:
                start = line.start(shard, after, self._clock.monotonic_s())
                look = KeyLook(line.namespace, line.topic, topic_id, after, start)
                [found] = await self._looks[shard].submit([(look, limit)])
                if found is None:
                    self._lost(line, shard)
                else:
                    keys = found
                    line.found(shard, after, keys)
        except Unavailable as error:
            # A shard that does not answer costs only itself: the others go on being served.
            log.warning("peek failed", shard=shard, detail=error.detail)
        finally:
            line.buffer.peeked(shard, keys, limit=limit, after=after)
            self._kept.gain(len(keys), self._lines.values())
            if line.late.pop(shard, None) is not None:
                line.wake_one()
