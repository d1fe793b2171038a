"""Claims of calls that name a topic with limits: each time keys are there to claim, its gate says how many.

A grant is taken back when what it stands for is leased, or not: where the call did not wait for that, behind it. A
call that finds no room waits for a settle of its namespace here, or until there may be room. Whatever is slow, the
gates of a call have as long together as a claim has; behind that it goes only through those that open at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from services.queue.dispatch import claiming
from services.queue.dispatch.claim_flushes import by_shard
from services.queue.dispatch.claiming import Holder
from services.queue.dispatch.direct_handoff import Line
from services.queue.dispatch.dispatcher import Dispatch
from services.queue.gates.key_gates import LOOKED_AT_MAX, Through
from services.queue.gates.limits import Grant
from services.queue.gates.topic_gates import Gates
from services.queue.model import Key
from services.queue.quotas import Tenant, Use
from services.queue.store.dequeue_encoding import Group, Leased
from shared.clock import Clock
from shared.ids import new_token, shard_of

# So many items that have no room are passed over; behind them nothing is looked for until there may be room.
ASIDE_MAX = 10_000
# Where a call's time is over, a gate is waited for so long.
HURRY_S = 0.1
# So long a call that has what it was granted waits until the gates know.
LEAVE_S_MAX = 0.5
NOTHING = Through([], [], [], math.inf, {})


class GatedClaims:
    """Such claims; `take` and `topic` are those of all calls."""

    def __init__(
        self,
        dispatch: Dispatch,
        gates: Gates,
        clock: Clock,
        *,
        take: Callable[[Line, int], list[Key]],
        topic: Callable[[Group], str],
    ) -> None:
        self._dispatch = dispatch
        self._gates = gates
        self._clock = clock
        self._take = take
        self._topic = topic

    def sight(self, line: Line, count: int) -> int:
        """How many items to have in sight for a call; and what was passed over may have room by now."""
        pair = line.namespace, line.topic
        if self._gates.by_key(pair) is None:
            return count
        is_over = self._clock.monotonic_s() >= line.aside_until_s
        if line.aside and (is_over or line.aside_turn != self._gates.of_keys.turn(pair)):
            line.forget()
        return max(count, LOOKED_AT_MAX) if count else 0

    async def serve(
        self,
        lines: Sequence[Line],
        counts: Sequence[int],
        holder: Holder,
        leased: Leased,
        tenant: Tenant | None,
    ) -> tuple[bool, float]:
        """Claim what the gates let through; whether to look for more at once, and how long to wait for room."""
        missed, again_s = False, math.inf
        until_s = self._clock.monotonic_s() + claiming.CLAIM_S_MAX
        for i, line in enumerate(lines):
            wanted = min(line.share(counts[i]), len(line.buffer))
            wanted = wanted if tenant is None else tenant.room(wanted)
            if not wanted:
                continue
            if tenant is not None:
                # Before anything is waited for: calls at once must not all find the same room.
                tenant.gain(Use(leased=wanted))
            got = set[str]()
            try:
                more, later_s = await self._serve_one(lines, i, wanted, holder, leased, got, until_s)
            finally:
                if tenant is not None:
                    tenant.gained(Use(leased=wanted), Use(leased=wanted - len(got)))
            missed, again_s = missed or more, min(again_s, later_s)
        return missed, again_s

    async def _serve_one(
        self,
        lines: Sequence[Line],
        i: int,
        wanted: int,
        holder: Holder,
        leased: Leased,
        got: set[str],
        until_s: float,
    ) -> tuple[bool, float]:
        """As `serve`, of one topic; the ids that were got come into `got`."""
        line, grant_token, lates_before = lines[i], new_token(), len(leased.late)
        granted = await self._gates.enter(
            line.namespace, line.topic, grant_token, wanted, 1 + line.others, within_s=self._left_s(until_s)
        )
        if not granted.items:
            return False, granted.again_s
        through, is_known, unknown_before = NOTHING, False, leased.unknown
        try:
            through = await self._through(line, granted.items, until_s)
            taken = [through.keys if j == i else [] for j in range(len(lines))]
            await self._claim(lines, taken, holder, leased, got)
            is_known = leased.unknown == unknown_before
            missed = len(got) < len(through.keys) or (bool(through.aside) and line.aside < ASIDE_MAX)
            return missed, through.again_s
        finally:
            late = leased.late[lates_before:]
            await self._left(line, grant_token, granted, through, got, late, is_known=is_known)

    def _left_s(self, until_s: float) -> float:
        return max(until_s - self._clock.monotonic_s(), HURRY_S)

    def _take_well(self, line: Line, wanted: int) -> list[Key]:
        """The keys to claim next; where others have some, none of shards that were late for the gate."""
        late = self._gates.late()
        if not late:
            return self._take(line, wanted)
        keys = self._take(line, max(wanted, LOOKED_AT_MAX))
        well = [key for key in keys if shard_of(key.id) not in late]
        if not well:
            for shard in late:
                line.buffer.skip(shard)  # its keys may hide those of others
            keys += (well := self._take(line, wanted))
        chosen = (well or keys)[:wanted]
        are_chosen = set(chosen)
        for shard, back in by_shard([key for key in keys if key not in are_chosen]).items():
            line.buffer.put_back(shard, back)
        return chosen

    async def _through(self, line: Line, wanted: int, until_s: float) -> Through:
        """The items to claim, as far as their fairness keys have room."""
        pair = line.namespace, line.topic
        limits = self._gates.by_key(pair)
        if limits is None:
            return Through(self._take_well(line, wanted), [], [], math.inf, {})
        turn = self._gates.of_keys.turn(pair)
        keys = self._take(line, LOOKED_AT_MAX)
        if not keys:
            return NOTHING
        try:
            within_s = self._left_s(until_s)
            found = await self._gates.of_keys.enter(pair, limits, keys, wanted, within_s=within_s)
        except BaseException:
            line.forget()  # else what was taken would never be met again
            raise
        for shard, back in by_shard(found.back).items():
            line.buffer.put_back(shard, back)
        if found.aside:
            # They stay taken, so that looks pass over them, until they are forgotten.
            room_s = self._clock.monotonic_s() + found.again_s
            line.aside_until_s = min(line.aside_until_s, room_s) if line.aside else room_s
            line.aside_turn = min(line.aside_turn, turn) if line.aside else turn
            line.aside += len(found.aside)
        return found

    async def _left(
        self,
        line: Line,
        grant_token: str,
        granted: Grant,
        through: Through,
        got: set[str],
        late: Sequence[asyncio.Future[None]],
        *,
        is_known: bool,
    ) -> None:
        """Also for a call that is cut short: nobody else knows of its grants. What is leased `late` takes its room
        until then; where it is not known what is leased, a key's gate asks for it."""
        pair = line.namespace, line.topic
        kept = got if is_known else {key.id for key in through.keys}

        async def leave() -> None:
            if late:
                await asyncio.wait(late)
            if through.granted:
                await self._gates.of_keys.leave(pair, through.granted, kept)
            if granted.is_kept:
                # What is leased late, and given back, may be there yet.
                at = None if late else set(by_shard(through.keys))
                await self._gates.leave(*pair, grant_token, granted.items - len(got), at=at)

        if late:
            self._dispatch.keep(leave())
        else:
            leaving = asyncio.ensure_future(leave())
            self._dispatch.keep(leaving)
            await asyncio.wait({leaving}, timeout=LEAVE_S_MAX)
            if leaving.done():
                leaving.result()
        if len(line.buffer):
            line.wake_one()

    async def _claim(
        self, lines: Sequence[Line], taken: Sequence[list[Key]], holder: Holder, leased: Leased, got: set[str]
    ) -> None:
        """Claim keys of one topic; the ids that were got, also by what fails then, come into `got`."""
        if not any(taken):
            return
        groups = await self._dispatch.claims.claim(lines, taken, holder, leased)
        leased.add_mixed(taken, [(group, self._topic(group)) for group in groups])
        got.update(item_id for group in groups for item_id in group.ids())
