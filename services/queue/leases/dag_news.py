"""What ends of items have done to DAGs in their own transaction, told once that is committed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from services.queue.model import Fold
from services.queue.settings import QueueSettings
from shared.clock import SystemClock
from shared.dag_notify import CHANGES_PAUSE_S, Voice, changed_channel, ended_channel, of_run
from shared.ids import ShardNo, dag_tags, time_ms_of
from shared.metrics import DAG_SECONDS, FOLDED, FOLDED_RELEASES

# By whether wide nodes are taken, put off or told, and whether ends are heard. Made once: putting flags
# together is slow.
_FOLDS = {
    (wide, is_heard): Fold.NODES | wide | (Fold.DAGS if is_heard else Fold.NOTHING)
    for wide in (Fold.NOTHING, Fold.WIDE, Fold.REFUSE_WIDE)
    for is_heard in (False, True)
}

_clock = SystemClock()


class Ends(Protocol):
    """How many ends were applied, how many items they have made ready, which DAGs they have ended, and which runs
    that are awake they have something to tell."""

    @property
    def folded(self) -> int: ...

    @property
    def revived(self) -> int: ...

    @property
    def ended(self) -> Sequence[str]: ...

    @property
    def awake(self) -> Sequence[str]: ...


class DagNews:
    """`endings` is told which DAGs have ended and which runs have news, `changes` the tags of those that have
    changed."""

    def __init__(self, settings: QueueSettings) -> None:
        self._folds = settings.fold_completions
        self._counters = cache(lambda shard: (FOLDED.labels(shard), FOLDED_RELEASES.labels(shard)))
        url, prefix = settings.redis_url, settings.redis_prefix
        self.endings = Voice(url, ended_channel(prefix))
        self.changes = Voice(url, changed_channel(prefix), pause_s=CHANGES_PAUSE_S)

    def folds(self, wide: Fold = Fold.NOTHING) -> Fold:
        """What ends of items may apply now. `wide`: what becomes of those that release many nodes."""
        return _FOLDS[wide, self.endings.is_heard] if self._folds else Fold.NOTHING

    def gone_on(self, shard: ShardNo, ids: Sequence[str], ends: Ends) -> None:
        """Tell what the ends of these items have done."""
        if not ends.folded:
            return
        folded, releases = self._counters(shard)
        folded.inc(ends.folded)
        releases.inc(ends.revived)
        if self.changes.is_heard:
            self.changes.tell(tag.decode() for tag in dag_tags(ids))
        if ends.awake:
            self.endings.tell(map(of_run, ends.awake))
        if ends.ended:
            self.endings.tell(ends.ended)
            now_s = _clock.wall_s()
            for dag_id in ends.ended:
                DAG_SECONDS.observe(max(0.0, now_s - time_ms_of(dag_id) / 1000))
