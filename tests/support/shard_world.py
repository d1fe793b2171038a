"""A shard map in a file, two servers to move between, and `python -m shards` to change it."""

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shards.__main__ import run
from tests.support.databases import Database, Databases
from tests.support.forked import run_module
from tests.support.queue_host import QueueHost, queue_host

END_S = 60.0
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
CRASHED = -9

# What an element says that met a closed shard.
SHUT = {("refused", "shard_unavailable", "none")}


async def as_process(*argv: str, **environment: str) -> tuple[int, str]:
    """Run `python -m shards` as a process, which may kill itself; its exit code and what it said."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HEADGATE_", "PYTHON"))}
    code, output, errors = await run_module("shards", *argv, env={**inherited, **environment}, timeout_s=END_S)
    return code, output + errors


async def in_process(*argv: str) -> tuple[int, str]:
    """The same in this process, which is quicker."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        async with asyncio.timeout(END_S):
            code = await run(argv)
    return code, said.getvalue()


@dataclass
class World:
    """Two queue shards on one server, a map of them, and another server."""

    database: Database
    other: Database
    map: Path

    async def run(self, *argv: str, crash_at: str = "", code: int = 0) -> str:
        """A command on the map that ends with this code."""
        argv = ("--map", str(self.map), *argv)
        if crash_at:
            found, output = await as_process(*argv, HEADGATE_CRASH_AT=crash_at)
        else:
            found, output = await in_process(*argv)
        assert found == code, output
        return output

    def move(self, **how: Any) -> Awaitable[str]:
        """Shard 1 to the other server."""
        return self.run("move", "1", "--to", self.other.dsn, "--yes", **how)

    def host(self, **settings: Any) -> Any:
        """A process on the map."""
        return queue_host(self.database, shards="", shards_file=self.map, **settings)


@pytest.fixture
async def world(databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A map of two shards, made from the environment."""
    database = await databases.create(queue_shards=2, dag_shards=1)
    other = await databases.create_empty(queue_shards=2)
    made = World(database, other, tmp_path / "queue.json")
    monkeypatch.setenv("HEADGATE_QUEUE_SHARDS", database.queue_shards)
    await made.run("init", "--yes")
    monkeypatch.delenv("HEADGATE_QUEUE_SHARDS")
    yield made
    await databases.drop(database)
    await databases.drop(other)


@pytest.fixture
async def host(world: World) -> AsyncIterator[QueueHost]:
    """A process that follows the map when it is told to."""
    async with world.host() as made:
        yield made


async def follow(host: QueueHost) -> None:
    """Let a process look at the map, and bring to a shard that is new what was set before."""
    await host.app.app.state.follow_map()
    await host.process.agreement.step()


def refusals(results: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """The distinct (status, code, outcome) of elements."""
    return {(r["status"], r.get("code", ""), r.get("outcome", "")) for r in results}
