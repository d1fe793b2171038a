"""Background statements take what they were told to take, never more (a plan may not run a LIMIT twice)."""

import pytest

from services.queue.leases.expiry import Expiry
from services.queue.model import EARLIEST
from services.queue.operations.pace import Pace
from services.queue.store.leases import SweepBounds, take_expired
from services.queue.store.names import SQL
from shared.ids import shard_of
from tests.support.queue_host import AT_ONCE, Api


async def prepare(api: Api, leases: int) -> None:
    for _ in range(leases):
        await api.enqueue_one("t", id=api.new_id(0), lease_s=1, backoff=AT_ONCE)
        await api.dequeue("t", 1)
    await api.enqueue(*({"topic": "u", "id": api.new_id(0), "delay_s": 1} for _ in range(40)))
    await api.clock.advance(2)


@pytest.mark.parametrize("limit", [1, 7])
async def test_promote_takes_its_limit(own_api: Api, limit: int) -> None:
    await prepare(own_api, 0)
    store = own_api.host.stores[0]
    for _ in range(3):
        assert len(await store.pool.fetch(SQL.promote, limit=limit, due_from=EARLIEST)) == limit

    assert await own_api.host.count("deferred") == 40 - 3 * limit


@pytest.mark.parametrize("limit", [1, 4])
async def test_a_sweep_takes_its_limit(own_api: Api, limit: int) -> None:
    await prepare(own_api, 12)
    store = own_api.host.stores[0]
    expiry: Expiry = own_api.host.process.expiry
    for _ in range(3):
        assert (await expiry.sweep(store, SweepBounds(limit))).expired == limit

    assert await own_api.host.count("lease") == 12 - 3 * limit
    assert await own_api.host.count("ready") == 3 * limit


async def test_a_sweep_takes_a_part_of_a_large_lease(own_api: Api) -> None:
    """Its other items stay under their token, which an ack may still use; acked ones count for nothing."""
    ids = [own_api.new_id(0) for _ in range(10)]
    await own_api.enqueue(*({"topic": "t", "id": item_id, "lease_s": 1, "backoff": AT_ONCE} for item_id in ids))
    held = await own_api.dequeue("t", 10)
    await own_api.ack(held[1])
    await own_api.clock.advance(2)
    store, expiry = own_api.host.stores[0], own_api.host.process.expiry

    swept = await expiry.sweep(store, SweepBounds(3))
    assert (swept.expired, swept.ids) == (3, 4)
    assert await own_api.ack(held[0], *held[2:]) == ["lease_lost"] * 3 + ["acked"] * 6
    swept = await expiry.sweep(store, SweepBounds(3))
    assert (swept.expired, swept.ids) == (0, 6)
    assert await own_api.host.count("lease") == 0
    assert {item["attempt"] for item in await own_api.dequeue("t", 10)} == {2}


async def test_a_sweep_looks_at_a_bounded_number_of_ids(own_api: Api) -> None:
    """Whole leases of acked items, as long as they do not name too many."""
    for _ in range(4):
        await own_api.enqueue(*({"topic": "t", "id": own_api.new_id(0), "lease_s": 1} for _ in range(5)))
        await own_api.ack(*await own_api.dequeue("t", 5))
    await own_api.clock.advance(2)
    store, expiry = own_api.host.stores[0], own_api.host.process.expiry

    assert (await expiry.sweep(store, SweepBounds(100, ids_max=6))).ids == 10
    assert await own_api.host.count("lease") == 2
    assert (await expiry.sweep(store, SweepBounds(100, groups_max=1))).ids == 5


@pytest.mark.parametrize("bound", ["items_max", "ids_max", "groups_max", "look_max"])
async def test_a_sweep_that_came_to_a_bound_is_followed_by_another_at_once(own_api: Api, bound: str) -> None:
    await prepare(own_api, 3)
    store, expiry = own_api.host.stores[0], own_api.host.process.expiry
    bounds = SweepBounds(100)._replace(**{bound: 2})

    assert [(await expiry.sweep(store, bounds)).was_full for _ in range(2)] == [True, False]
    assert await own_api.host.count("lease") == 0


