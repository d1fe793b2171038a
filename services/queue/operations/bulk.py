"""What is done to many items at once: purge, redrive, cancel by filter, as rows that say how far they have come.

An operation has one row on every shard. A chunk of it is one transaction: it locks the row, reads the items
behind the row's cursor, acts on those that are meant, and moves the cursor on. So a chunk happens whole or not
at all, two hosts never do the same one, and after a crash the next host goes on where the rows stand. The
call that asks for it does chunks itself for a few seconds, and answers; the rest is the loop's.

Items that come after an operation was asked for are not touched. A DAG's items are left alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.errors import OperationExists, TooManyOperations
from services.queue.model import Ready
from services.queue.operations.pace import Pace
from services.queue.operations.selection import Filter, Look, Preview, Scope, look
from services.queue.settings import QueueSettings
from services.queue.store import items as rows
from services.queue.store import operations as store_operations
from services.queue.store.operations import NewOperation, OperationRow, Progress, TopicScope, scope_of
from services.queue.store.shard_store import Store, is_living, living, refuse_if_standing, store_of
from shared.clock import Clock
from shared.crash import crash_point
from shared.errors import Invalid, NotFound, ShardUnavailable, invalid, something_done
from shared.ids import ShardNo, canonical, new_id, shard_of, time_ms_of
from shared.log import log
from shared.postgres.connections import Transaction
from shared.postgres.rows import Asked
from shared.shards.asking import Listed

T = TypeVar("T")

SAMPLE_IDS = 20
NO_LIMIT = 2**31 - 1
# A call that is still writing its rows is not hurried.
PLACE_AFTER_S = 10.0


class Chunk(NamedTuple):
    """One chunk of an operation on one shard: what it did, what is deliverable now, whether it was the last."""

    row: OperationRow
    changed: int
    ready: list[Ready]
    is_last: bool


class Operations:
    """Begins, shows, stops and carries on operations."""

    def __init__(
        self, stores: Mapping[ShardNo, Store], dispatch: Dispatch, settings: QueueSettings, clock: Clock
    ) -> None:
        self._dispatch = dispatch
        self._stores = stores
        self._settings = settings
        self._clock = clock
        self._paces: dict[ShardNo, Pace] = {}

    # -- the calls ----------------------------------------------------------------------------------------

    async def start(
        self, namespace: str, kind: str, given: dict[str, Any], wanted_id: str | None = None
    ) -> dict[str, Any]:
        """Begin an operation, or find the one of this id, and carry it on for a few seconds; how far it is then.

        Raises:
            OperationExists: the id is another operation's.
            TooManyOperations: the namespace has `operations_running_max` at work.
            ShardUnavailable: no shard answers.
        """
        refuse_if_standing(living(self._stores))
        operation_id = await self.place(namespace, kind, given, wanted_id)
        deadline_s = self._clock.monotonic_s() + self._settings.operation_patience_s

        async def at(store: Store) -> None:
            while (done := await self.chunk(store, operation_id)) is not None and not done.is_last:
                if self._clock.monotonic_s() >= deadline_s:
                    return

        with something_done():
            for failure in await asyncio.gather(*map(at, living(self._stores)), return_exceptions=True):
                if isinstance(failure, ShardUnavailable):
                    log.warning("an operation waits for its shard", operation=operation_id, detail=failure.detail)
                elif isinstance(failure, BaseException):
                    raise failure
            return await self._found(namespace, operation_id)

    async def preview(self, namespace: str, kind: str, given: dict[str, Any]) -> dict[str, Any]:
        """What an operation would take now: a count, exact if a few seconds were enough and every shard has
        answered, and some ids. Shards that do not answer are named: begun all the same, it waits for them.

        Raises:
            ShardUnavailable: no shard answers.
        """
        refuse_if_standing(living(self._stores))
        wanted = Filter.of(kind, given)
        deadline_s = self._clock.monotonic_s() + self._settings.operation_patience_s

        async def at(store: Store) -> Preview:
            found = await scope_of(store.pool, namespace, wanted.topic)
            ids: list[str] = []
            matched = scanned = skipped = 0
            # Only the last source, which has everything: nothing is changed that it would otherwise not meet.
            cursor = wanted.sources[-1] if _is_known(found, wanted) else None
            while cursor is not None:
                limit = self._settings.chunk_items_max
                part = await self._look(store.pool, _scope(found, found.at), wanted, cursor, limit)
                matched, scanned = matched + len(part.ids), scanned + part.scanned
                skipped, cursor = skipped + part.skipped, part.cursor
                ids += part.ids[: SAMPLE_IDS - len(ids)]
                if self._clock.monotonic_s() >= deadline_s:
                    break
            return Preview(ids, matched, scanned, skipped, cursor is None)

        found, silent = await self._ask(at)
        parts = [found[number] for number in sorted(found)]
        return {
            "dry_run": True,
            "id": new_id(min(found)),
            "namespace": namespace,
            "kind": kind,
            "filter": given,
            "matched": sum(part.matched for part in parts),
            "exact": not silent and all(part.is_whole for part in parts),
            "scanned": sum(part.scanned for part in parts),
            "skipped": sum(part.skipped for part in parts),
            "sample": [item_id for part in parts for item_id in part.ids][:SAMPLE_IDS],
            "away": sorted(silent),
        }

    async def get(self, namespace: str, operation_id: str) -> dict[str, Any]:
        """An operation, over all shards.

        Raises:
            NotFound: none of that id, another namespace's, or dropped since.
            ShardUnavailable: no shard answers.
        """
        refuse_if_standing(living(self._stores))
        return await self._found(namespace, operation_id)

    async def _found(self, namespace: str, operation_id: str) -> dict[str, Any]:
        known_id = canonical(operation_id)
        found = await self._views(namespace, [known_id]) if known_id else []
        if not found:
            raise NotFound("there is no such operation here; they are dropped a while after their end")
        return found[0]

    async def page(self, namespace: str, limit: int, before: str | None) -> Listed[dict[str, Any], str]:
        """Operations of a namespace, newest first; the next page begins behind an id."""

        refuse_if_standing(living(self._stores))

        async def at(store: Store) -> list[str]:
            before_id = before or "ffffffff-ffff-ffff-ffff-ffffffffffff"
            return await store_operations.listed(store.pool, namespace, before_id, limit)

        listed, silent = await self._ask(at)
        ids = sorted({item for part in listed.values() for item in part}, reverse=True)[:limit]
        views = await self._views(namespace, ids)
        return Listed(views, ids[-1] if len(ids) == limit else None, sorted(silent))

    async def cancel(self, namespace: str, operation_id: str) -> dict[str, Any]:
        """Do no further chunk; what was done stays done. On one that has ended, nothing.

        Raises:
            NotFound: as for `get`.
            ShardUnavailable: a shard does not answer; on the others it is stopped.
        """
        known = await self.get(namespace, operation_id)
        with something_done():
            # Twice: a host may be writing a row to a shard that was away, under the lock of the first's row.
            for _ in range(2):
                stops = [
                    store_operations.stop(store.pool, known["id"], namespace) for store in living(self._stores)
                ]
                await asyncio.gather(*stops)
            return await self._found(namespace, operation_id)

    # -- carrying on --------------------------------------------------------------------------------------

    async def step(self, store: Store) -> int:
        """One chunk of the shard's operation that has waited longest; 0 when there is nothing to do."""
        found = await store_operations.waiting(store.pool, PLACE_AFTER_S)
        if found.unplaced:
            await store.pool.transaction(self._place_rest)
        return int(found.running and await self.chunk(store, None) is not None)

    async def chunk(self, store: Store, operation_id: str | None) -> Chunk | None:
        """One chunk of an operation on one shard, or of the one that has waited longest; None: nothing to do."""
        done: Chunk | None = None

        async def work(limit: int) -> int:
            nonlocal done
            try:
                done = await store.pool.transaction(lambda tx: self._chunk(tx, operation_id, limit, singly=False))
            except Invalid:
                # One item that the database refuses to let go must not hold up the others.
                done = await store.pool.transaction(lambda tx: self._chunk(tx, operation_id, limit, singly=True))
            return 0 if done is None or done.is_last else limit

        await self._paces.setdefault(store.number, Pace(self._settings.chunk_items_max)).step(work)
        crash_point("operation_chunk_committed")
        if done is None:
            return None
        self._dispatch.ready(store.number, done.ready)
        if done.row.kind == "redrive":
            await self._dispatch.place_lanes(store.number)
        if done.is_last:
            topic = json.loads(done.row.filter).get("topic")
            if topic is not None and done.row.kind != "redrive":
                self._dispatch.changed(done.row.namespace, topic)
            log.info("operation ended", shard=store.number, operation=done.row.id, kind=done.row.kind)
        return done

    async def _chunk(self, tx: Transaction, operation_id: str | None, limit: int, *, singly: bool) -> Chunk | None:
        if operation_id is None:
            row = await store_operations.lock_next(tx)
        else:
            row = await store_operations.lock(tx, operation_id)
        if row is None:
            return None
        wanted = Filter.of(row.kind, json.loads(row.filter))
        part = await self._look(tx, _scope(row, row.cutoff), wanted, row.cursor, limit)
        if not part.ids and part.cursor in wanted.sources and not await _is_empty(tx, row, wanted, part):
            # The first source has nothing (more): the next is begun at once.
            part = await self._look(tx, _scope(row, row.cutoff), wanted, part.cursor, limit)
        changed, ready = await _act(tx, wanted, part.ids, singly=singly)
        is_last = part.cursor is None or await _is_empty(tx, row, wanted, part)
        progress = Progress(
            cursor=part.cursor or "",
            scanned=part.scanned if part.is_last_source else changed,
            changed=changed,
            skipped=part.skipped + len(part.ids) - changed if part.is_last_source else 0,
            finished=is_last,
        )
        await store_operations.advance(tx, row.id, progress)
        crash_point("operation_chunk_written")
        return Chunk(row, changed, ready, is_last)

    async def _look(self, asked: Asked, scope: Scope, wanted: Filter, cursor: str, limit: int) -> Look:
        settings = self._settings
        return await look(
            asked,
            scope,
            wanted,
            cursor,
            items_max=limit,
            rows_max=max(settings.operation_rows_max * limit // settings.chunk_items_max, 1),
            scan_max=max(settings.page_scan_max * limit // settings.chunk_items_max, 1),
        )

    # -- rows ---------------------------------------------------------------------------------------------

    async def place(self, namespace: str, kind: str, given: dict[str, Any], wanted_id: str | None = None) -> str:
        """Write the rows: first one that names all shards, so that from then on none can be forgotten.

        With an id of the caller's the first is on the shard that the id names: there a repeated call meets it.
        """
        wanted = Filter.of(kind, given)
        if wanted_id is not None and await self._is_there(namespace, kind, given, wanted_id):
            return wanted_id

        async def scope_at(store: Store) -> TopicScope:
            return await scope_of(store.pool, namespace, wanted.topic)

        scopes, silent = await self._ask(scope_at)
        first = min(scopes) if wanted_id is None else shard_of(wanted_id)
        if first not in scopes:
            raise ShardUnavailable(f"shard {first}, which the id names, does not answer", retry_after_s=1.0)
        rest = sorted(scopes.keys() - {first})
        operation_id = new_id(first) if wanted_id is None else wanted_id
        if wanted_id is not None:
            self._check_age(wanted_id, scopes[first].at.timestamp())
        shards = sorted(store.number for store in living(self._stores))
        what = (operation_id, namespace, kind, json.dumps(given))

        async def write(number: ShardNo, unplaced: list[ShardNo], running_max: int) -> bool:
            row = _new_row(what, scopes[number], wanted, shards, unplaced, None)
            return await store_operations.place(self._stores[number].pool, row, running_max)

        missing = [number for number in shards if number != first]
        if not await write(first, missing, self._settings.operations_running_max):
            if wanted_id is not None and await self._is_there(namespace, kind, given, wanted_id):
                return wanted_id  # the same call came twice at once
            if wanted_id is not None and await store_operations.is_anybodys(self._stores[first].pool, wanted_id):
                raise OperationExists("this id stands for another operation; make a new id for a new operation")
            raise TooManyOperations(
                f"{self._settings.operations_running_max} operations of this namespace are running; "
                "wait for one to end, or cancel one"
            )
        crash_point("operation_placed_once")
        with something_done():
            written = await asyncio.gather(*(write(n, [], NO_LIMIT) for n in rest), return_exceptions=True)
            for number, result in zip(rest, written, strict=True):
                if isinstance(result, ShardUnavailable):
                    silent.add(number)
                elif isinstance(result, BaseException):
                    raise result
            if missing:
                await store_operations.set_unplaced(self._stores[first].pool, operation_id, sorted(silent))
        return operation_id

    async def _is_there(self, namespace: str, kind: str, given: dict[str, Any], wanted_id: str) -> bool:
        store = store_of(self._stores, wanted_id)
        if store is None:
            raise invalid("/id", "its last 12 bits are no shard of this service")
        found = await store_operations.read(store.pool, [wanted_id], namespace)
        if found and (found[0].kind, json.loads(found[0].filter)) != (kind, given):
            raise OperationExists("this id stands for another kind or filter; make a new id for a new operation")
        return bool(found)

    def _check_age(self, wanted_id: str, now_s: float) -> None:
        """An id that may have been an operation's, and is forgotten, must not begin it anew."""
        age_s = now_s - time_ms_of(wanted_id) / 1000
        if not -self._settings.id_ahead_s_max <= age_s <= self._settings.id_window_s:
            raise invalid("/id", "it is too old, or from the future; make a new id")

    async def _place_rest(self, tx: Transaction) -> None:
        """Write the rows that an operation still lacks on other shards."""
        row = await store_operations.lock_unplaced(tx, PLACE_AFTER_S)
        if row is None:
            return
        wanted = Filter.of(row.kind, json.loads(row.filter))
        silent = []
        for number in row.unplaced:
            if not is_living(self._stores, number):
                continue
            store = self._stores[number]
            try:
                found = await scope_of(store.pool, row.namespace, wanted.topic)
                what = (row.id, row.namespace, row.kind, row.filter)
                new = _new_row(what, found, wanted, row.shards, [], row.cutoff)
                await store_operations.place(store.pool, new, NO_LIMIT)
            except ShardUnavailable:
                silent.append(number)
        await store_operations.set_unplaced(tx, row.id, silent)

    async def _views(self, namespace: str, ids: Sequence[str]) -> list[dict[str, Any]]:
        async def at(store: Store) -> list[OperationRow]:
            return await store_operations.read(store.pool, ids, namespace)

        parts, silent = await self._ask(at)
        found: dict[str, dict[ShardNo, OperationRow]] = {}
        for number, part in parts.items():
            for row in part:
                found.setdefault(row.id, {})[number] = row
        return [_view(found[item], silent) for item in ids if item in found]

    async def _ask(self, ask: Callable[[Store], Awaitable[T]]) -> tuple[dict[ShardNo, T], set[ShardNo]]:
        """What every shard answers, and the shards that do not; one must.

        Raises:
            ShardUnavailable: none answers.
        """
        stores = living(self._stores)
        answers = await asyncio.gather(*map(ask, stores), return_exceptions=True)
        good: dict[ShardNo, T] = {}
        silent: set[ShardNo] = set()
        for store, answer in zip(stores, answers, strict=True):
            if isinstance(answer, ShardUnavailable):
                silent.add(store.number)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                good[store.number] = answer
        if not good:
            raise ShardUnavailable("no shard answers", retry_after_s=1.0)
        return good, silent


def _is_known(found: TopicScope, wanted: Filter) -> bool:
    """Whether a shard has ever met the namespace, and the topic if one is named."""
    return found.namespace_id is not None and (wanted.topic is None or found.topic_id is not None)


def _scope(row: TopicScope | OperationRow, cutoff: datetime) -> Scope:
    return Scope(row.namespace_id, row.topic_id, cutoff)


def _new_row(
    what: tuple[str, str, str, str],
    found: TopicScope,
    wanted: Filter,
    shards: Sequence[ShardNo],
    unplaced: Sequence[ShardNo],
    cutoff: datetime | None,
) -> NewOperation:
    """A shard's row of an operation (id, namespace, kind, filter): done at once where there is nothing to do."""
    operation_id, namespace, kind, given = what
    is_known = _is_known(found, wanted)
    return NewOperation(
        operation_id,
        namespace,
        found.namespace_id,
        found.topic_id,
        kind,
        given,
        "running" if is_known else "done",
        found.held(wanted.states) if is_known else 0,
        shards,
        unplaced,
        cutoff,
    )


async def _is_empty(tx: Transaction, row: OperationRow, wanted: Filter, part: Look) -> bool:
    """Whether a topic holds nothing in the filter's states any more: then the rest of the shard is not read.

    Asked where the walk through the whole shard begins, and where it found nothing.
    """
    if wanted.topic is None or not (part.cursor or "").startswith("id") or (part.ids and part.cursor != "id"):
        return False
    return not (await scope_of(tx, row.namespace, wanted.topic)).held(wanted.states)


async def _act(tx: Transaction, wanted: Filter, ids: list[str], *, singly: bool) -> tuple[int, list[Ready]]:
    """Do to these items what the operation is for; how many it met in a fitting state, and what is ready now."""
    if not ids:
        return 0, []
    act = _redrive if wanted.kind == "redrive" else _end
    if not singly:
        return await act(tx, wanted, ids)
    changed, ready = 0, []
    for item_id in ids:
        try:
            count, made = await tx.attempt(lambda one=item_id: act(tx, wanted, [one]))  # type: ignore[misc]
        except Invalid:
            log.error("an operation must leave an item alone that cannot be changed", item=item_id)
            continue
        changed += count
        ready += made
    return changed, ready


async def _redrive(tx: Transaction, _wanted: Filter, ids: list[str]) -> tuple[int, list[Ready]]:
    return await store_operations.redrive(tx, ids)


async def _end(tx: Transaction, wanted: Filter, ids: list[str]) -> tuple[int, list[Ready]]:
    left, _ = await _take(tx, wanted, ids)
    rest = [item_id for item_id in ids if item_id not in left]
    if rest and "leased" in wanted.states:
        # What was in none of the tables is leased, or on its way between them: hold its row, look again.
        locked = await rows.lock_items(tx, rest)
        if locked:
            moved, elsewhere = await _take(tx, wanted, list(locked))
            left |= {item_id: moved.get(item_id, "leased") for item_id in locked if item_id not in elsewhere}
    removals = [rows.cancelled(item_id, state) for item_id, state in sorted(left.items())]
    return len(removals), await rows.remove(tx, removals)


async def _take(tx: Transaction, wanted: Filter, ids: list[str]) -> tuple[dict[str, str], set[str]]:
    """Take items out of the tables of the filter's states: the state of each, and the ids seen in others."""
    found = await store_operations.take(tx, ids, wanted.states)
    taken = {item.id: item.state for item in found if item.taken}
    return taken, {item.id for item in found if not item.taken} - set(taken)


def _view(parts: dict[ShardNo, OperationRow], silent: set[ShardNo]) -> dict[str, Any]:
    """One operation from its rows by shard."""
    sample = next(iter(parts.values()))
    unplaced = {number for row in parts.values() for number in row.unplaced}
    rest = "cancelled" if any(row.state == "cancelled" for row in parts.values()) else "done"
    shards = [_shard_view(number, parts.get(number), silent, unplaced, rest) for number in sample.shards]
    states = {shard["state"] for shard in shards}
    ends = [row.finished_at for row in parts.values() if row.finished_at is not None]
    is_over = states <= {"done", "cancelled"}
    return {
        "id": sample.id,
        "namespace": sample.namespace,
        "kind": sample.kind,
        "filter": json.loads(sample.filter),
        "dry_run": False,
        "state": ("cancelled" if "cancelled" in states else "done") if is_over else "running",
        "requested_at": min(row.requested_at for row in parts.values()),
        "finished_at": max(ends) if is_over and ends else None,
        **{count: sum(getattr(row, count) for row in parts.values()) for count in _COUNTS},
        "shards": shards,
    }


_COUNTS = ("total", "scanned", "changed", "skipped")


def _shard_view(
    number: ShardNo, row: OperationRow | None, silent: set[ShardNo], unplaced: set[ShardNo], rest: str
) -> dict[str, Any]:
    if row is not None:
        return {"shard": number, "state": row.state, **{count: getattr(row, count) for count in _COUNTS}}
    state = "waiting" if number in unplaced else "unreachable" if number in silent else rest
    return {"shard": number, "state": state, **dict.fromkeys(_COUNTS, 0)}
