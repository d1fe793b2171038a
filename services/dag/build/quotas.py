"""How many unfinished DAGs a namespace may have, and nodes and edges in them: its own quotas, else the default's.

Checked in the transaction that adds, after what exists was recognised: a call that changes nothing is never
refused.
Quotas are read at most every `LOOK_S`, and so is the use of a namespace that has any, corrected by what this
process added since: one process is exact, several may together exceed a limit by what the others added in that
time. A sub-DAG is its parent's work and counts, but is not refused. Without limits the use is not read.
"""

from __future__ import annotations
from shared.ids import ShardNo

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Any

from services.dag import store
from services.dag.settings import DagSettings
from services.dag.store.reads import Limits
from shared.clock import Clock
from shared.errors import OverQuota, ShardUnavailable, something_done
from shared.lately import Lately
from shared.metrics import RATE_LIMITED
from shared.shards.shard_map import Shard, ShardMap

LOOK_S = 0.7
RETRY_S = 5.0
_NAMESPACES_MAX = 10_000
_NEVER_S = float("-inf")

Use = tuple[int, int, int]


class Quotas:
    """The quotas and the use of namespaces, as this process knows them."""

    def __init__(self, shards: ShardMap, settings: DagSettings, clock: Clock) -> None:
        self._shards = shards
        self._clock = clock
        self._default = Limits(
            settings.namespace_dags_max, settings.namespace_nodes_max, settings.namespace_edges_max
        )
        self._given: dict[ShardNo, list[tuple[str, Limits, datetime]]] = {}
        self._limits: dict[str, Limits] = {}
        self._read_s = _NEVER_S
        self._uses: Lately[str, list[int]] = Lately(_NAMESPACES_MAX)
        self._looked_s: Lately[str, float] = Lately(_NAMESPACES_MAX)
        self._seen: Lately[tuple[int, str], Use] = Lately(_NAMESPACES_MAX)

    def limits(self, namespace: str) -> Limits:
        """What a namespace may have, as last read."""
        given = self._limits.get(namespace)
        return self._default if given is None else given.over(self._default)

    def is_limited(self, namespace: str) -> bool:
        """True when there is a limit of any kind."""
        return self.limits(namespace) != Limits()

    async def look(self, namespace: str) -> None:
        """Read quotas, and the use of a namespace that has any, if that was not done lately; a shard that is away
        counts as last seen."""
        now_s = self._clock.monotonic_s()
        if now_s - self._read_s >= LOOK_S:
            await self._read(now_s)
        if self.is_limited(namespace) and now_s - (self._looked_s.get(namespace) or _NEVER_S) >= LOOK_S:
            await self._read_use(namespace)
            self._looked_s[namespace] = now_s

    def add(self, namespace: str, *, dags: int = 0, nodes: int = 0, edges: int = 0) -> None:
        """Count what is about to be written.

        Raises:
            OverQuota: it would be too much; nothing was written.
        """
        limits = self.limits(namespace)
        if limits == Limits():
            return
        use = self._uses.get(namespace) or [0, 0, 0]
        added = (dags, nodes, edges)
        for what, limit, have, more in zip(("DAGs", "nodes", "edges"), limits, use, added, strict=True):
            if limit is not None and more and have + more > limit:
                RATE_LIMITED.labels(what.lower()).inc()
                detail = f"the namespace would have {have + more} unfinished {what}; at most {limit} are taken"
                raise OverQuota(detail, retry_after_s=RETRY_S)
        self._uses[namespace] = [have + more for have, more in zip(use, added, strict=True)]

    async def set(self, namespace: str, limits: Limits) -> dict[str, Any]:
        """Give a namespace quotas of its own, on every shard; as `view`."""
        with something_done():  # by another shard
            await asyncio.gather(*(store.reads.set_quota(shard, namespace, limits) for shard in self._shards))
        return await self.view(namespace)

    async def view(self, namespace: str) -> dict[str, Any]:
        """A namespace's own quotas, the defaults, and its use, all read now."""
        await self._read(self._clock.monotonic_s())
        read = await self._read_use(namespace)
        given = self._limits.get(namespace, Limits())
        use = dict(zip(("dags", "nodes", "edges"), read, strict=True))
        return {"namespace": namespace, **given._asdict(), "default": self._default._asdict(), **use}

    async def _read(self, now_s: float) -> None:
        if self._read_s > _NEVER_S:
            # Who comes meanwhile goes by what was read before.
            self._read_s = now_s
        await asyncio.gather(*map(self._read_at, self._shards))
        self._read_s = now_s
        newest: dict[str, tuple[datetime, Limits]] = {}
        for rows in self._given.values():
            for name, limits, at in rows:
                if name not in newest or at > newest[name][0]:
                    newest[name] = (at, limits)
        self._limits = {name: limits for name, (_, limits) in newest.items()}

    async def _read_at(self, shard: Shard) -> None:
        with suppress(ShardUnavailable):
            self._given[shard.number] = await store.reads.quotas(shard)

    async def _read_use(self, namespace: str) -> list[int]:
        found = await asyncio.gather(*(self._use_at(shard, namespace) for shard in self._shards))
        use = [sum(column) for column in zip(*found, strict=True)]
        self._uses[namespace] = use
        return use

    async def _use_at(self, shard: Shard, namespace: str) -> Use:
        with suppress(ShardUnavailable):
            self._seen[shard.number, namespace] = await store.reads.namespace_use(shard, namespace)
        return self._seen.get((shard.number, namespace)) or (0, 0, 0)
