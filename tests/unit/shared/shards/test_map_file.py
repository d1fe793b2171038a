"""The shard map as a file, and processes that follow it while it changes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.queue.settings import QueueSettings
from shared.settings import ShardAddress
from shared.shards.map_file import SLOTS, Plan, load, ranges, read, spread, write
from shared.shards.shard_map import MapListener, ShardMap
from tests.support.clocks import ManualClock

DSN = "postgresql://someone:secret@127.0.0.1:1/db"


def address(number: int, **fields: Any) -> ShardAddress:
    return ShardAddress(number, f"queue_{number:03d}", f"{DSN}{number}", **fields)


def plan(*numbers: int, version: int = 1) -> Plan:
    return Plan("queue", version, tuple(map(address, numbers)), spread(numbers))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    shards = (address(0, epoch=3, incarnation="x"), address(5, draining=True))
    made = Plan("queue", 7, shards, tuple(5 if slot % 3 else 0 for slot in range(SLOTS)))
    write(path, made)

    assert read(path, "queue") == made
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    write(path, replace(made, version=8))
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_made_from_the_environment_moves_no_slot(tmp_path: Path) -> None:
    given = load(f"{DSN}#3", None, "queue")
    write(tmp_path / "map", replace(given, version=1))
    assert load("", tmp_path / "map", "queue").homes == given.homes


GOOD = {"service": "queue", "version": 1, "shards": [{"number": 0, "dsn": DSN}], "slots": [[0, 4095, 0]]}


@pytest.mark.parametrize(
    "change",
    [
        {"service": "dag"},
        {"version": 0},
        {"shards": []},
        {"shards": [{"number": 0, "dsn": DSN}] * 2},
        {"shards": [{"number": 4096, "dsn": DSN}]},
        {"shards": [{"number": 0, "dsn": DSN, "state": "gone"}]},
        {"shards": [{"number": 0, "dsn": DSN, "server": "x"}]},
        {"slots": [[0, 4094, 0]]},
        {"slots": [[1, 4095, 0]]},
        {"slots": [[0, 4096, 0]]},
        {"slots": [[0, 2000, 0], [2000, 4095, 0]]},
        {"slots": [[0, 4095, 1]]},
        {"extra": 1},
    ],
)
def test_files_that_are_no_map(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "map"
    path.write_text(json.dumps(GOOD))
    assert read(path, "queue").version == 1
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(ValueError, match="shard map") as caught:
        read(path, "queue")
    assert "secret" not in str(caught.value)


def test_a_missing_file_and_two_maps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        load("", tmp_path / "map", "queue")
    with pytest.raises(ValueError, match="both set"):
        load(f"{DSN}#1", tmp_path / "map", "queue")


def test_no_map_at_all_is_told_with_an_example_of_one() -> None:
    for text in ("", " "):
        with pytest.raises(
            ValueError, match=r"HEADGATE_DAG_SHARDS is not set; .*database#4.*HEADGATE_DAG_SHARDS_FILE"
        ):
            load(text, None, "dag")


def test_ranges_cover_every_slot_once() -> None:
    assert ranges(spread([3])) == [(0, 4095, 3)]
    assert ranges(spread([1, 2])) == [(0, 2047, 1), (2048, 4095, 2)]


# -- a process that follows ---------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A map of shards 0 and 1."""
    path = tmp_path / "map.json"
    write(path, plan(0, 1))
    return path


