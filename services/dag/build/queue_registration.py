"""New nodes' items on their way to the queue.

Nodes are decided as they are written, before the queue has heard of them. Their `adding` row, written with them,
stands until the queue has everything; whoever has written them gives it at once, and what was left may be given by
anybody, any number of times, also by two at once: the queue knows items by their ids. A node that is released
before is enqueued where it cannot be revived, and the queue remembers the cancel of an item that it has not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from services.dag import queue_client, queue_items, store
from services.dag.errors import AddUnfinished, DagFinished, QueueUnavailable
from services.dag.model import TRANSITIONS, Added, Addition, Dag, Item, Lifts, Node, Send
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.run.priority import Ranks, ranks_of
from services.dag.store.create import NodeBatch
from services.dag.store.dags import WaitingItem
from shared import ids
from shared.crash import crash_point
from shared.errors import Unavailable, something_done
from shared.ids import ShardNo
from shared.postgres.batcher import Batcher, BatcherLimits
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

_TAKEN = frozenset({"enqueued", "duplicate"})
# Calls that are already written wait for the queue however long its line is.
_NEVER_S = float("inf")


class Ungiven(Exception):
    """A call names again what the queue may not have been given: drive those adds, then try again."""

    def __init__(self, additions: Sequence[Addition]) -> None:
        super().__init__()
        self.additions = additions


class Given(NamedTuple):
    """What a queue shard is given of an add: items as JSON text."""

    queue_shard: ShardNo
    texts: list[str]


class _Items(NamedTuple):
    """Items of one add, on their way."""

    namespace: str
    texts: list[str]


class QueueRegistrar:
    """Gives the queue what new nodes need, its own process's and what was left."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._ranks = Ranks(context)
        self._batchers: dict[ShardNo, Batcher[_Items, bool]] = {}
        self._running: dict[int, asyncio.Future[None]] = {}

    async def give(
        self, shard: Shard, dag: Dag, unfinished: Addition, given: Given, sends: Sequence[Send] = ()
    ) -> bool:
        """Give the queue the items of an add, and with them what its outbox rows in `sends` say. False when that
        took more than a call: others may have changed meanwhile how the nodes stand.

        Raises:
            AddUnfinished: the queue will be given them by and by.
        """
        mark = shard.number << 64 | unfinished.first_no
        edition = shard.history.edition
        done = self._running[mark] = asyncio.get_running_loop().create_future()
        try:
            [is_taken] = await self._batcher(given.queue_shard).submit(
                [_Items(dag.namespace, given.texts)], dag.namespace, size=self._size(given.texts)
            )
        except QueueUnavailable:
            is_taken = False
        finally:
            self._unmark(mark, done)
        crash_point("after_give")
        if shard.history.edition is not edition:
            raise unfinished_error()  # it may be lost, and its numbers be others'
        if is_taken:
            self._context.forget(shard, list(sends), [unfinished.first_no])
            return True
        self._context.dispatch(shard, list(sends))
        await self.drive(shard, unfinished)
        return False

    async def look_again(self, shard: Shard, unfinished: Addition) -> dict[str, Added]:
        """How the nodes of an add stand by now, by their keys.

        Raises:
            DagFinished: the DAG was cancelled meanwhile, and with it those of them that had not begun.
        """

        async def look(tx: Transaction) -> tuple[Dag, list[Node]]:
            [dag] = await store.dags.lock_dag_nos(tx, [unfinished.dag_no])
            return dag, await store.dags.nodes_between(tx, *unfinished, list(TRANSITIONS))

        with something_done():
            dag, nodes = await shard.pool.transaction(look)
            if dag.state != "running" and any(node.state == "cancelled" for node in nodes):
                raise DagFinished("the DAG was cancelled while nodes were added to it; they are cancelled too")
        return {node.key: Added(node.key, node.item_id, node.state) for node in nodes}

    async def give_batch(self, shard: Shard, batch: NodeBatch) -> bool:
        """Give the queue the items of nodes just written, also of those that are released; otherwise as `give`."""
        dag = batch.dag
        sends = [_send(batch, n) for n in batch.released]
        given_now = batch.given
        if len(sends) == len(given_now):
            # The queue need not know of anything first.
            self._context.dispatch(shard, sends)
            return True
        lifts = self._lifts(batch) if dag.lifted else {}
        given = Given(ids.shard_of(batch.item_ids[0]), _texts(shard, batch, given_now, lifts))
        return await self.give(shard, dag, batch.addition, given, sends)

    def _lifts(self, batch: NodeBatch) -> Mapping[int, int]:
        """By how much the priorities of these items are lowered, by their places."""
        dag, columns = batch.dag, batch.columns
        lifts = {n: dag.started_lift for n, left in enumerate(columns.lefts) if left or dag.started}
        if dag.path_lift and len(columns.ups) <= self._settings.priority_edges_max:
            for n, rank in ranks_of(zip(columns.ups, columns.downs, strict=True)).items():
                lifts[n] = lifts.get(n, 0) + dag.path_lift * min(rank, self._settings.priority_levels_max)
        return lifts

    def _size(self, texts: Sequence[str]) -> int:
        """What items count for in a call: a call of `send_bytes_max` is as full as one of `send_items_max`."""
        bytes_max = self._settings.send_bytes_max
        return max(len(texts), sum(map(len, texts)) * self._settings.send_items_max // bytes_max)

    def _batcher(self, queue_shard: ShardNo) -> Batcher[_Items, bool]:
        if queue_shard not in self._batchers:
            limits = BatcherLimits(self._settings.send_items_max, waiting_max=1 << 62, wait_s=_NEVER_S)
            self._batchers[queue_shard] = Batcher(self._flush, limits)
        return self._batchers[queue_shard]

    async def _flush(self, gives: list[_Items]) -> list[bool]:
        """Whether the queue has taken all items of each."""
        is_taken: dict[int, bool] = {}
        by_namespace: dict[str, list[int]] = {}
        for i, give in enumerate(gives):
            by_namespace.setdefault(give.namespace, []).append(i)
        for namespace, places in by_namespace.items():
            texts = list(chain.from_iterable([gives[i].texts for i in places]))
            answers = iter(await self._context.queue.enqueue(namespace, texts))
            for i in places:
                statuses = {answer.status for answer in islice(answers, len(gives[i].texts))}
                is_taken[i] = statuses <= _TAKEN
        return [is_taken[i] for i in range(len(gives))]

    async def drive(self, shard: Shard, unfinished: Addition) -> None:
        """Bring an add call to its end, or wait for the one who is at it.

        Raises:
            AddUnfinished: that was not possible now.
        """
        mark = shard.number << 64 | unfinished.first_no
        running = self._running.get(mark)
        if running is not None:
            try:
                async with asyncio.timeout(self._settings.drive_wait_s):
                    await asyncio.shield(running)
                return
            except TimeoutError:
                raise unfinished_error() from None
        done = self._running[mark] = asyncio.get_running_loop().create_future()
        try:
            await self._give_again(shard, unfinished)
        except Unavailable as error:
            raise unfinished_error() from error
        finally:
            self._unmark(mark, done)

    def _unmark(self, mark: int, done: asyncio.Future[None]) -> None:
        if self._running.get(mark) is done:
            del self._running[mark]
        done.set_result(None)

    async def _give_again(self, shard: Shard, unfinished: Addition) -> None:
        """Give what still waits; a node whose item the queue will never take ends."""

        async def look(tx: Transaction) -> tuple[Dag, list[WaitingItem]]:
            [dag] = await store.dags.lock_dag_nos(tx, [unfinished.dag_no])
            return dag, await store.dags.waiting_items(tx, left, self._settings.send_bytes_max)

        async def end(tx: Transaction) -> tuple[Settlement, None]:
            [dag] = await store.dags.lock_dag_nos(tx, [unfinished.dag_no])
            settlement = Settlement(tx, [dag], self._settings, self._context.home(shard))
            for node in await store.dags.nodes_between(tx, *unfinished, ["blocked"]) if ends else ():
                if node.no in ends and node.enqueued:
                    settlement.end(node, *ends[node.no])
            await store.duties.delete_adding(tx, unfinished)
            await settlement.run()
            return settlement, None

        edition = shard.history.edition
        ends: dict[int, tuple[str, str | None]] = {}
        left = unfinished
        while left.first_no <= left.last_no:
            dag, waiting = await shard.pool.transaction(look)
            ends |= await self._give_waiting(shard, dag, waiting)
            left = left._replace(first_no=waiting[-1].no + 1 if waiting else left.last_no + 1)
        shard.history.check(edition)
        await self._context.settle(shard, end)

    async def _give_waiting(
        self, shard: Shard, dag: Dag, waiting: Sequence[WaitingItem]
    ) -> dict[int, tuple[str, str | None]]:
        """Enqueue, disabled, what waits; how those end that the queue will never take."""
        ends: dict[int, tuple[str, str | None]] = {}
        for _ in range(3):
            if not waiting:
                return ends
            answers = await self._enqueue(shard, dag, waiting)
            old = []
            for item, (status, code, final) in zip(waiting, answers, strict=True):
                if status == "cancelled":
                    ends[item.no] = ("cancelled", None)
                elif status == "refused" and code in ("id_too_old", queue_client.SHARD_REMOVED):
                    old.append(item)
                elif status == "refused" and final:
                    ends[item.no] = ("failed", f"the queue refused the item: {code}")
                elif status == "refused":
                    raise unfinished_error()
            waiting = await self._renew(shard, dag, old)
        raise unfinished_error()

    async def _enqueue(self, shard: Shard, dag: Dag, waiting: Sequence[WaitingItem]) -> list[queue_client.Answer]:
        lifts = Lifts(dag.started_lift, dag.path_lift, dag.structure_version) if dag.lifted else None
        items = {i.no: Item(dag.id, i.key, i.spec, lifts) for i in waiting}
        lifted = await self._ranks.lift(shard, items)
        texts = [
            queue_items.item_text(
                items[i.no], i.item_id, i.generation, shard.number, disabled=True, lift=lifted.get(i.no, 0)
            )
            for i in waiting
        ]
        return await self._context.queue.enqueue(dag.namespace, texts)

    async def _renew(self, shard: Shard, dag: Dag, old: Sequence[WaitingItem]) -> list[WaitingItem]:
        """New ids for nodes whose ids grew too old, or whose shard was removed, before the queue had seen them;
        how those stand that still wait."""
        if not old:
            return []
        queue_shard = await self._context.queue_shard(shard)
        fresh = ids.with_dag_tag(ids.new_ids(queue_shard, len(old)), dag.id)

        async def work(tx: Transaction) -> list[WaitingItem]:
            await store.dags.lock_dag_nos(tx, [dag.no])
            await store.dags.renew_waiting(tx, old, fresh)
            # Another one who drives the same add may have been first, and a node may have moved on.
            among = Addition(old[0].no, old[-1].no)
            waiting = await store.dags.waiting_items(tx, among, self._settings.send_bytes_max)
            return [item for item in waiting if item.no in nos]

        nos = {item.no for item in old}
        return await shard.pool.transaction(work)


def unfinished_error() -> AddUnfinished:
    """What a call answers when its nodes are written and the queue could not be given their items now."""
    return AddUnfinished(
        "nodes are written, and are being added by and by; the same call again tells when",
        outcome="unknown",
        retry_after_s=1.0,
    )


def _send(batch: NodeBatch, n: int) -> Send:
    """The outbox row of a node that is released at once."""
    dag, item_id = batch.dag, batch.item_ids[n]
    # A node that asks for outputs and has nothing above it is given none.
    inputs = "{}" if batch.columns.passes[n] else None
    # Sent by itself, a lifted item is worked out by how its DAG stands then.
    item = None if dag.lifted else Item(dag.id, batch.columns.keys[n], batch.columns.items[n])
    return Send(dag.node_no(batch.first_n + n), 1, "enqueue", item_id, dag.namespace, inputs, item)


def _texts(shard: Shard, batch: NodeBatch, places: Iterable[int], lifts: Mapping[int, int]) -> list[str]:
    """What the queue is given."""
    dag, columns, released = batch.dag, batch.columns, set(batch.released)
    return [
        queue_items.item_text(
            Item(dag.id, columns.keys[n], columns.items[n]),
            batch.item_ids[n],
            1,
            shard.number,
            disabled=n not in released,
            inputs="{}" if columns.passes[n] and n in released else None,
            lift=lifts.get(n, 0),
        )
        for n in places
    ]
