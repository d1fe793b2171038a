"""Claims of calls for items: keys to their shards, and what was got of them.

Calls share flushes. A shard that refuses, or is too slow, is left alone for a moment. What a call is given is
bounded in bytes, too: each of several shards gives its part of that, so that nothing is leased that the answer has
no room for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial

from services.queue.dispatch.claim_flushes import by_shard, claimer
from services.queue.dispatch.direct_handoff import Line
from services.queue.dispatch.resting_shards import Resting
from services.queue.model import Claim, Key, TopicId
from services.queue.settings import QueueSettings
from services.queue.store.dequeue_encoding import Claimed, Group, Leased, Unused
from services.queue.store.shard_store import Store
from shared.admission.connection_priority import Urgency
from shared.admission.delay import overloaded
from shared.errors import Overloaded, Unavailable
from shared.ids import ShardNo, new_token
from shared.log import log
from shared.postgres.batcher import Batcher, Late, Patience

# A call's lease_s and worker.
Holder = tuple[float | None, str | None]
# The bytes that each shard may give of an answer, and the item that is given at any size.
Room = tuple[int, str | None]

# A shard whose claims take longer is passed over, so that it holds up nobody who wants items of others: it rests
# until they have ended.
CLAIM_S_MAX = 2.0
# A shard that refused a claim, or was too slow, is asked for nothing for so long; less where it was for the load.
REST_S = 1.0
LOAD_REST_S = 0.1


class Claims:
    """Those of this process. `give_back` takes what was leased for nobody, `doubt` is told of tokens under which
    something may be."""

    def __init__(
        self,
        settings: QueueSettings,
        rests: Resting,
        *,
        topic_id: Callable[[Line, ShardNo], Awaitable[TopicId | None]],
        give_back: Callable[[str, list[Unused]], None],
        doubt: Callable[[ShardNo, str, str], None],
    ) -> None:
        self._settings = settings
        self._rests = rests
        self._topic_id = topic_id
        self._give_back = give_back
        self._doubt = doubt
        self._flushes: dict[tuple[int, bool], Batcher[Claim, Claimed]] = {}

    def join(self, store: Store) -> None:
        """Serve one more shard."""
        late = partial(self._rest, store.number, "claims take too long")
        patience = Patience(lambda: CLAIM_S_MAX, late, self._unheard, partial(self._unsure, store.number))
        for relaxed in (False, True):
            pool = store.shard.relaxed if relaxed else store.pool
            self._flushes[store.number, relaxed] = Batcher(
                claimer(store, relaxed), self._settings.flush_limits, Urgency.DEQUEUE, pool, patience=patience
            )

    def check(self, namespace: str) -> None:
        """Raises Overloaded while claims wait too long on every shard."""
        relaxed = namespace == "_dag"
        for (_, of_relaxed), flushes in self._flushes.items():
            if of_relaxed is relaxed and not flushes.is_overloaded:
                return
        raise overloaded(Urgency.DEQUEUE)

    async def claim(
        self, lines: Sequence[Line], taken: Sequence[list[Key]], holder: Holder, leased: Leased
    ) -> list[Group]:
        """What was got of these keys, in the room that `leased` has left; it is told of shards that had more, and
        of those that were too slow. Each claim has a token of its own: what is given back of one that nobody could
        be told of must not fit what its call gets by the next."""
        token = new_token()
        groups: dict[ShardNo, list[tuple[Line, list[Key]]]] = {}
        for line, keys in zip(lines, taken, strict=True):
            for shard, part in by_shard(keys).items():
                groups.setdefault(shard, []).append((line, part))
        namespace, room = lines[0].namespace, self._room(taken, leased, len(groups))
        try:
            if len(groups) == 1:
                [(shard, parts)] = groups.items()
                found = {shard: await self._claim_at(namespace, shard, parts, token, holder, room)}
            else:
                found = await self._claim_at_each(namespace, groups, token, holder, room)
        finally:
            for i, line in enumerate(lines):
                line.buffer.settled(taken[i])
        got: list[Group] = []
        for shard, claimed in found.items():
            got += claimed.groups
            if claimed.is_cut or not claimed.groups or len(groups[shard]) > 1:
                self._reread(shard, groups[shard], claimed)
            if claimed.is_cut:
                leased.is_cut = True
            if not claimed.is_known:
                leased.unknown += 1
            if claimed.late is not None:
                leased.late = [*leased.late, claimed.late]
        return got

    def _room(self, taken: Sequence[list[Key]], leased: Leased, shards: int) -> Room:
        bytes_left = max(self._settings.answer_bytes_max - leased.bytes, 0)
        if leased:
            return bytes_left // shards, None
        first = taken[0][0] if len(taken) == 1 else min([keys[0] for keys in taken if keys])
        return bytes_left // shards, first.id

    async def _claim_at_each(
        self,
        namespace: str,
        groups: dict[ShardNo, list[tuple[Line, list[Key]]]],
        token: str,
        holder: Holder,
        room: Room,
    ) -> dict[ShardNo, Claimed]:
        claims = [self._claim_at(namespace, shard, parts, token, holder, room) for shard, parts in groups.items()]
        return dict(zip(groups, await asyncio.gather(*claims), strict=True))

    async def _claim_at(
        self,
        namespace: str,
        shard: ShardNo,
        parts: Sequence[tuple[Line, list[Key]]],
        token: str,
        holder: Holder,
        room: Room,
    ) -> Claimed:
        size, claims = 0, list[Claim]()
        try:
            for line, keys in parts:
                topic_id = line.topic_ids.get(shard) or await self._ask_topic_id(line, shard)
                if topic_id is not None:
                    size += len(keys)
                    claims.append(Claim(topic_id, keys, token, *holder, *room))
            if not claims:
                return Claimed([], is_known=False)  # another process told of a topic that is not here
            found = await self._flushes[shard, namespace == "_dag"].submit(claims, namespace, size=size)
        except Unavailable as error:
            self._rest(shard, error.detail, LOAD_REST_S if isinstance(error, Overloaded) else REST_S)
            return Claimed([], is_known=False, late=error.ended if isinstance(error, Late) else None)
        if len(found) == 1:
            return found[0]
        groups = [group for claimed in found for group in claimed.groups]
        return Claimed(groups, any(claimed.is_cut for claimed in found))

    def _reread(self, shard: ShardNo, parts: Sequence[tuple[Line, list[Key]]], claimed: Claimed) -> None:
        """Look afresh for what there was no room for, and where nothing was got: all was gone, or paused, and what
        else is known most likely, too."""
        if not claimed.is_known:
            return
        got = {group.topic_id for group in claimed.groups}
        for line, _ in parts:
            if claimed.is_cut or line.topic_ids.get(shard) not in got:
                line.buffer.reread(shard)
            if claimed.is_cut:
                line.wake_one()

    async def _ask_topic_id(self, line: Line, shard: ShardNo) -> TopicId | None:
        """Of a topic whose keys another process told of."""
        try:
            async with asyncio.timeout(CLAIM_S_MAX):
                return await self._topic_id(line, shard)
        except TimeoutError:
            ended = asyncio.get_running_loop().create_future()
            ended.set_result(None)
            raise Late(ended) from None

    def _rest(self, shard: ShardNo, why: str, rest_s: float = REST_S) -> None:
        if not self._rests(shard):
            log.warning("claim failed", shard=shard, detail=why)
        self._rests.rest(shard, rest_s)

    def _unheard(self, namespace: Hashable, found: Sequence[Claimed]) -> None:
        """What a slow shard leased in the end, for a call that did not wait for it."""
        unused = [item for claimed in found for group in claimed.groups for item in group.unused()]
        if unused:
            self._give_back(str(namespace), unused)

    def _unsure(self, shard: ShardNo, namespace: Hashable, claims: Sequence[Claim]) -> None:
        """What a shard has leased, or may yet, and told nobody."""
        for claim in claims:
            self._doubt(shard, str(namespace), claim.token)