@pytest.fixture
def shards(path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardMap:
    """A process on that map; new shards are taken for migrated."""
    settings = QueueSettings(shards_file=path, shard_join_s=0.0)

    async def migrated(_self: ShardMap, _plan: Plan) -> bool:
        return True

    monkeypatch.setattr(ShardMap, "_is_migrated", migrated)
    return ShardMap(settings.plan(), settings)


def numbers(shards: ShardMap) -> set[int]:
    return {shards.next().number for _ in range(12)}


async def test_a_shard_that_joins_takes_calls_but_no_slots(shards: ShardMap, path: Path) -> None:
    joined: list[int] = []
    homes = [shards.of_slot(slot).number for slot in range(SLOTS)]
    listener = MapListener(joined=lambda shard: joined.append(shard.number))
    write(path, Plan("queue", 2, tuple(map(address, (0, 1, 2))), spread([0, 1])))
    await shards.reload(listener)
    await shards.reload(listener)

    assert joined == [2]
    assert numbers(shards) == {0, 1, 2}
    assert [shards.of_slot(slot).number for slot in range(SLOTS)] == homes


async def test_a_shard_that_joins_takes_what_may_live_anywhere_once_others_know_it(path: Path) -> None:
    settings, clock = QueueSettings(shards_file=path, shard_join_s=5.0), ManualClock()
    shards = ShardMap(settings.plan(), settings, clock)
    shards.follow(Plan("queue", 2, tuple(map(address, (0, 1, 2))), spread([0, 1])))
    clock.advance(4.9)
    await shards.reload()

    assert shards.get(2) is not None and numbers(shards) == {0, 1}
    assert shards.is_draining(2) and not shards.is_draining(1)
    # Another change does not let it in earlier, nor later.
    shards.follow(Plan("queue", 3, (address(0, draining=True), address(1), address(2)), spread([0, 1])))
    assert numbers(shards) == {1}
    clock.advance(0.2)
    await shards.reload()
    assert numbers(shards) == {1, 2}
    assert not shards.is_draining(2)


async def test_a_draining_shard_takes_nothing_that_may_live_elsewhere(shards: ShardMap, path: Path) -> None:
    write(path, Plan("queue", 2, (address(0, draining=True), address(1)), spread([0, 1])))
    await shards.reload()

    assert numbers(shards) == {1} == set(shards.writable)
    assert shards.is_draining(0) and shards.get(0) is not None
    assert {shards.of_slot(slot).number for slot in range(SLOTS)} == {0, 1}
    write(path, Plan("queue", 3, (address(0, draining=True), address(1, draining=True)), spread([0, 1])))
    await shards.reload()
    assert numbers(shards) == {0, 1}, "better there than nowhere"


async def test_a_shard_that_moved_is_asked_where_it_is(shards: ShardMap, path: Path) -> None:
    moved: list[int] = []
    there = replace(address(1), dsn=DSN + "/elsewhere", epoch=2, incarnation="y")
    write(path, Plan("queue", 2, (address(0), there), spread([0, 1])))
    await shards.reload(MapListener(moved=lambda shard: moved.append(shard.number)))

    shard = shards.get(1)
    assert moved == [1] and shard is not None
    assert shard.address == there == shard.pool._address == shard.relaxed._address


@pytest.mark.parametrize("text", ["", "{", "[]", '{"service": "queue"}'])
async def test_a_file_that_is_no_good_changes_nothing(shards: ShardMap, path: Path, text: str) -> None:
    path.write_text(text)
    await shards.reload()
    path.unlink()
    await shards.reload()

    assert numbers(shards) == {0, 1}


async def test_an_older_map_is_not_followed(shards: ShardMap, path: Path) -> None:
    write(path, plan(0, 1, 2, version=5))
    await shards.reload()
    write(path, plan(0, 1, version=4))
    await shards.reload()

    assert shards.version == 5
    assert numbers(shards) == {0, 1, 2}


async def test_a_shard_that_is_named_no_more_is_kept_for_its_items(shards: ShardMap, path: Path) -> None:
    write(path, Plan("queue", 2, (address(0),), spread([0])))
    await shards.reload()

    assert shards.get(1) is not None
    assert numbers(shards) == {0}


@pytest.mark.parametrize(
    ("number", "epoch", "incarnation", "met"),
    [(1, 2, "b", True), (1, 3, "c", True), (1, 2, "c", False), (1, 1, "a", False), (2, 2, "b", False)],
)
def test_who_a_shard_is(number: int, epoch: int, incarnation: str, met: bool) -> None:
    """A copy from before a move, an empty one made by mistake, and another number are strangers."""
    assert address(1, epoch=2, incarnation="b").is_met_by(number, epoch, incarnation) is met
    assert address(1).is_met_by(1, epoch, incarnation)
