"""Who did what, when, to how many, and from where: one row for each call by which an operator changes what runs.

Calls of producers and consumers are not kept here: there are thousands a second of them. The row is written before
the call is done, and ended before the call is answered: a process or a server that ends in between leaves a row of
which the outcome is unknown, and none that is missing. A command on the shard map goes on when it is answered,
and is lost with its process: its row is ended with the command. A refused call leaves none, and one that comes
once more with its `id` is the same row. Where no shard takes the row, the service's log still has it.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import NAMESPACE_URL, uuid4, uuid5

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.errors import ServiceError, Unauthorized, Unavailable
from shared.http.access import Access
from shared.ids import ShardNo
from shared.log import log
from shared.postgres.rows import rows_of
from shared.postgres.sql import Statement, load
from shared.shards.shard_map import Shard, ShardMap

SQL = load(Path(__file__).parent)

# Of the shards with the lowest numbers; all of them are asked when entries are listed.
_HOMES_MAX: Final = 4
_DROPPED_MAX: Final = 20
_DETAIL_CHARS_MAX: Final = 1_000
# Ends of entries whose shard was away; what is over is left as it is, of unknown outcome.
_UNENDED_MAX: Final = 1_000
# Operations that go on, in one look.
_ASKED_MAX: Final = 20
_LAST_ID: Final = 2**63 - 1

SHARD: Final = "shard"

_NS: Final = r"/v1/namespaces/(?P<ns>[^/]+)"
_DAG: Final = rf"{_NS}/dags/(?P<target>[^/]+)"
# What is kept of both services: verbs of operators. Of those that programs call all the time only a page's are.
_ALWAYS: Final = [
    ("PUT", re.compile(rf"{_NS}"), "set quotas"),
    ("POST", re.compile(r"/v1/shards/(?P<target>[^/]+)/commands"), SHARD),
    ("POST", re.compile(rf"{_NS}/topics/(?P<verb>pause|resume|purge|redrive|configure|unthrottle)"), "topic"),
    ("PUT", re.compile(rf"{_NS}/topics/limits"), "limit topic"),
    ("POST", re.compile(rf"{_NS}/operations"), "operation"),
    ("POST", re.compile(rf"{_NS}/operations/(?P<target>[^/]+)/(?P<verb>cancel)"), "operation"),
    ("POST", re.compile(rf"{_DAG}/(?P<verb>cancel|retry|skip|pause|resume|nodes/cancel)"), "DAG"),
    (
        "POST",
        re.compile(rf"{_NS}/workflows/(?P<target>[^/]+)/(?P<verb>cancel|terminate|pause|resume|move|reset)"),
        "workflow",
    ),
    ("PUT", re.compile(rf"{_NS}/exports/mark"), "mark as exported"),
    ("PUT", re.compile(rf"{_NS}/schedules/(?P<target>[^/]+)"), "set schedule"),
    ("DELETE", re.compile(rf"{_NS}/schedules/(?P<target>[^/]+)"), "delete schedule"),
    (
        "POST",
        re.compile(rf"{_NS}/schedules/(?P<target>[^/]+)/(?P<verb>pause|resume|trigger|backfill)"),
        "schedule",
    ),
]
_FROM_PAGES: Final = [("POST", re.compile(rf"{_DAG}/(?P<verb>release|close|resolve)"), "DAG")]
PAGE_HEADER: Final = b"x-headgate-page"


# An operation of a namespace, by its id, as callers see it.
Operation = Callable[[str, str], Awaitable[dict[str, Any]]]


class AuditEntry(NamedTuple):
    """A row, as it is listed."""

    at: datetime
    entry_id: int
    namespace: str
    who: str
    verb: str
    target: str
    changed: int | None
    origin: str
    detail: str
    ended: bool
    call: str | None


class Begun(NamedTuple):
    """An entry of a call that may be done from now on: where it is, what it says, and whether it was there."""

    call: str
    shard: Shard
    is_known: bool
    said: Mapping[str, str]

    @property
    def target(self) -> str:
        return self.said["target"]

    @property
    def verb(self) -> str:
        return self.said["verb"]


class AuditPlace(NamedTuple):
    """Where a page of the list ends."""

    at: datetime
    shard: ShardNo
    entry_id: int


class AuditLog:
    """Writes and lists the entries of one service."""

    def __init__(self, shards: ShardMap, keep_s: float, operation: Operation | None = None) -> None:
        self._shards = shards
        self._keep_s = keep_s
        self._operation = operation
        self._going: OrderedDict[str, tuple[Begun, str, str, str]] = OrderedDict()
        self._left: OrderedDict[tuple[ShardNo, str], tuple[Shard, Statement, dict[str, Any]]] = OrderedDict()

    async def begin(self, call: str, entry: Mapping[str, str]) -> Begun | None:
        """Keep that somebody is about to do something, where a shard takes it; None: none does, the log has it."""
        log.info("an operator's call", **entry)
        for shard in self._homes():
            try:
                shard.pool.admit()  # the call itself is refused there; it does not wait for this either
                rows = await shard.pool.fetch(SQL.begin_audit_entry, call=call, **entry)
            except Unavailable as refusal:
                if refusal.outcome == "unknown":  # it may be there, beside the one on the next shard
                    self._leave(shard, SQL.drop_audit_entry, {"call": call})
                continue
            except ServiceError as error:
                log.error("an operator's call is not kept", error=error.detail, **entry)
                return None
            self._left.pop((shard.number, call), None)
            return Begun(call, shard, not rows, entry)
        log.error("an operator's call is not kept: no shard takes it", **entry)
        return None

    async def end(
        self,
        begun: Begun,
        target: str,
        changed: int | None,
        known_as: str | None = None,
        verb: str | None = None,
    ) -> Begun:
        """It was done. A call that comes as `known_as` is the same from now on. `verb`: how it is told instead."""
        known_as = known_as or begun.call
        said = {**begun.said, "target": target, "verb": verb or begun.verb}
        await self._write(begun, SQL.end_audit_entry, changed=changed, known_as=known_as, **said)
        try:
            await begun.shard.pool.fetch(SQL.drop_audit_entries, keep_s=self._keep_s, limit=_DROPPED_MAX)
        except ServiceError as error:
            log.warning("old entries of the audit log stay", error=error.detail)
        return begun._replace(call=known_as)

    async def over(self, begun: Begun, *, failed: bool) -> None:
        """A command that went on behind its answer has ended; a failed one may have done a part."""
        await self.end(begun, begun.target, None, verb=f"{begun.verb} (failed)" if failed else None)

    async def goes_on(
        self, begun: Begun, target: str, namespace: str, operation_id: str, known_as: str | None = None
    ) -> None:
        """It was done and goes on by itself: how many it has changed is written when it has ended."""
        begun = await self.end(begun, target, None, known_as)
        self._going[begun.call] = (begun, target, namespace, operation_id)
        if len(self._going) > _UNENDED_MAX:
            self._going.popitem(last=False)

    async def drop(self, begun: Begun) -> None:
        """Nothing was done; what the same call has done before stays."""
        if not begun.is_known:
            await self._write(begun, SQL.drop_audit_entry)

    async def settle(self) -> int:
        """Once more what shards that were away have not taken, and what has ended meanwhile; how many of it."""
        settled = 0
        away: set[ShardNo] = set()
        for key, (shard, statement, values) in list(self._left.items()):
            if shard.number in away:
                continue
            try:
                await shard.pool.fetch(statement, **values)
            except ServiceError:
                away.add(shard.number)
            else:
                self._left.pop(key, None)
                settled += 1
        for call, (begun, target, namespace, operation_id) in list(self._going.items())[:_ASKED_MAX]:
            self._going.pop(call, None)  # asked last by the next looks, if it goes on
            changed = await self._changed(namespace, operation_id)
            if changed is None:
                self._going[call] = (begun, target, namespace, operation_id)
            else:
                await self.end(begun, target, changed)
                settled += 1
        return settled

    async def _changed(self, namespace: str, operation_id: str) -> int | None:
        """How many an operation has changed in the end; None: it goes on, or cannot be asked now."""
        if self._operation is None:
            return None
        try:
            found = await self._operation(namespace, operation_id)
        except ServiceError:
            return None
        return None if found["state"] == "running" else int(found["changed"])

    async def _write(self, begun: Begun, statement: Statement, **values: Any) -> None:
        values["call"] = begun.call
        try:
            begun.shard.pool.admit()
            await begun.shard.pool.fetch(statement, **values)
        except ServiceError:
            self._leave(begun.shard, statement, values)

    def _leave(self, shard: Shard, statement: Statement, values: dict[str, Any]) -> None:
        self._left[shard.number, values["call"]] = (shard, statement, values)
        if len(self._left) > _UNENDED_MAX:
            self._left.popitem(last=False)

    async def page(
        self, namespace: str | None, limit: int, after: AuditPlace
    ) -> tuple[list[tuple[int, AuditEntry]], bool, list[int]]:
        """Up to `limit` entries behind a place, newest first, each with its shard; whether there are more; which
        shards did not answer, so that their entries are missing."""

        refusals: dict[ShardNo, Unavailable] = {}

        async def asked(shard: Shard) -> list[tuple[int, AuditEntry]]:
            before_id = after.entry_id if shard.number == after.shard else _LAST_ID * (shard.number < after.shard)
            values = {"before": after.at, "before_id": before_id, "namespace": namespace, "limit": limit + 1}
            try:
                rows = await rows_of(AuditEntry, shard.pool, SQL.audit_entries, **values)
            except Unavailable as refusal:
                refusals[shard.number] = refusal
                return []
            return [(shard.number, row) for row in rows]

        parts = await asyncio.gather(*map(asked, self._homes()))
        if len(refusals) == len(parts) > 0:  # one of several that is away takes nothing from what the others keep
            raise next(iter(refusals.values()))
        found = sorted(
            (entry for part in parts for entry in part),
            key=lambda entry: (entry[1].at, entry[0], entry[1].entry_id),
            reverse=True,
        )
        found = _once(found)
        return found[:limit], len(found) > limit, sorted(refusals)

    def _homes(self) -> list[Shard]:
        living = (shard for shard in self._shards if not shard.is_retired)
        return sorted(living, key=lambda shard: shard.number)[:_HOMES_MAX]


def _once(found: list[tuple[int, AuditEntry]]) -> list[tuple[int, AuditEntry]]:
    """Of a call that has rows on two shards, because one was away meanwhile: the first that has ended."""
    kept = {
        entry.call: entry for _, entry in sorted(found, key=lambda each: (each[1].ended, -each[1].at.timestamp()))
    }
    return [each for each in found if each[1].call is None or kept[each[1].call] is each[1]]


_Named = tuple[str, dict[str, str | None]]


class Audited:
    """An ASGI middleware: what operators' calls have done is kept before they are answered."""

    def __init__(self, app: ASGIApp, entries: AuditLog, access: Access) -> None:
        self.app = app
        self._entries = entries
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = _named(scope) if scope["type"] == "http" and scope["method"] in ("POST", "PUT", "DELETE") else None
        if named is None:
            await self.app(scope, receive, send)
            return
        parts: list[Message] = []  # of the request; no more than the app reads of it
        held: list[Message] = []
        begun: Begun | None = None
        is_whole = False

        async def begin() -> None:
            nonlocal begun, is_whole
            if not is_whole:
                is_whole = True
                begun = scope["audited"] = await self._begin(scope, named, _read(parts))

        async def heard() -> Message:
            parts.append(await receive())
            if parts[-1]["type"] == "http.request" and not parts[-1].get("more_body"):
                await begin()  # who has read all of the call may do it
            return parts[-1]

        async def told(message: Message) -> None:
            held.append(message)

        if scope["method"] == "DELETE":  # nobody reads what it says
            await begin()
        await self.app(scope, heard, told)
        if begun is not None:
            await self._end(begun, scope["path"], named, _read(parts), held)
        for message in held:
            await send(message)

    async def _begin(self, scope: Scope, named: _Named, asked: dict[str, Any]) -> Begun | None:
        headers = dict(scope["headers"])
        who = self._who(headers)
        if who is None or asked.get("dry_run"):
            return None
        kind, parts = named
        verb = parts.get("verb") or asked.get("kind")
        verb = verb if isinstance(verb, str) else ""
        client = (scope.get("client") or ("",))[0]
        forwarded = headers.get(b"x-forwarded-for", b"").decode("latin-1")[:100]
        given = asked.get("id") or asked.get("request_id")
        # who gives another call of a run's the same id has both done
        content = msgspec.json.encode(asked, order="sorted").decode() if kind == "workflow" else ""
        call = _call(scope["method"], scope["path"], given, content) if given else str(uuid4())
        target = parts.get("target") or asked.get("topic") or (given if kind == "operation" else None)
        said = {
            "namespace": parts.get("ns") or "",
            "who": who,
            "verb": f"{verb.replace('/', ' ')} {kind}" if verb else kind,
            "target": str(target or ""),
            "origin": f"{client} for {forwarded}" if forwarded else client,
            "detail": msgspec.json.encode(asked).decode(),
        }
        # Nothing of it has been checked yet: it is cut, and has no character that Postgres does not take.
        entry = {name: text[:_DETAIL_CHARS_MAX].replace("\0", "\ufffd") for name, text in said.items()}
        return await self._entries.begin(call, entry)

    async def _end(
        self, begun: Begun, path: str, named: _Named, asked: dict[str, Any], held: list[Message]
    ) -> None:
        answered = _read(held)
        if held and held[0]["status"] < 300:
            if named[0] == SHARD:
                return  # the command that goes on has it, and ends it
            kind = named[1].get("verb") or asked.get("kind")
            target = begun.target or str((answered.get("id") if kind else "") or "")
            operation = _operation(named[0], answered)
            is_new = operation is not None and not asked.get("id") and not named[1].get("target")
            # who repeats it by the id that this answer gives repeats this call
            known_as = _call("POST", _operations(path), operation["id"]) if operation and is_new else None
            if operation is not None and operation.get("state") == "running":
                await self._entries.goes_on(begun, target, named[1]["ns"] or "", operation["id"], known_as)
            else:
                await self._entries.end(begun, target, _count(asked, answered), known_as)
        elif answered.get("outcome") == "none":
            await self._entries.drop(begun)

    def _who(self, headers: dict[bytes, bytes]) -> str | None:
        given = headers.get(b"authorization")
        try:
            caller = self._access.caller(None if given is None else given.decode("latin-1"))
        except Unauthorized:
            return None  # it will be refused
        return "the DAG service" if caller.is_dag_service else caller.token_id or "anybody"


