"""How many unfinished DAGs, and nodes and edges in them, a namespace may have; the same for every namespace.

Checked in transaction A, after what exists was recognised, so that a call which changes nothing is never refused.
The use is read at most every `LOOK_S` and corrected by what this process added since: one process is exact,
several may together exceed a limit by what the others added in that time. A sub-DAG is its parent's work and
counts, but is not refused. Without limits, the default, nothing is read.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from services.dag import store_reads
from services.dag.settings import DagSettings
from shared.clock import Clock
from shared.errors import OverQuota, ShardUnavailable
from shared.metrics import RATE_LIMITED
from shared.shards import Shard, ShardMap

LOOK_S = 0.7
RETRY_S = 5.0
_NAMESPACES_MAX = 10_000

Use = tuple[int, int, int]


class Quotas:
    """The use of namespaces, as this process knows it."""

    def __init__(self, shards: ShardMap, settings: DagSettings, clock: Clock) -> None:
        self._shards = shards
        self._clock = clock
        limits = (settings.namespace_dags_max, settings.namespace_nodes_max, settings.namespace_edges_max)
        self._limits = tuple(zip(("DAGs", "nodes", "edges"), limits, strict=True))
        self.is_limited = any(limit is not None for limit in limits)
        self._uses: dict[str, list[int]] = {}
        self._looked_s: dict[str, float] = {}
        self._seen: dict[tuple[int, str], Use] = {}

    async def look(self, namespace: str) -> None:
        """Read the use of a namespace, if that was not done lately; a shard that is away counts as last seen."""
        now_s = self._clock.monotonic_s()
        if not self.is_limited or now_s - self._looked_s.get(namespace, float("-inf")) < LOOK_S:
            return
        if len(self._looked_s) >= _NAMESPACES_MAX:
            self._looked_s.clear()
            self._seen.clear()
        found = await asyncio.gather(*(self._at(shard, namespace) for shard in self._shards))
        self._uses[namespace] = [sum(column) for column in zip(*found, strict=True)]
        self._looked_s[namespace] = now_s

    def add(self, namespace: str, *, dags: int = 0, nodes: int = 0, edges: int = 0) -> None:
        """Count what is about to be written.

        Raises:
            OverQuota: it would be too much; nothing was written.
        """
        if not self.is_limited:
            return
        use = self._uses.setdefault(namespace, [0, 0, 0])
        added = (dags, nodes, edges)
        for (what, limit), have, more in zip(self._limits, use, added, strict=True):
            if limit is not None and more and have + more > limit:
                RATE_LIMITED.labels(what.lower()).inc()
                detail = f"the namespace would have {have + more} unfinished {what}; at most {limit} are taken"
                raise OverQuota(detail, retry_after_s=RETRY_S)
        self._uses[namespace] = [have + more for have, more in zip(use, added, strict=True)]

    async def _at(self, shard: Shard, namespace: str) -> Use:
        with suppress(ShardUnavailable):
            self._seen[shard.number, namespace] = await store_reads.namespace_use(shard, namespace)
        return self._seen.get((shard.number, namespace), (0, 0, 0))
