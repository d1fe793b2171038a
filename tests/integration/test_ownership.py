"""Shards find an owner, change owners without a gap, and no epoch comes twice."""

from collections.abc import AsyncIterator

import pytest

from services.local.valkey import Valkey, ValkeySettings
from shared.redis import connect
from tests.support.databases import Database, Databases
from tests.support.owners import Owners, owners_of
from tests.support.ports import free_port


@pytest.fixture
async def four_shards(databases: Databases) -> AsyncIterator[Database]:
    made = await databases.create(queue_shards=4, dag_shards=1)
    yield made
    await databases.drop(made)


@pytest.fixture
async def valkey(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Valkey]:
    """A Valkey of the test's own."""
    server = Valkey(ValkeySettings(port=free_port(), run_dir=tmp_path_factory.mktemp("valkey")))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def owners(four_shards: Database, valkey: Valkey) -> AsyncIterator[Owners]:
    async with owners_of(four_shards, valkey.url) as made:
        yield made


@pytest.fixture
async def alone(four_shards: Database) -> AsyncIterator[Owners]:
    """Owners without Redis."""
    async with owners_of(four_shards, None) as made:
        yield made


async def test_one_process_owns_everything_at_its_first_step(owners: Owners, alone: Owners) -> None:
    for group, name in ((owners, "a"), (alone, "b")):
        await group.add(name).step()
        assert group.held() == {name: [0, 1, 2, 3]}
        await group.by_name[name].leave()


async def test_a_newcomer_is_given_its_share_without_a_shard_being_nobodys(owners: Owners) -> None:
    first, second = owners.add("a"), owners.add("b")
    await first.step()
    await second.step()
    assert owners.held() == {"a": [0, 1, 2, 3], "b": []}
    await first.step()
    await second.step()

    held = owners.held()
    assert len(held["a"]) == len(held["b"]) == 2
    assert sorted(held["a"] + held["b"]) == [0, 1, 2, 3]
    before = await owners.rows()
    await owners.settle()
    assert await owners.rows() == before, "what is even moves no more"


async def test_four_processes_have_one_each(owners: Owners) -> None:
    for name in "abcd":
        owners.add(name)
    await owners.settle()

    assert [len(held) for held in owners.held().values()] == [1, 1, 1, 1]


async def test_what_a_process_leaves_is_taken_at_once(owners: Owners) -> None:
    first, second = owners.add("a"), owners.add("b")
    await owners.settle()
    await first.leave()
    assert owners.held()["a"] == []
    await second.step()

    assert owners.held()["b"] == [0, 1, 2, 3]
    assert [row["epoch"] for row in await owners.rows()].count(1) == 0


async def test_what_a_dead_process_held_is_taken_when_its_lease_is_over(owners: Owners) -> None:
    owners.add("a")
    second = owners.add("b")
    await owners.settle()
    epochs = [row["epoch"] for row in await owners.rows()]
    mine = owners.held()["b"]
    await owners.by_name["a"]._membership.leave()
    await second.step()
    assert owners.held()["b"] == mine, "its leases run"
    await owners.lapse("a")
    await second.step()

    assert owners.held()["b"] == [0, 1, 2, 3]
    rows = await owners.rows()
    assert [row["epoch"] - epochs[n] for n, row in enumerate(rows)] == [int(n not in mine) for n in range(4)]


async def test_a_stale_owner_neither_believes_nor_takes_back(owners: Owners) -> None:
    """As after SIGSTOP: its clock shows that time has passed, the row shows another owner."""
    first = owners.add("a")
    await first.step()
    owners.clock.now_s += 4.6
    assert owners.held()["a"] == [], "before the row's lease ends"
    await first._membership.leave()
    second = owners.add("b")
    await owners.lapse("a")
    await second.step()
    assert owners.held() == {"a": [], "b": [0, 1, 2, 3]}
    before = await owners.rows()
    for shard in first._shards:
        await first._see(shard)

    assert owners.held()["a"] == []
    assert await owners.rows() == before
    await owners.settle()
    assert [len(held) for held in owners.held().values()] == [2, 2]


async def test_a_lapsed_lease_that_nobody_took_is_renewed_in_its_epoch(owners: Owners) -> None:
    first = owners.add("a")
    await first.step()
    owners.clock.now_s += 60
    await owners.lapse("a")
    assert owners.held()["a"] == []
    await first.step()

    assert owners.held()["a"] == [0, 1, 2, 3]
    assert {row["epoch"] for row in await owners.rows()} == {1}


