"""The second half of every add: what must wait is made known to the queue, then B decides the nodes.

May be done by anybody, any number of times, also by two at once: the queue knows items by their ids, and B
decides only nodes that are still `intent`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.dag import gateway, items, store, store_duties
from services.dag.context import Context
from services.dag.errors import AddUnfinished
from services.dag.model import TRANSITIONS, Added, Addition, Dag, Item
from services.dag.settling import Settlement
from services.dag.store import IntentItem
from shared import ids
from shared.crash import crash_point
from shared.errors import Unavailable
from shared.pg import Transaction
from shared.shards import Shard


class Undecided(Exception):
    """A call names nodes of adds that are not decided yet: drive those, then try again."""

    def __init__(self, additions: Sequence[Addition]) -> None:
        super().__init__()
        self.additions = additions


# Of so many nodes those that surely wait are decided by the shard, which costs a statement more.
TOGETHER_MIN = 100


class Activator:
    """Finishes add calls, its own process's and stopped ones."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._running: dict[tuple[int, int], asyncio.Future[None]] = {}

    async def drive(self, shard: Shard, unfinished: Addition) -> None:
        """Bring an add call to its end, or wait for the one who is at it.

        Raises:
            AddUnfinished: that was not possible now.
        """
        running = self._running.get((shard.number, unfinished.first_no))
        if running is None:
            await self._resume(shard, unfinished)
            return
        try:
            async with asyncio.timeout(self._settings.drive_wait_s):
                await asyncio.shield(running)
        except TimeoutError:
            raise unfinished_error() from None

    async def _resume(self, shard: Shard, unfinished: Addition) -> None:
        async def work(tx: Transaction) -> tuple[Dag, list[IntentItem]]:
            [dag] = await store.lock_dag_nos(tx, [unfinished.dag_no])
            intents = await store.intent_items(tx, unfinished)
            if not intents:
                await store_duties.delete_adding(tx, unfinished)
            return dag, intents

        dag, intents = await shard.pool.transaction(work)
        if intents:
            await self.finish(shard, dag, intents, unfinished)

    async def finish(
        self,
        shard: Shard,
        dag: Dag,
        intents: Sequence[IntentItem],
        unfinished: Addition | None = None,
    ) -> tuple[Dag, dict[str, Added]]:
        """Give the queue what must wait, then decide all nodes of the add; how they stand."""
        unfinished = unfinished or Addition(intents[0].no, intents[-1].no)
        mark = (shard.number, unfinished.first_no)
        done = self._running[mark] = asyncio.get_running_loop().create_future()
        try:
            crash_point("after_a")
            ends = await self._give_disabled(shard, dag, intents)
            crash_point("before_b")
            decided = await self._decide(shard, unfinished, intents, ends)
            crash_point("after_b")
            return decided
        except Unavailable as error:
            raise unfinished_error() from error
        finally:
            if self._running.get(mark) is done:
                del self._running[mark]
            done.set_result(None)

    async def _give_disabled(
        self, shard: Shard, dag: Dag, intents: Sequence[IntentItem]
    ) -> dict[int, tuple[str, str | None]]:
        """Enqueue, disabled, what must wait; how those end that the queue will never take."""
        ends: dict[int, tuple[str, str | None]] = {}
        waiting = [intent for intent in intents if intent.enqueued]
        for _ in range(3):
            if not waiting:
                return ends
            answers = await self._enqueue(shard, dag, waiting)
            old = []
            for intent, (status, code, final) in zip(waiting, answers, strict=True):
                if status == "cancelled":
                    ends[intent.no] = ("cancelled", None)
                elif status == "refused" and code == "id_too_old":
                    old.append(intent)
                elif status == "refused" and final:
                    ends[intent.no] = ("failed", f"the queue refused the item: {code}")
                elif status == "refused":
                    raise unfinished_error()
            waiting = await self._renew(shard, dag, old)
        raise unfinished_error()

    async def _enqueue(self, shard: Shard, dag: Dag, intents: Sequence[IntentItem]) -> list[gateway.Answer]:
        texts = [
            items.item_text(Item(dag.id, i.key, i.spec), i.item_id, i.generation, shard.number, disabled=True)
            for i in intents
        ]
        return await self._context.queue.enqueue(dag.namespace, texts)

    async def _renew(self, shard: Shard, dag: Dag, old: Sequence[IntentItem]) -> list[IntentItem]:
        """New ids for nodes whose ids grew too old before the queue had seen them."""
        if not old:
            return []
        queue_shard = await self._context.queue_shard(shard)
        fresh = ids.kin(ids.new_ids(queue_shard, len(old)), dag.id)
        renewed = [intent._replace(item_id=item_id) for intent, item_id in zip(old, fresh, strict=True)]

        async def work(tx: Transaction) -> None:
            await store.lock_dag_nos(tx, [dag.no])
            await store.renew_intent(tx, {intent.no: intent.item_id for intent in renewed})

        await shard.pool.transaction(work)
        return renewed

    async def _decide(
        self,
        shard: Shard,
        unfinished: Addition,
        intents: Sequence[IntentItem],
        ends: dict[int, tuple[str, str | None]],
    ) -> tuple[Dag, dict[str, Added]]:
        async def work(tx: Transaction) -> tuple[Settlement, tuple[Dag, dict[str, Added]]]:
            [dag] = await store.lock_dag_nos(tx, [unfinished.dag_no])
            settlement = Settlement(tx, [dag], self._settings)
            count = unfinished.last_no - unfinished.first_no + 1
            found: list[Added] = []
            if count >= TOGETHER_MIN and not ends and dag.state == "running":
                found = await store.block_waiting(tx, *unfinished)
                settlement.activated(dag, len(found))
            nodes = [] if len(found) == count else await store.nodes_between(tx, *unfinished, list(TRANSITIONS))
            for node in nodes:
                if node.state == "blocked" and node.no in ends and node.enqueued:
                    settlement.end(node, *ends[node.no])
                if node.state != "intent":
                    continue
                if dag.state != "running":
                    settlement.end(node, "cancelled")
                elif node.no in ends:
                    settlement.end(node, *ends[node.no])
                else:
                    settlement.activate(node)
            await store_duties.delete_adding(tx, unfinished)
            await settlement.run()
            attach_items(settlement, dag, intents)
            found += [Added(node.key, node.item_id, node.state) for node in nodes]
            return settlement, (dag, {node.key: node for node in found})

        return await self._context.settle(shard, work)


def unfinished_error() -> AddUnfinished:
    """What a call answers when its nodes are written and cannot be decided now."""
    return AddUnfinished(
        "nodes are written, and are being added by and by; the same call again tells when",
        outcome="unknown",
        retry_after_s=1.0,
    )


def attach_items(settlement: Settlement, dag: Dag, intents: Sequence[IntentItem]) -> None:
    """Hand the relay the items that it would otherwise have to read back."""
    if dag.lifted:
        return
    wanted = {send.no: send for send in settlement.sends if send.action == "enqueue"}
    for intent in intents if wanted else ():
        if (send := wanted.get(intent.no)) is not None:
            send.item = Item(dag.id, intent.key, intent.spec)
