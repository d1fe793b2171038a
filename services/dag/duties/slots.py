"""Slots of schedules that are due, and those whose turn has come, are decided.

The rows decide. The shard's owner looks for schedules with a slot that is due soon, is woken for the next of
them, and decides each under its schedule's lock. Slots that wait for a run to end have their turn within a look
of it.
"""

from __future__ import annotations

from typing import Final

from services.dag import store
from services.dag.run.context import Context
from services.dag.schedules.ticking import Ticker
from shared.errors import Unavailable
from shared.ids import ShardNo
from shared.loop import part_failed
from shared.shards.shard_map import Shard

# Of one schedule in a row, so that others come in between.
_TURNS_PER_ROUND: Final = 10
_SCHEDULES_PER_STEP: Final = 100
_BUSY_S: Final = 0.5
_TROUBLED_S: Final = 10.0


class Slots:
    """Decides slots."""

    def __init__(self, context: Context, ticker: Ticker) -> None:
        self._context = context
        self._ticker = ticker
        self._ahead_s = context.short_timers.ahead_s
        self._turned_to: dict[ShardNo, int] = {}

    async def step(self, shard: Shard) -> int:
        """Decide what is due, of so many schedules; how many slots that were, or stretches of them."""
        found = await store.schedules.soon(shard, ahead_s=self._ahead_s, rows_max=_SCHEDULES_PER_STEP)
        done = 0
        for no, namespace, in_s in found:
            if in_s <= 0:
                done += await self._decide(shard, no, namespace)
        done += await self._give_turns(shard)
        later_s = [in_s for _, _, in_s in found if in_s > 0]
        if later_s and self._context.ownership.owns(shard.number):
            self._context.wakers[shard.number].slots.kick_in(min(later_s))
        return done

    async def _give_turns(self, shard: Shard) -> int:
        """Of more schedules than one look takes, each look goes on where the last one ended."""
        after_no = self._turned_to.get(shard.number, 0)
        turns = await store.schedules.turns(shard, after_no, _SCHEDULES_PER_STEP)
        done = 0
        for no, namespace in turns.due:
            done += await self._decide(shard, no, namespace)
        self._turned_to[shard.number] = turns.last_no if turns.is_full else 0
        return done

    async def _decide(self, shard: Shard, no: int, namespace: str) -> int:
        done = 0
        try:
            while done < _TURNS_PER_ROUND and await self._ticker.step(shard, no, namespace):
                done += 1
        except Exception as error:
            # One schedule's trouble must not hold up the others; its row is still there.
            part_failed("a slot could not be decided", error, shard=shard.number, schedule_no=no)
            pause_s = _BUSY_S if isinstance(error, Unavailable) else _TROUBLED_S
            await store.schedules.put_off(shard, no, pause_s)
        return done
