"""How many unfinished DAGs a namespace may have, and nodes and edges in them: its own quotas, else the default's.

Checked in the transaction that adds, after what exists was recognised: a call that changes nothing is never
refused.
Quotas are read at most every `LOOK_S`, and so is the use of a namespace that has any, corrected by what this
process added since: one process takes no more than a limit, several may together exceed it by what the others
added in that time. What was being added while the use was read counts beside that until the next time: it is not
known whether it was seen. A sub-DAG is its parent's work and counts, but is not refused. Without limits the use is
not read.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from services.dag import store
from services.dag.settings import DagSettings
from services.dag.store.reads import Limits
from shared.clock import Clock
from shared.errors import OverQuota, ShardUnavailable, something_done
from shared.ids import ShardNo
from shared.lately import Lately
from shared.metrics import RATE_LIMITED
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard, ShardMap

LOOK_S = 0.7
RETRY_S = 5.0
_NAMESPACES_MAX = 10_000
_NEVER_S = float("-inf")


class Use(NamedTuple):
    """Unfinished DAGs, and the nodes and edges in them."""

    dags: int = 0
    nodes: int = 0
    edges: int = 0

    def plus(self, other: Use) -> Use:
        return Use(self.dags + other.dags, self.nodes + other.nodes, self.edges + other.edges)

    def minus(self, other: Use) -> Use:
        return Use(self.dags - other.dags, self.nodes - other.nodes, self.edges - other.edges)


class _Tenant:
    """What a namespace has: as last read, and corrected by what this process added since."""

    def __init__(self) -> None:
        self._known = Use()
        self._added = self._added_before = self._on_its_way = Use()

    @property
    def use(self) -> Use:
        return self._known.plus(self._added.minus(self._added_before))

    def add(self, use: Use) -> None:
        """This is about to be written; `ended` follows."""
        self._added = self._added.plus(use)
        self._on_its_way = self._on_its_way.plus(use)

    def ended(self, use: Use) -> None:
        """What was to be written is committed, or is not."""
        self._on_its_way = self._on_its_way.minus(use)

    def marked(self) -> Use:
        """To be passed to `read`: what a look that begins now will surely see of what was added."""
        return self._added.minus(self._on_its_way)

    def read(self, known: Use, added_before: Use) -> None:
        """The shards were looked at."""
        self._known, self._added_before = known, added_before


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
        self._tenants: Lately[str, _Tenant] = Lately(_NAMESPACES_MAX)
        self._looked_s: Lately[str, float] = Lately(_NAMESPACES_MAX)
        self._gates: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
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
        if self.is_limited(namespace) and self._is_old(namespace, now_s):
            await self._read_use(namespace, now_s)

    def add(self, tx: Transaction, namespace: str, *, dags: int = 0, nodes: int = 0, edges: int = 0) -> None:
        """Count what is about to be written in a transaction.

        Raises:
            OverQuota: it would be too much; nothing was written.
        """
        limits = self.limits(namespace)
        if limits == Limits():
            return
        tenant, added = self._tenant(namespace), Use(dags, nodes, edges)
        for what, limit, have, more in zip(("DAGs", "nodes", "edges"), limits, tenant.use, added, strict=True):
            if limit is not None and more and have + more > limit:
                RATE_LIMITED.labels(what.lower()).inc()
                detail = f"the namespace would have {have + more} unfinished {what}; at most {limit} are taken"
                raise OverQuota(detail, retry_after_s=RETRY_S)
        tenant.add(added)
        tx.at_end.append(lambda: tenant.ended(added))

    async def set(self, namespace: str, limits: Limits) -> dict[str, Any]:
        """Give a namespace quotas of its own, on every shard; as `view`."""
        with something_done():  # by another shard
            await asyncio.gather(*(store.reads.set_quota(shard, namespace, limits) for shard in self._shards))
        return await self.view(namespace)

    async def view(self, namespace: str) -> dict[str, Any]:
        """A namespace's own quotas, the defaults, and its use, all read now."""
        await self._read(self._clock.monotonic_s())
        use = await self._read_use(namespace)
        given = self._limits.get(namespace, Limits())
        return {"namespace": namespace, **given._asdict(), "default": self._default._asdict(), **use._asdict()}

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

    async def _read_use(self, namespace: str, wanted_s: float | None = None) -> Use:
        """The use of a namespace, as read now, or by who was at it when this was `wanted_s`: what several read at
        once would count twice what one of them adds before another has read."""
        gate = self._gates.get(namespace)
        if gate is None:
            gate = self._gates[namespace] = asyncio.Lock()
        async with gate:
            tenant = self._tenant(namespace)
            if wanted_s is not None and not self._is_old(namespace, wanted_s):
                return tenant.use
            begun_s, marked = self._clock.monotonic_s(), tenant.marked()
            found = await asyncio.gather(*(self._use_at(shard, namespace) for shard in self._shards))
            use = Use(*map(sum, zip(*found, strict=True)))
            tenant.read(use, marked)
            self._looked_s[namespace] = begun_s
            return use

    def _tenant(self, namespace: str) -> _Tenant:
        found = self._tenants.get(namespace)
        if found is None:
            found = self._tenants[namespace] = _Tenant()
        return found

    def _is_old(self, namespace: str, now_s: float) -> bool:
        return now_s - (self._looked_s.get(namespace) or _NEVER_S) >= LOOK_S

    async def _use_at(self, shard: Shard, namespace: str) -> Use:
        with suppress(ShardUnavailable):
            self._seen[shard.number, namespace] = Use(*await store.reads.namespace_use(shard, namespace))
        return self._seen.get((shard.number, namespace)) or Use()