def _named(scope: Scope) -> _Named | None:
    is_page = any(name == PAGE_HEADER for name, _ in scope["headers"])
    for method, path, kind in _ALWAYS + (_FROM_PAGES if is_page else []):
        if method == scope["method"]:
            found = path.fullmatch(scope["path"])
            if found is not None:
                return kind, found.groupdict()
    return None


def _read(parts: Sequence[Message]) -> dict[str, Any]:
    """What a body says, or nothing where it is no object: it has not been checked yet."""
    try:
        found = msgspec.json.decode(b"".join(part.get("body", b"") for part in parts))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _call(method: str, path: str, given: object, content: str = "") -> str:
    """What a call is known by that may come once more."""
    return str(uuid5(NAMESPACE_URL, f"{method} {path} {given}{content}"))


def _operations(path: str) -> str:
    """Where operations of the path's namespace are begun."""
    return "/".join([*path.split("/")[:4], "operations"])


def _operation(kind: str, answered: dict[str, Any]) -> dict[str, Any] | None:
    """The operation that this answer tells of."""
    operation = answered if kind == "operation" else answered.get("operation")
    return operation if isinstance(operation, dict) and "id" in operation else None


def _count(asked: dict[str, Any], answered: dict[str, Any]) -> int | None:
    """How many were changed, or named; None: that is not said."""
    numbers = (answered.get("changed"), answered.get("operation") and answered.get("items"), answered.get("slots"))
    number = next((each for each in numbers if isinstance(each, int)), None)
    if number is not None:
        return number
    lists: Iterable[Any] = (answered.get("results"), asked.get("nodes"), asked.get("external"))
    return next((len(each) for each in lists if isinstance(each, list)), None)
