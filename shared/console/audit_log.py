"""Who did what, when, to how many, and from where: one row for each call by which an operator changes what runs.

Calls of producers and consumers are not kept here: there are thousands a second of them. The row is written when
the call was done, or may have been, and before it is answered; where no shard takes it, the service's log still
has it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.errors import ServiceError, Unauthorized, Unavailable
from shared.http.access import Access
from shared.ids import ShardNo
from shared.log import log
from shared.postgres.rows import rows_of
from shared.postgres.sql import load
from shared.shards.shard_map import Shard, ShardMap

SQL = load(Path(__file__).parent)

# Of the shards with the lowest numbers; all of them are asked when entries are listed.
_HOMES_MAX: Final = 4
_DROPPED_MAX: Final = 20
_DETAIL_CHARS_MAX: Final = 1_000
_LAST_ID: Final = 2**63 - 1

_NS: Final = r"/v1/namespaces/(?P<ns>[^/]+)"
_DAG: Final = rf"{_NS}/dags/(?P<target>[^/]+)"
# What is kept of both services: verbs of operators. Of those that programs call all the time only a page's are.
_ALWAYS: Final = [
    ("PUT", re.compile(rf"{_NS}"), "set quotas"),
    ("POST", re.compile(r"/v1/shards/(?P<target>[^/]+)/commands"), "shard"),
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


class AuditPlace(NamedTuple):
    """Where a page of the list ends."""

    at: datetime
    shard: ShardNo
    entry_id: int


class AuditLog:
    """Writes and lists the entries of one service."""

    def __init__(self, shards: ShardMap, keep_s: float) -> None:
        self._shards = shards
        self._keep_s = keep_s

    async def add(self, entry: dict[str, Any]) -> None:
        """Keep one entry, where a shard takes it."""
        log.info("an operator's call", **entry)
        for shard in self._homes():
            try:
                await shard.pool.fetch(SQL.add_audit_entry, **entry)
                await shard.pool.fetch(SQL.drop_audit_entries, keep_s=self._keep_s, limit=_DROPPED_MAX)
                return
            except Unavailable:
                continue
            except ServiceError as error:
                log.error("an operator's call is not kept", error=error.detail, **entry)
                return
        log.error("an operator's call is not kept: no shard takes it", **entry)

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
        return found[:limit], len(found) > limit, sorted(refusals)

    def _homes(self) -> list[Shard]:
        living = (shard for shard in self._shards if not shard.is_retired)
        return sorted(living, key=lambda shard: shard.number)[:_HOMES_MAX]


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

        async def heard() -> Message:
            parts.append(await receive())
            return parts[-1]

        async def told(message: Message) -> None:
            held.append(message)

        await self.app(scope, heard, told)
        answered = _read(held)
        is_done = bool(held) and held[0]["status"] < 300
        if is_done or answered.get("outcome") == "unknown":
            entry = self._entry(scope, named, _read(parts), answered)
            if entry is not None:
                entry["verb"] += "" if is_done else " (outcome unknown)"
                await self._entries.add(entry)
        for message in held:
            await send(message)

    def _entry(
        self, scope: Scope, named: tuple[str, dict[str, str | None]], asked: Any, answered: Any
    ) -> dict[str, Any] | None:
        kind, parts = named
        if asked.get("dry_run"):
            return None
        headers = dict(scope["headers"])
        verb = parts.get("verb") or asked.get("kind")
        client = (scope.get("client") or ("",))[0]
        forwarded = headers.get(b"x-forwarded-for", b"").decode("latin-1")[:100]
        return {
            "namespace": parts.get("ns") or "",
            "who": self._who(headers),
            "verb": f"{verb.replace('/', ' ')} {kind}" if verb else kind,
            "target": str(parts.get("target") or asked.get("topic") or (answered.get("id") if verb else "") or ""),
            "changed": _count(asked, answered),
            "origin": f"{client} for {forwarded}" if forwarded else client,
            "detail": msgspec.json.encode(asked).decode()[:_DETAIL_CHARS_MAX],
        }

    def _who(self, headers: dict[bytes, bytes]) -> str:
        given = headers.get(b"authorization")
        try:
            caller = self._access.caller(None if given is None else given.decode("latin-1"))
        except Unauthorized:
            return "a token that was just revoked"
        return "the DAG service" if caller.is_dag_service else caller.token_id or "anybody"


def _named(scope: Scope) -> tuple[str, dict[str, str | None]] | None:
    is_page = any(name == PAGE_HEADER for name, _ in scope["headers"])
    for method, path, kind in _ALWAYS + (_FROM_PAGES if is_page else []):
        if method == scope["method"]:
            found = path.fullmatch(scope["path"])
            if found is not None:
                return kind, found.groupdict()
    return None


def _read(parts: Sequence[Message]) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(b"".join(part.get("body", b"") for part in parts))
    except msgspec.MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}


def _count(asked: dict[str, Any], answered: dict[str, Any]) -> int | None:
    """How many were changed, or named; None: that is not said."""
    numbers = (answered.get("changed"), answered.get("operation") and answered.get("items"), answered.get("slots"))
    number = next((each for each in numbers if isinstance(each, int)), None)
    if number is not None:
        return number
    lists: Iterable[Any] = (answered.get("results"), asked.get("nodes"), asked.get("external"))
    return next((len(each) for each in lists if isinstance(each, list)), None)
