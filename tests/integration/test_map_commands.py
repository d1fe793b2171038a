"""The shard map changed by calls: what a command would do is said first, and it is the command of an operator."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from shards.held import hold
from shared.http.access import make_token
from shared.shards.map_file import read
from tests.support.fleet import run_for_ever
from tests.support.ports import free_port
from tests.support.queue_host import QueueHost
from tests.support.shard_world import World, world

__all__ = ["world"]


@pytest.fixture
async def host(world: World) -> AsyncIterator[QueueHost]:
    async with world.host(shard_commands=True) as made:
        yield made


async def ordered(host: QueueHost, shard: int, **body: Any) -> dict[str, Any]:
    """A command, once it has ended."""
    answer = await host.client.post(f"/v1/shards/{shard}/commands", json=body)
    assert answer.status_code == 202, answer.text
    while True:
        known = (await host.client.get("/v1/shard-commands")).json()
        found = next(each for each in known["items"] if each["id"] == answer.json()["id"])
        if found["state"] != "running":
            return dict(found)
        await asyncio.sleep(0.05)


async def planned(host: QueueHost, shard: int, **body: Any) -> dict[str, Any]:
    answer = await host.client.post(f"/v1/shards/{shard}/commands", json={**body, "dry_run": True})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def audited(host: QueueHost) -> list[tuple[str, str]]:
    found = (await host.client.get("/v1/audit")).json()["items"]
    return [(each["verb"], each["target"]) for each in found]


async def test_what_a_drain_does_is_said_first_then_done_and_undone(world: World, host: QueueHost) -> None:
    said = await planned(host, 0, kind="drain")
    assert said["state"] == "planned" and "2048 slots call it home" in said["lines"][0]
    assert [shard.draining for shard in read(world.map, "queue").shards] == [False, False]
    done = await ordered(host, 0, kind="drain")
    assert done["state"] == "done", done
    plan = read(world.map, "queue")
    assert [shard.draining for shard in plan.shards] == [True, False] and not plan.slots_of(0)
    await host.app.app.state.follow_map()
    assert (await host.client.get("/v1/shards/0")).json()["state"] == "draining"
    assert (await planned(host, 1, kind="drain"))["state"] == "planned"
    refused = await ordered(host, 1, kind="drain")
    assert refused["state"] == "failed" and "no other shard would be left" in refused["lines"][-1]
    assert (await ordered(host, 0, kind="undrain"))["state"] == "done"
    assert (await ordered(host, 0, kind="rebalance"))["state"] == "done"
    assert len(read(world.map, "queue").slots_of(0)) == 2048
    assert await audited(host) == [
        ("rebalance shard", "0"),
        ("undrain shard", "0"),
        ("drain shard (failed)", "1"),
        ("drain shard", "0"),
    ], "what was only asked for is not listed"


async def test_a_drain_that_finds_a_server_away_says_what_it_has_done(world: World) -> None:
    """The shard takes nothing new from then on; its slots stay until the command is run again."""
    plan = json.loads(world.map.read_text())
    plan["shards"][1]["dsn"] = "postgresql://nobody@127.0.0.1:1/x"
    world.map.write_text(json.dumps(plan))
    said = await world.run("drain", "1", "--yes", code=1)
    assert "it takes nothing new from now on" in said and "cannot be reached" in said
    assert read(world.map, "queue").shards[1].draining and read(world.map, "queue").slots_of(1)


async def test_a_command_that_goes_on_is_not_told_as_done(
    host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that was stopped half-way with its process."""
    started = asyncio.Event()

    async def start(*_arguments: Any, **_options: Any) -> Any:
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    assert (await host.client.post("/v1/shards/0/commands", json={"kind": "drain"})).status_code == 202
    await started.wait()
    assert await audited(host) == [("drain shard (outcome unknown)", "0")]
    await host.app.app.state.watch.map_commands.close()
    assert await audited(host) == [("drain shard (outcome unknown)", "0")]


