"""Gates of topics and keys that hold nothing back any more: they are removed, and made anew when they are needed.

A gate of a key may still name items that it let through, and of which nobody has said that they ended; they are
looked for on their shards. One that is there too long is one row, and one that is removed holds nothing.
"""

from __future__ import annotations

import json

from services.queue.gates.key_gates import KeyGates
from services.queue.settings import QueueSettings
from services.queue.store import gates as rows
from services.queue.store.shard_store import Store
from shared.postgres.connections import Transaction

# Each is asked for as many items as may be in flight of a key, at most.
GATES_MAX = 100


class IdleGates:
    """The duty of one shard."""

    def __init__(self, store: Store, gates: KeyGates, settings: QueueSettings) -> None:
        self._store = store
        self._gates = gates
        self._limit = min(settings.chunk_items_max, GATES_MAX)

    async def step(self) -> int:
        """Look at some gates; how many, or 0 if those were all."""

        async def work(tx: Transaction) -> int:
            idle = await rows.idle(tx, self._limit)
            if not idle:
                return 0
            held = {(gate.namespace, gate.topic, gate.key): json.loads(gate.held) for gate in idle}
            newest = max(int(items.pop("map", 0)) for items in held.values())
            ids = [item_id for items in held.values() for item_id in items]
            leased = await self._gates.leased(ids, self._store, tx, newest) if ids else set()
            judged = []
            for gate in idle:
                items = held[gate.namespace, gate.topic, gate.key]
                left = {item_id: until_s for item_id, until_s in items.items() if item_id in leased}
                judged.append(gate._replace(held=json.dumps({**left, "map": newest} if left else {})))
            await rows.end_idle(tx, judged)
            return len(idle)

        looked_at = await self._store.pool.transaction(work)
        return looked_at if looked_at == self._limit else 0
