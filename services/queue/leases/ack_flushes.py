"""Acks: those of many calls share a flush, and go on with their DAGs in it (see `complete_here`).

Ends that release many nodes would delay all calls of the flush. The flush is then refused and sent again without
them; their calls submit them once more, in the line of heavy calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import NamedTuple, TypeAlias

from prometheus_client import Counter

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.leases.dag_news import DagNews
from services.queue.leases.held_items import LOOKS_MAX, lost_status
from services.queue.model import Fold, NamespaceId
from services.queue.settings import QueueSettings
from services.queue.store.leases import held_under
from services.queue.store.shard_store import Known, Store
from shared.admission.connection_priority import Urgency
from shared.errors import ServiceError, Unavailable
from shared.ids import DAG_TAG, ShardNo, dag_tags
from shared.metrics import ACKED
from shared.postgres.batcher import LIGHT_ENTRIES_MAX, Batcher
from shared.postgres.connections import Declined

# What a flush says of an ack that it has put off.
_WIDE = "wide"
# DAGs of such acks in one flush: one that ends more edges than it may apply would apply none.
WIDE_DAGS_MAX = 4
# Of outputs in a flush whose ends are applied in it: more is passed on by completions, whose reader takes a part
# of it at a time. An ack is not to fail by what its DAGs make of it.
FOLDED_CHARS_MAX = 2 * 1024 * 1024


class AckEntry(NamedTuple):
    """Acks of one call on one shard: ids, the token of each, and its output as text; none where none has any."""

    ids: Sequence[str]
    tokens: Sequence[str]
    namespace_id: NamespaceId
    outputs: Sequence[str | None] = ()

    def part(self, places: Sequence[int]) -> AckEntry:
        """Some of them."""
        ids, tokens = [self.ids[i] for i in places], [self.tokens[i] for i in places]
        return AckEntry(ids, tokens, self.namespace_id, self.outputs and [self.outputs[i] for i in places])


class AckColumns(NamedTuple):
    """Those of a flush, one behind another; outputs by token, then by id."""

    ids: Sequence[str]
    tokens: Sequence[str]
    namespace_ids: Sequence[NamespaceId]
    outputs: dict[str, dict[str, str]]


# What became of each element of an entry, None where all are acked; an error where that is not known, or nothing.
Status: TypeAlias = str | ServiceError
Statuses: TypeAlias = list[Status] | None
AckFlusher: TypeAlias = Callable[[list[AckEntry]], Awaitable[list[Statuses]]]


class AckFlushes:
    """Makes them."""

    def __init__(self, dispatch: Dispatch, dag_news: DagNews, settings: QueueSettings) -> None:
        self._dispatch = dispatch
        self._dag_news = dag_news
        self._settings = settings
        self._stores: dict[ShardNo, Store] = {}
        self._acked: dict[ShardNo, Counter] = {}
        self._wide: set[str] = set()
        self.flushes: dict[tuple[int, bool], Batcher[AckEntry, Statuses]] = {}

    def join(self, store: Store) -> None:
        """Serve one more shard."""
        self._stores[store.number] = store
        self._acked[store.number] = ACKED.labels(store.number)
        for relaxed in (False, True):
            acker, pool = self._acker(store, relaxed), store.shard.relaxed if relaxed else store.pool
            # A second ack of a DAG would find its lock taken, and leave its end to the DAG service.
            self.flushes[store.number, relaxed] = Batcher(
                acker, self._settings.flush_limits, Urgency.SETTLE, pool, tags=_dag_tags
            )

    async def submit(
        self,
        shard: ShardNo,
        namespace: str,
        ids: Sequence[str],
        tokens: Sequence[str],
        outputs: Sequence[str | None] = (),
    ) -> Statuses:
        """End items of one shard; what became of each.

        Raises:
            Unavailable: the shard cannot be asked; `outcome` says whether anything was done.
        """
        names = self._stores[shard].names
        namespace_id = names.known_namespace(namespace)
        if namespace_id is None:
            self._stores[shard].pool.admit()  # else the flush asks
            namespace_id = await names.namespace_id(namespace)
        if namespace_id is None:
            return ["not_found"] * len(ids)
        entry = AckEntry(ids, tokens, namespace_id, outputs)
        flushes = self.flushes[shard, namespace == "_dag"]
        [statuses] = await flushes.submit([entry], namespace, size=len(ids), texts=outputs)
        if statuses is not None and _WIDE in statuses:
            await self._apart(shard, namespace, entry, statuses)
        return statuses

    async def _apart(self, shard: ShardNo, namespace: str, entry: AckEntry, statuses: list[Status]) -> None:
        """Make the acks that were put off, each DAG's for itself."""
        by_dag: dict[str, list[int]] = {}
        for i, status in enumerate(statuses):
            if status == _WIDE:
                by_dag.setdefault(entry.ids[i][DAG_TAG], []).append(i)
        made = [self._of_dag(shard, namespace, entry, places, statuses) for places in by_dag.values()]
        await asyncio.gather(*made)

    async def _of_dag(
        self, shard: ShardNo, namespace: str, entry: AckEntry, places: list[int], statuses: list[Status]
    ) -> None:
        """In the line of heavy calls, where small ones do not wait. What fails there says nothing of the rest."""
        while places := [i for i in places if statuses[i] == _WIDE]:
            part = entry.part(places)
            wide = set(part.ids)
            self._wide |= wide
            size = max(len(places), self._settings.flush_items_max // WIDE_DAGS_MAX, LIGHT_ENTRIES_MAX + 1)
            try:
                flushes = self.flushes[shard, namespace == "_dag"]
                [again] = await flushes.submit([part], namespace, size=size, texts=part.outputs)
            except ServiceError as error:
                again = [error] * len(places)
            finally:
                self._wide -= wide
            for nth, i in enumerate(places):
                statuses[i] = "acked" if again is None else again[nth]

    def _folds(self, ids: Sequence[str], outputs: dict[str, dict[str, str]]) -> Fold:
        if outputs and sum(len(text) for given in outputs.values() for text in given.values()) > FOLDED_CHARS_MAX:
            return Fold.NOTHING
        return self._dag_news.folds(Fold.REFUSE_WIDE if self._wide.isdisjoint(ids) else Fold.WIDE)

    def _is_wide(self, entry: AckEntry) -> bool:
        return not self._wide.isdisjoint(entry.ids)

    def _acker(self, store: Store, relaxed: bool) -> AckFlusher:
        async def flush_with_care(entries: list[AckEntry]) -> list[Statuses]:
            found = await flush(entries)
            if found.count(None) == len(found):
                return found
            await _look_afresh(store, flush, entries, found)
            return found

        async def flush(entries: list[AckEntry]) -> list[Statuses]:
            ids, tokens, namespace_ids, given = _joined(entries)
            if namespace_ids.count(namespace_ids[0]) < len(ids) and _is_shared(tokens, namespace_ids):
                # One of them names another's token, which must not touch the other's acks.
                return await flush_apart(entries, [entry.namespace_id for entry in entries])
            if self._wide and len(set(are_wide := list(map(self._is_wide, entries)))) > 1:
                # With them all would be taken that is as wide, however many.
                return await flush_apart(entries, are_wide)
            folds = self._folds(ids, given)
            waits = bool(folds) and max([len(entry.ids) for entry in entries]) > LIGHT_ENTRIES_MAX
            if waits:
                # Told, each of them would cost several times what it costs to wait for the DAG a little.
                folds |= Fold.AWAIT
            try:
                with self._dispatch.handing(store.number, "ack", len(ids), waits=waits) as handing:
                    flushed = await handing.flush(
                        lambda offers: store.ack(
                            ids, tokens, namespace_ids, given, relaxed=relaxed, offers=offers, folds=folds
                        )
                    )
                    handing.hand(flushed.handed)
                    handing.saw([ready.topic_id for ready in flushed.ready])
            except Declined as refusal:
                return await flush_others(entries, set(refusal.detail.split()))
            self._dispatch.ready(store.number, flushed.ready)
            if flushed.folded:
                self._dag_news.gone_on(store.number, ids, flushed)
            if flushed.delayed:
                await self._dispatch.place_lanes(store.number)
            if flushed.acked is None:
                self._acked[store.number].inc(len(ids))
                return [None] * len(entries)
            self._acked[store.number].inc(len(flushed.acked))
            named = list(zip(ids, tokens, namespace_ids, strict=True))
            statuses = iter(await self._statuses(store, named, flushed.acked, flushed.held or set()))
            return [list(islice(statuses, len(entry.ids))) for entry in entries]

        async def flush_others(entries: list[AckEntry], wide: set[str]) -> list[Statuses]:
            """Without those that hold up others; their calls make them again."""
            parts = [
                entry.part([i for i, item_id in enumerate(entry.ids) if item_id not in wide]) for entry in entries
            ]
            found = iter(await flush(left) if (left := [part for part in parts if part.ids]) else ())
            statuses: list[Statuses] = []
            for entry, part in zip(entries, parts, strict=True):
                known = next(found) if part.ids else []
                of_part: Iterator[Status] = iter(["acked"] * len(part.ids) if known is None else known)
                statuses.append([_WIDE if item_id in wide else next(of_part) for item_id in entry.ids])
            return statuses

        async def flush_apart(entries: list[AckEntry], kinds: Sequence[int]) -> list[Statuses]:
            """One kind after another; what fails of one says nothing of the others."""
            found: dict[int, Statuses] = {}
            for kind in sorted(set(kinds)):
                places = [i for i, one in enumerate(kinds) if one == kind]
                mine = [entries[i] for i in places]
                try:
                    found |= zip(places, await flush(mine), strict=True)
                except Unavailable as error:
                    found |= {i: [error] * len(entries[i].ids) for i in places}
            return [found[i] for i in range(len(entries))]

        return flush_with_care

    async def _statuses(
        self, store: Store, named: Sequence[tuple[str, str, NamespaceId]], acked: set[str], held: set[str]
    ) -> list[Status]:
        # Also ids acked in this very flush: a superseded holder may share it with the winner.
        others = [id_ for id_, token, _ in named if id_ not in acked or id_ + token not in held]
        known: dict[str, Known] = {}
        away: Unavailable | None = None
        try:
            known = await store.known(others)
        except Unavailable as error:
            error.outcome = "none"  # nothing was done with the others
            away = error
        statuses: list[Status] = []
        for item_id, token, namespace_id in named:
            if item_id + token in held and item_id in acked:
                acked.discard(item_id)
                known[item_id] = Known(namespace_id, "acked")
                statuses.append("acked")
            elif away is not None:
                statuses.append(away)
            elif item_id + token in held and not _was_cancelled(known.get(item_id)):
                statuses.append("already_acked")
            else:
                statuses.append(lost_status(known.get(item_id), namespace_id))
        return statuses


async def _look_afresh(
    store: Store, flush: AckFlusher, entries: Sequence[AckEntry], found: Sequence[Statuses]
) -> None:
    """Try again what was told that its lease is lost and is held nevertheless: an extend of the same holder has
    moved the lease while this waited. That it fails says nothing of what was flushed before."""
    for _ in range(LOOKS_MAX):
        lost = [
            (entry, place, statuses)
            for entry, statuses in zip(entries, found, strict=True)
            for place, status in enumerate(statuses or ())
            if status == "lease_lost" and statuses is not None
        ]
        if not lost:
            return
        try:
            held = await held_under(
                store.pool, [(entry.tokens[place], entry.ids[place]) for entry, place, _ in lost]
            )
            lost = [lost[nth] for nth in held]
            if not lost:
                return
            again: Sequence[Statuses] = await flush([entry.part([place]) for entry, place, _ in lost])
        except Unavailable as error:
            again = [[error]] * len(lost)
        for (_, place, statuses), one in zip(lost, again, strict=True):
            status = "acked" if one is None else one[0]
            if status in ("acked", "already_acked", _WIDE) or isinstance(status, ServiceError):
                statuses[place] = status


def _is_shared(tokens: Sequence[str], namespace_ids: Sequence[NamespaceId]) -> bool:
    """Whether one token is named by several namespaces."""
    return len(set(zip(tokens, namespace_ids, strict=True))) > len(set(tokens))


def _dag_tags(entries: Sequence[AckEntry]) -> set[bytes]:
    [entry] = entries
    return dag_tags(entry.ids)


def _joined(entries: Sequence[AckEntry]) -> AckColumns:
    ids, tokens, namespace_ids, outputs = zip(*entries, strict=True)
    if namespace_ids.count(namespace_ids[0]) < len(entries):
        namespace_ids = tuple(entry.namespace_id for entry in entries for _ in entry.ids)
    else:
        namespace_ids = namespace_ids[:1] * sum(map(len, ids))
    given = _given(entries) if any(outputs) else {}
    return AckColumns(list(chain.from_iterable(ids)), list(chain.from_iterable(tokens)), namespace_ids, given)


def _given(entries: Sequence[AckEntry]) -> dict[str, dict[str, str]]:
    """Outputs by token and id: another token's says nothing of the item. Of a repeated ack the first counts."""
    first: dict[tuple[str, str], str | None] = {}
    for entry in entries:
        outputs = entry.outputs or repeat(None, len(entry.ids))
        for item_id, token, output in zip(entry.ids, entry.tokens, outputs, strict=True):
            first.setdefault((token, item_id), output)
    given: dict[str, dict[str, str]] = {}
    for (token, item_id), output in first.items():
        if output is not None:
            given.setdefault(token, {})[item_id] = output
    return given


def _was_cancelled(known: Known | None) -> bool:
    return known is not None and known.outcome == "cancelled"