async def test_kill_9_between_the_answer_of_a_command_and_its_end(world: World, tmp_path: Path) -> None:
    """The list of commands is lost with the process; that somebody began one, and nobody saw its end, is not."""
    port, exit_codes = free_port(), list[int]()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")} | {
        "HEADGATE_QUEUE_SHARDS_FILE": str(world.map),
        "HEADGATE_QUEUE_SHARD_COMMANDS": "true",
        "HEADGATE_QUEUE_PORT": str(port),
    }
    armed = {"HEADGATE_CRASH_AT": "map_command_over"}
    running = asyncio.create_task(
        run_for_ever("queue", lambda: environment | armed, tmp_path, exit_codes), name="a service"
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as http:
            status = 0
            while status != 202:
                with suppress(httpx.TransportError):
                    status = (await http.post("/v1/shards/0/commands", json={"kind": "drain"})).status_code
                await asyncio.sleep(0.05)
            while not exit_codes:
                await asyncio.sleep(0.05)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert exit_codes[0] == -9, "the process was to die here"
    async with world.host(shard_commands=True) as after:
        assert await audited(after) == [("drain shard (outcome unknown)", "0")]
        assert (await after.client.get("/v1/shard-commands")).json()["items"] == []
        assert (await ordered(after, 0, kind="drain"))["state"] == "done"
        assert await audited(after) == [("drain shard", "0"), ("drain shard (outcome unknown)", "0")]


async def test_a_move_names_a_shard_on_the_server_that_it_is_to(world: World, host: QueueHost) -> None:
    await world.run("add", "2", "--dsn", world.other.dsn, "--yes")
    await host.app.app.state.follow_map()
    said = await planned(host, 1, kind="move", to=2)
    assert said["lines"][0].endswith("fence it, copy it, flip the map")
    assert world.other.dsn not in "".join(said["lines"])
    assert (await ordered(host, 1, kind="move", to=2))["state"] == "done"
    assert read(world.map, "queue").shards[1].dsn == world.other.dsn


async def test_a_command_beside_another_changes_nothing(world: World, host: QueueHost) -> None:
    with hold(world.map, "queue"):
        refused = await ordered(host, 0, kind="drain")
    assert refused["state"] == "failed" and "another command is changing" in refused["lines"][-1]
    assert not read(world.map, "queue").shards[0].draining


async def test_calls_that_are_refused(world: World, host: QueueHost, tmp_path: Path) -> None:
    for shard, body, status in (
        ("0", {"kind": "remove"}, 422),
        ("0", {"kind": "move"}, 422),
        ("0", {"kind": "drain", "to": 1}, 422),
        ("0", {"kind": "move", "to": "postgresql://elsewhere"}, 422),
        ("0", {}, 422),
        ("9", {"kind": "drain"}, 404),
        ("-1", {"kind": "drain"}, 404),
    ):
        answer = await host.client.post(f"/v1/shards/{shard}/commands", json=body)
        assert answer.status_code == status, (shard, body, answer.text)
    assert (await host.client.get("/v1/shard-commands")).json() == {"enabled": True, "items": []}
    file = tmp_path / "tokens"
    given = {
        "reader": make_token(["*"], ["ops"], None),
        "tenant": make_token(["default"], ["ops", "admin"], None),
    }
    file.write_text("\n".join(line for _, line in given.values()))
    async with world.host(shard_commands=True, HEADGATE_TOKENS_FILE=file) as guarded:
        for token, _ in given.values():
            headers = {"authorization": f"Bearer {token}"}
            answer = await guarded.client.post("/v1/shards/0/commands", json={"kind": "drain"}, headers=headers)
            assert answer.status_code == 403
    async with world.host() as plain:
        answer = await plain.client.post("/v1/shards/0/commands", json={"kind": "drain"})
        assert (answer.status_code, answer.json()["code"]) == (409, "map_fixed")
        assert not (await plain.client.get("/v1/shard-commands")).json()["enabled"]
    assert read(world.map, "queue").version == 1