async def test_without_redis_owners_keep_what_they_have_and_take_what_lapsed(alone: Owners) -> None:
    alone.add("a")
    alone.add("b")
    await alone.settle()
    assert alone.held() == {"a": [0, 1, 2, 3], "b": []}
    await alone.lapse("a")
    await alone.by_name["b"].step()

    assert alone.held()["b"] == [0, 1, 2, 3]


async def test_redis_goes_and_comes_back_empty(owners: Owners, valkey: Valkey) -> None:
    owners.add("a")
    owners.add("b")
    await owners.settle()
    held, rows = owners.held(), await owners.rows()
    await valkey.stop()
    await owners.settle()
    assert owners.held() == held
    await valkey.start()
    await owners.settle()

    assert owners.held() == held
    assert await owners.rows() == rows, "no shard changed its owner, no epoch went back"
    owners.add("c")
    await owners.settle()
    assert sorted(map(len, owners.held().values())) == [1, 1, 2]
    assert all(new["epoch"] >= old["epoch"] for new, old in zip(await owners.rows(), rows, strict=True))


async def test_a_member_that_takes_nothing_keeps_no_shard_from_being_owned(owners: Owners, valkey: Valkey) -> None:
    redis = connect(valkey.url)
    await redis.zadd("headgate:queue:members", {"ghost": 1e15})
    await redis.aclose()
    first = owners.add("a")
    await first.step()
    assert len(owners.held()["a"]) == 2
    owners.clock.now_s += 4
    await first.step()
    owners.clock.now_s += 2
    await first.step()

    assert owners.held()["a"] == [0, 1, 2, 3]
    await owners.settle()
    assert owners.held()["a"] == [0, 1, 2, 3], "a ghost asks for nothing, so it is given nothing"


async def test_a_restarted_process_takes_its_own_shards_at_once(owners: Owners) -> None:
    await owners.add("a").step()
    old = owners.by_name["a"]
    again = owners.add("a")
    await again.step()
    assert owners.held()["a"] == [0, 1, 2, 3]
    assert {row["epoch"] for row in await owners.rows()} == {2}
    for shard in old._shards:
        await old._see(shard)

    assert not any(old.owns(number) for number in range(4))
    await old.stop()


async def test_a_clock_that_went_back_keeps_no_shard_for_ever(alone: Owners) -> None:
    await alone.add("a").step()
    await alone.rows("UPDATE shard_owner SET expires_at = shard_now() + interval '1 h'")
    await alone.add("b").step()

    assert alone.held()["b"] == [0, 1, 2, 3]


async def test_everyone_is_the_owner_when_told_to(alone: Owners) -> None:
    for name in "ab":
        await alone.add(name, ownership="everyone").step()
    assert alone.held() == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}
    assert {row["owner"] for row in await alone.rows()} == {"a"}
    await alone.by_name["b"].leave()

    assert alone.held()["b"] == []


async def test_a_shard_that_is_down_costs_the_others_nothing(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shared.errors import ShardUnavailable

    first = owners.add("a")
    await first.step()
    [down, *_] = first._shards

    async def fail(*_args: object, **_values: object) -> None:
        raise ShardUnavailable("shard 0 cannot be reached")

    monkeypatch.setattr(down.pool, "row", fail)
    owners.clock.now_s += 3
    await first.step()
    owners.clock.now_s += 3

    assert owners.held()["a"] == [1, 2, 3]
    assert first.seen(0).epoch == 1


async def test_the_owner_does_its_duty_at_once_and_others_now_and_then(owners: Owners) -> None:
    done: list[str] = []

    async def step(name: str) -> int:
        done.append(name)
        return 0

    first, second = owners.add("a"), owners.add("b")
    for name, one in owners.by_name.items():
        loop = one.duty("test", 0, lambda name=name: step(name), interval_s=0.25)
        await one.step()
        one.pauses = loop._interval_s  # type: ignore[attr-defined]

    assert first.pauses() == 0.25  # type: ignore[attr-defined]
    assert second.pauses() == 10  # type: ignore[attr-defined]
    kicked = first._duties[0][0].waker
    assert kicked.take(), "a new owner does not wait for the pause of before"


async def test_of_two_who_saw_a_shard_free_the_first_takes_it(alone: Owners) -> None:
    both = alone.add("a"), alone.add("b")
    for one in both:
        for shard in one._shards:
            assert (await one.look(shard)).name is None
    for one in both:
        for shard in one._shards:
            await one._take(shard)
    assert alone.held() == {"a": [0, 1, 2, 3], "b": []}
