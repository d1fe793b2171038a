"""The outbox's sender: tells the queue what transactions decided.

Rows come from memory, right after the commit that wrote them, or from the shard when they are overdue
(after a crash, or when the queue was away; a process that is busy telling many looks for those more seldom).
Each route (namespace, action, queue shard) sends everything that waits in it in one call, and the next call
when that one ends: one node alone waits for nobody, a thousand cost one call. What was told is deleted;
telling twice has no further effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple

from services.dag import queue_items, store
from services.dag.build.subdags import SUB_DAG_ACTIONS, SubDags
from services.dag.model import Ref, Send
from services.dag.queue_client import SHARD_REMOVED, Answer
from services.dag.run.completions import Completer
from services.dag.run.context import Context, Sender
from services.dag.run.priority import Ranks
from shared import ids
from shared.crash import crash_point
from shared.errors import Unavailable
from shared.ids import ShardNo
from shared.log import log
from shared.loop import part_failed
from shared.metrics import OUTBOX_ROWS
from shared.postgres.history import Edition
from shared.shards.shard_map import Shard

_TOLD = frozenset({"enqueued", "duplicate", "revived", "already_enabled", "finished"})
_LOST = frozenset({"id_too_old", SHARD_REMOVED})
_CANCELLED = frozenset({"cancelled", "already_cancelled"})

# For how long told rows are gathered before they are deleted; telling once more would have no effect.
DELETES_GATHER_S = 0.025

_RowKey = tuple[int, int, int, str, Edition]


class _Route(NamedTuple):
    """What goes in one call. A large DAG's fan-out does not hold up what others have to tell: it is `bulk`."""

    namespace: str
    action: str
    queue_shard: ShardNo
    bulk: bool


class _Entry(NamedTuple):
    """A row, in the edition of its shard in which it was met: in another its number is another node's."""

    shard: Shard
    send: Send
    edition: Edition

    @property
    def key(self) -> _RowKey:
        return (self.shard.number, self.send.no, self.send.generation, self.send.action, self.edition)

    @property
    def bytes(self) -> int:
        """About what it takes in memory."""
        item = self.send.item
        return 256 + sum(map(len, (self.send.inputs or "", self.send.retry or "", item.spec if item else "")))

    @property
    def stands(self) -> bool:
        return self.shard.history.edition is self.edition


