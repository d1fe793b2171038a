"""The shard map as the environment gives it."""

import pytest

from services.queue.settings import QueueSettings
from shared.settings import parse_shards
from shared.shards.map_file import SLOTS
from shared.shards.shard_map import ShardMap

DSN = "postgresql://someone@127.0.0.1:1/db"


def test_named_shards() -> None:
    found = parse_shards(f"7={DSN} 0={DSN}2", "queue")

    assert [(shard.number, shard.schema, shard.dsn) for shard in found] == [
        (0, "queue_000", DSN + "2"),
        (7, "queue_007", DSN),
    ]


@pytest.mark.parametrize("separator", [" ", ",", "\n", " , \n\t"])
def test_separators(separator: str) -> None:
    assert len(parse_shards(f"0={DSN}{separator}1={DSN}", "queue")) == 2


def test_counted_shards() -> None:
    assert [shard.schema for shard in parse_shards(f"{DSN}#3", "dag")] == ["dag_000", "dag_001", "dag_002"]


def test_counted_shards_are_numbered_on_a_large_map() -> None:
    assert [shard.schema for shard in parse_shards(f"4095={DSN}", "queue")] == ["queue_4095"]


@pytest.mark.parametrize(
    "text",
    ["", " ", "x", f"0={DSN} 0={DSN}", f"{DSN}#2 1={DSN}", f"4096={DSN}", f"-1={DSN}", f"{DSN}#5000", f"0= {DSN}"],
)
def test_maps_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError):
        parse_shards(text, "queue")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 100])
def test_every_slot_has_one_home_and_homes_are_even(count: int) -> None:
    settings = QueueSettings(shards=f"{DSN}#{count}")
    shards = ShardMap(settings.plan(), settings)
    homes = [shards.of_slot(slot).number for slot in range(SLOTS)]

    assert set(homes) == set(range(count))
    sizes = [homes.count(number) for number in range(count)]
    assert max(sizes) - min(sizes) <= 1
    assert homes == sorted(homes)


def test_calls_go_round_the_shards() -> None:
    settings = QueueSettings(shards=f"{DSN}#3")
    shards = ShardMap(settings.plan(), settings)

    assert sorted(shards.next().number for _ in range(6)) == [0, 0, 1, 1, 2, 2]


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_QUEUE_PORT", "9")
    monkeypatch.setenv("HEADGATE_QUEUE_ID_WINDOW_S", "60.5")
    monkeypatch.setenv("HEADGATE_DAG_TOKEN", "secret")
    settings = QueueSettings()

    assert (settings.port, settings.id_window_s, settings.dag_token) == (9, 60.5, "secret")
