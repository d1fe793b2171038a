"""Commands on the shard map as processes: no more at a time than that, and all of them end."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shared.clock import SystemClock
from shared.console.map_commands import MapCommands
from shared.errors import Unavailable


@pytest.fixture
def commands() -> MapCommands:
    settings: Any = SimpleNamespace(shards_file=Path("map.json"), shard_commands=True)
    audit_log: Any = None
    return MapCommands("queue", settings, SystemClock(), audit_log)


async def test_a_click_again_and_again_starts_no_more_processes_than_a_few(
    commands: MapCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    async def start(*_arguments: Any, **_options: Any) -> Any:
        started.append(1)
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    begun = [commands.begin("drain", 0, None) for _ in range(4)]
    with pytest.raises(Unavailable):
        commands.begin("drain", 0, None)
    with pytest.raises(Unavailable):
        await commands.plan("drain", 0, None)
    await asyncio.sleep(0)
    assert len(started) == len(commands.known()) == 4
    await commands.close()
    assert {command.state for command in begun} == {"failed"}


async def test_a_command_that_cannot_be_started_has_failed_and_says_why(
    commands: MapCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(*_arguments: Any, **_options: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    planned = await commands.plan("drain", 0, None)
    assert (planned.state, planned.lines) == (
        "failed",
        ["it could not be started: Resource temporarily unavailable"],
    )
    begun = commands.begin("drain", 0, None)
    while begun.ended_at is None:
        await asyncio.sleep(0)
    assert (begun.state, begun.lines) == (planned.state, planned.lines)