async def test_a_sweep_that_took_all_that_ran_out_is_not_followed_by_one_that_finds_nothing(own_api: Api) -> None:
    await prepare(own_api, 3)
    reaper = own_api.host.reapers[0]
    await reaper.look()
    assert await reaper.sweep_step() == 3
    assert not reaper.leases.is_due
    await own_api.enqueue_one("t", id=own_api.new_id(0), lease_s=1, backoff=AT_ONCE)
    await own_api.dequeue("t", 4)
    await own_api.clock.advance(2)

    assert await reaper.sweep_step() == 0  # nobody has looked since
    await reaper.look()
    assert await reaper.sweep_step() > 0


async def test_a_namespace_with_many_leases_does_not_keep_back_anothers(own_api: Api) -> None:
    """They ran out first; the sweep after its own is another namespace's all the same."""
    other, third = Api(own_api.host), Api(own_api.host)
    for api in (own_api, own_api, own_api, other, third):
        item = {"topic": "t", "lease_s": 1, "backoff": AT_ONCE}
        await api.enqueue(*({**item, "id": api.new_id(0)} for _ in range(20)))
        assert len(await api.dequeue("t", 20)) == 20
    await own_api.clock.advance(2)
    [reaper, _] = own_api.host.reapers
    reaper._sweeps = Pace(5)
    await reaper.look()
    for _ in range(3):
        assert await reaper.sweep_step() == 5

    assert {len(await api.dequeue("t", 20)) for api in (own_api, other, third)} == {5}


async def test_two_transactions_share_the_work_instead_of_waiting(own_api: Api) -> None:
    await prepare(own_api, 6)
    pool = own_api.host.stores[0].pool

    async def outer(tx: object) -> tuple[list[str], list[str]]:
        mine = await take_expired(tx, SweepBounds(4, groups_max=4))  # type: ignore[arg-type]
        theirs = await pool.transaction(lambda other: take_expired(other, SweepBounds(4, groups_max=4)))
        return [group.token for group in mine], [group.token for group in theirs]

    mine, theirs = await pool.transaction(outer)
    assert (len(mine), len(theirs)) == (4, 2)
    assert not set(mine) & set(theirs)


async def test_counts_are_folded_without_losing_one(own_api: Api) -> None:
    for turn in range(5):
        await own_api.enqueue(*({"topic": "t"} for _ in range(3)))
        await own_api.ack(*await own_api.dequeue("t", 1))
        await own_api.host.fold()
        assert (await own_api.topic("t"))["ready"] == 2 * (turn + 1)
    assert await own_api.host.count("stat_delta") == 0


async def test_the_end_of_a_delay_is_met_at_once_and_ends_of_leases_together(own_api: Api) -> None:
    await own_api.clock.freeze()
    affine = {"topic": "t", "affinity": "x"}
    [made] = await own_api.enqueue({**affine, "lease_s": 1, "backoff": AT_ONCE})
    reaper = next(each for each in own_api.host.reapers if each._store.number == shard_of(made["id"]))
    await reaper.look()
    assert (reaper.delays.is_due, reaper.leases.is_due, reaper.pause_s()) == (False, False, 0.25)

    await own_api.dequeue_one("t")
    await own_api.clock.advance(0.99)
    await reaper.look()
    assert (reaper.leases.is_due, reaper.pause_s()) == (False, reaper._settings.reap_interval_s)
    await own_api.enqueue({**affine, "delay_s": 0.005})
    await reaper.look()
    assert reaper.pause_s() == pytest.approx(0.005)
    await own_api.clock.advance(0.02)
    await reaper.look()
    assert (reaper.delays.is_due, reaper.leases.is_due) == (True, True)
    await reaper.promote_step()
    await reaper.sweep_step()
    assert await own_api.host.count("ready") == 2
