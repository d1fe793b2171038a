"""Connections to shards for people who change them, and who a shard says it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from shared.ids import ShardNo
from shared.settings import ShardAddress

CONNECT_TIMEOUT_S = 10.0
_SESSION = {
    "application_name": "headgate shards",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    # What rows look like as text is compared between servers.
    "timezone": "UTC",
    "datestyle": "ISO",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}


class Refused(Exception):
    """The command cannot be carried out; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a shard says of itself. `move` is the unfinished or last move of the shard or of its slots."""

    schema: str
    number: ShardNo
    epoch: int
    incarnation: str
    state: str
    move: dict[str, Any]
    slots: str | None


def server(dsn: str) -> str:
    """Host, port and database of a DSN; never its password."""
    parts = urlsplit(dsn)
    return f"{parts.hostname or 'local'}:{parts.port or 5432}{parts.path}"


async def connect(dsn: str) -> Any:
    """A connection without a time limit on its statements.

    Raises:
        Refused: the server cannot be reached or does not let us in.
    """
    try:
        return await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S, server_settings=_SESSION)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        why = "it does not answer" if isinstance(error, TimeoutError) else error
        raise Refused(f"{server(dsn)} cannot be reached: {why}") from error


async def identity(connection: Any, schema: str) -> Identity | None:
    """Who the shard in a schema says it is; None where there is none.

    Raises:
        Refused: it is from before shards said so.
    """
    if await connection.fetchval("SELECT to_regclass($1)", f"{schema}.shard") is None:
        return None
    try:
        row = await connection.fetchrow(
            "SELECT number, epoch, incarnation::text, state, move, to_jsonb(s) ->> 'slots' AS slots "
            f"FROM {schema}.shard s"
        )
    except asyncpg.UndefinedColumnError as error:
        raise Refused(f"{schema} is not at the newest revision: run `python -m migrations up`") from error
    if row is None:
        return None
    move = json.loads(row["move"]) if row["move"] else {}
    return Identity(schema, row["number"], row["epoch"], row["incarnation"], row["state"], move, row["slots"])


async def lock(connection: Any, address: ShardAddress) -> None:
    """Keep migrations and other commands away from a shard until the connection is closed.

    Raises:
        Refused: one of them is at work.
    """
    taken = await connection.fetchval(
        "SELECT pg_try_advisory_lock(hashtext('headgate.migrations'), hashtext($1))", address.schema
    )
    if not taken:
        raise Refused(f"{address.schema} at {server(address.dsn)} is being migrated or changed by somebody else")


async def tables(connection: Any, schema: str) -> list[str]:
    """The tables of a schema, by name."""
    rows = await connection.fetch(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') ORDER BY c.relname",
        schema,
    )
    return [row["relname"] for row in rows]