class Relay(Sender):
    """Sends outbox rows. `drain` applies every completion of a shard that waits in the queue."""

    def __init__(
        self,
        context: Context,
        completer: Completer,
        sub_dags: SubDags,
        drain: Callable[[Shard], Awaitable[None]],
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._completer = completer
        self._sub_dags = sub_dags
        self._drain = drain
        self._ranks = Ranks(context)
        self._routes: dict[_Route, deque[_Entry]] = {}
        self._sent: dict[ShardNo, list[Send]] = {}
        self._added: dict[int, list[int]] = {}
        self._held: set[_RowKey] = set()
        self._lost_since_s: dict[_RowKey, float] = {}
        self._looked_s: dict[ShardNo, float] = {}  # by shard
        self._slots = asyncio.Semaphore(self._settings.sends_in_flight_max)
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0
        self._closing = asyncio.Event()
        context.senders.append(self)

    def dispatch(self, shard: Shard, sends: Sequence[Send]) -> None:
        """Send rows now; those that are being sent already are left out, and, while too much waits, those that are
        overdue soon."""
        bulk = len(sends) >= self._settings.bulk_sends_min
        for send in sends:
            entry = _Entry(shard, send, shard.history.edition)
            if entry.key in self._held or self._waiting_bytes >= self._settings.sends_waiting_bytes_max:
                continue
            self._held.add(entry.key)
            self._waiting_bytes += entry.bytes
            route = _Route(send.namespace, send.action, ids.shard_of(send.item_id), bulk)
            if route in self._routes:
                self._routes[route].append(entry)
            else:
                self._routes[route] = deque([entry])
                self._spawn(self._run_route(route))

    async def step(self, shard: Shard) -> int:
        """Take rows that nobody has sent in time; how many there were."""
        on_way = sum(1 for key in self._held if key[0] == shard.number)
        OUTBOX_ROWS.labels(shard.number).set(on_way)
        if self._passes_over(shard, on_way):
            return 0
        overdue = await store.duties.claim_overdue(
            shard,
            rows_max=self._settings.overdue_rows_max,
            bytes_max=self._settings.send_bytes_max,
            retry_s=self._settings.overdue_s,
            retry_s_max=self._settings.retry_s_max,
        )
        self.dispatch(shard, overdue)
        return len(overdue)

    def _passes_over(self, shard: Shard, on_way: int) -> bool:
        """While many rows are on their way from here, the overdue ones are these: to claim them is to write
        each once more, for nothing. What others left undone is then looked for less often."""
        now_s = self._context.clock.monotonic_s()
        looked_s = self._looked_s.get(shard.number, -inf)
        if on_way >= self._settings.bulk_sends_min and now_s - looked_s < self._settings.retry_s_max:
            return True
        self._looked_s[shard.number] = now_s
        return False

    async def close(self) -> None:
        """Wait for what is on its way; what is not stays in the outbox."""
        self._closing.set()
        for route in self._routes.values():
            self._waiting_bytes -= sum(entry.bytes for entry in route)
            route.clear()
        await self.idle()

    async def idle(self) -> None:
        """Wait until nothing is on its way."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_route(self, route: _Route) -> None:
        waiting = self._routes[route]
        count_max = self._settings.bulk_send_items_max if route.bulk else self._settings.send_items_max
        try:
            while waiting:
                async with self._slots:
                    batch = self._batch(waiting, count_max)
                    if batch:
                        await self._send(route.namespace, route.action, batch)
        finally:
            del self._routes[route]

    def _batch(self, waiting: deque[_Entry], count_max: int) -> list[_Entry]:
        batch: list[_Entry] = []
        size = 0
        while waiting and len(batch) < count_max and size < self._settings.send_bytes_max:
            entry = waiting.popleft()
            self._waiting_bytes -= entry.bytes
            if not entry.stands:
                self._held.discard(entry.key)
                continue
            size += len(entry.send.inputs or "") + 256
            if entry.send.action in SUB_DAG_ACTIONS and len(batch) >= self._settings.sub_dags_per_send_max:
                waiting.appendleft(entry)
                self._waiting_bytes += entry.bytes
                break
            if entry.send.action == "enqueue":
                size += len(entry.send.item.spec) if entry.send.item else self._settings.payload_bytes_max
            batch.append(entry)
        return batch

    async def _send(self, namespace: str, action: str, batch: list[_Entry]) -> None:
        try:
            if action in SUB_DAG_ACTIONS:
                await asyncio.gather(*(self._carry(entry) for entry in batch))
            else:
                await self._settle(batch, await self._tell(namespace, action, batch))
        except Exception as error:
            part_failed("the outbox could not be sent", error, action=action, rows=len(batch))
        finally:
            # What was not told is overdue soon and comes again; what was told is on its way out.
            self._held.difference_update(entry.key for entry in batch)

    async def _carry(self, entry: _Entry) -> None:
        """Between a DAG and one that runs in a node's place; each row for itself."""
        try:
            await self._sub_dags.carry(entry.shard, entry.send)
        except Unavailable as error:
            log.warning("a sub-DAG could not be told", action=entry.send.action, error=error.detail)
        else:
            crash_point("after_carry_before_delete")
            if entry.stands:
                self.forget(entry.shard, [entry.send], [])

    async def _tell(self, namespace: str, action: str, batch: list[_Entry]) -> list[Answer]:
        queue = self._context.queue
        if action == "enqueue":
            return await self._enqueue(namespace, batch)
        if action == "cancel":
            return await queue.cancel(namespace, [entry.send.item_id for entry in batch])
        answers = await self._revive(namespace, batch)
        missing = [i for i, answer in enumerate(answers) if answer.status == "not_found"]
        if not missing:
            return answers
        # The disabled item has not landed; an enabled one takes its place.
        driven = await self._enqueue(namespace, [batch[i] for i in missing])
        answers = _replaced(answers, missing, driven)
        # A duplicate has landed in between, disabled perhaps.
        landed = [i for i, answer in zip(missing, driven, strict=True) if answer.status == "duplicate"]
        if landed:
            answers = _replaced(answers, landed, await self._revive(namespace, [batch[i] for i in landed]))
        return answers

    async def _revive(self, namespace: str, batch: list[_Entry]) -> list[Answer]:
        wanted = [(entry.send.item_id, entry.send.inputs) for entry in batch]
        return await self._context.queue.revive(namespace, wanted)

    async def _enqueue(self, namespace: str, batch: list[_Entry]) -> list[Answer]:
        by_shard: dict[Shard, list[Send]] = {}
        for shard, send, _ in batch:
            if send.item is None:
                by_shard.setdefault(shard, []).append(send)
        lifts: dict[tuple[int, int], int] = {}
        for shard, sends in by_shard.items():
            found = await store.dags.items(shard, [send.no for send in sends])
            lifts |= {(shard.number, no): lift for no, lift in (await self._ranks.lift(shard, found)).items()}
            for send in sends:
                send.item = found[send.no]
        texts = [
            queue_items.item_text(
                send.item,
                send.item_id,
                send.generation,
                shard.number,
                inputs=send.inputs,
                lift=lifts.get((shard.number, send.no), 0),
            )
            for shard, send, _ in batch
            if send.item is not None
        ]
        return await self._context.queue.enqueue(namespace, texts)

    async def _settle(self, batch: list[_Entry], answers: Sequence[Answer]) -> None:
        """Act on the queue's answers, then forget the rows that are done."""
        done: dict[Shard, list[Send]] = {}
        confirmed: dict[Shard, list[Ref]] = {}
        failed: dict[Shard, dict[Ref, str]] = {}
        lost: list[_Entry] = []
        for entry, answer in zip(batch, answers, strict=True):
            if not entry.stands:
                continue
            shard, send, _ = entry
            if answer.code in _LOST or (answer.status == "not_found" and send.action == "cancel"):
                lost.append(entry)
                continue
            told = answer.status in _TOLD
            if answer.status in _CANCELLED:
                confirmed.setdefault(shard, []).append(send.ref)
                told = True
            elif answer.status == "refused" and answer.final:
                failed.setdefault(shard, {})[send.ref] = f"the queue refused the item: {answer.code}"
                told = True
            elif not told:
                log.warning("the queue did not take an outbox row", action=send.action, answer=answer.status)
            if told:
                done.setdefault(shard, []).append(send)
        for shard, refs in confirmed.items():
            await self._completer.confirm_cancelled(shard, refs)
        for shard, errors in failed.items():
            await self._completer.fail(shard, errors)
        crash_point("after_relay_before_delete")
        for shard, sends in done.items():
            self.forget(shard, sends, [])
        await self._settle_lost(lost)

    async def _settle_lost(self, lost: Sequence[_Entry]) -> None:
        """The queue knows nothing of these items, and their ids are too old, or of a shard that was removed, to
        tell whether they never came or have ended long ago.

        Every completion written before the queue said so is either applied, or leased by somebody for at
        most `completion_lease_s`, or waits: so after that time everything that waits is applied, and only
        then a node that is unfinished still is given a new item, in a new generation, or is cancelled.
        """
        now_s = self._context.clock.monotonic_s()
        due: dict[Shard, list[_Entry]] = {}
        for entry in lost:
            since_s = self._lost_since_s.setdefault(entry.key, now_s)
            if now_s - since_s > self._settings.completion_lease_s + 1:
                due.setdefault(entry.shard, []).append(entry)
        for shard, entries in due.items():
            await self._drain(shard)
            sends = [entry.send for entry in entries if entry.stands]
            if cancels := [send.ref for send in sends if send.action == "cancel"]:
                await self._completer.confirm_cancelled(shard, cancels)
            for send in sends:
                if send.action != "cancel":
                    await self._completer.renew(shard, send)
            for entry in entries:
                self._lost_since_s.pop(entry.key, None)
            self.forget(shard, sends, [])

    def forget(self, shard: Shard, sends: list[Send], added: list[int]) -> None:
        """Delete rows that are done, and those of adds that begin at `added`; many at a time, off the way."""
        if shard.number in self._sent:
            self._sent[shard.number] += sends
            self._added[shard.number] += added
        else:
            self._sent[shard.number] = list(sends)
            self._added[shard.number] = list(added)
            self._spawn(self._delete(shard))

    async def _delete(self, shard: Shard) -> None:
        sends: list[Send] = []
        edition = shard.history.edition
        try:
            while self._sent[shard.number] or self._added[shard.number]:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), DELETES_GATHER_S)
                shard.history.check(edition)
                sends, self._sent[shard.number] = self._sent[shard.number], []
                added, self._added[shard.number] = self._added[shard.number], []
                await store.duties.delete_sent(shard, sends, added)
        except Unavailable as error:
            log.warning("sent rows stay in the outbox", rows=len(sends), error=error.detail)
        finally:
            del self._sent[shard.number], self._added[shard.number]


def _replaced(answers: Sequence[Answer], places: Sequence[int], others: Sequence[Answer]) -> list[Answer]:
    """Answers, with others in these places."""
    found = list(answers)
    for i, answer in zip(places, others, strict=True):
        found[i] = answer
    return found
