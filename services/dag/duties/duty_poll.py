"""One look at a shard for several duties: those that have something to do are woken.

The tables of what is left to do are empty most of the time, and asking each of them by itself, twice a second, was
most of what an idle process cost. Each duty also does its step now and then without being woken.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.dag import store
from services.dag.duties.sweeper import TALLY_ROWS_MIN
from services.dag.run.context import Context
from shared.loop import Loop
from shared.shards.shard_map import Shard


class DutyPoll:
    """Looks at one shard and wakes its duties: `outbox`, `walks`, `sweep`, `timers` and `slots`."""

    def __init__(self, context: Context, shard: Shard, duties: Mapping[str, Loop]) -> None:
        self._ahead_s = context.short_timers.ahead_s
        self._settings = context.settings
        self._shard = shard
        self._duties = duties

    async def step(self) -> int:
        """Wake who has something to do; 0, since that goes on by itself."""
        found = await store.duties.poll_duties(
            self._shard,
            stopped_s=self._settings.stopped_add_s,
            tally_rows_min=TALLY_ROWS_MIN,
            ahead_s=self._ahead_s,
        )
        for name, loop in self._duties.items():
            if getattr(found, name):
                loop.kick()
        return 0
