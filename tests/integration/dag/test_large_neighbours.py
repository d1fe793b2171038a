"""A large DAG at work beside small ones: what it has much of goes beside, in pieces, and holds up nobody."""

import asyncio

from tests.support.dag_world import DagWorld

LARGE = {f"l{i}": [] for i in range(6)}


async def test_a_small_dag_passes_a_large_one_that_came_in_the_same_batch(world: DagWorld) -> None:
    world.settings.__dict__["bulk_endings_min"] = 5
    large = await world.create({**LARGE, "end": list(LARGE)})
    await world.create({"a": [], "b": ["a"]})
    await world.settle()
    for key in (*LARGE, "a"):
        world.queue.ack(key)

    holder = await world.connect()
    async with holder.transaction():
        await holder.execute("SELECT FROM dag WHERE id = $1 FOR UPDATE", large)
        async with asyncio.timeout(60):
            await world.loops.results[world.shard.number].step()
            await world.loops.relay.idle()
        assert world.queue.deliverable() == ["b"]
    await holder.close()
    await world.settle()
    assert world.queue.deliverable() == ["b", "end"]


async def test_completions_of_a_large_dag_that_wait_are_all_applied_before_a_process_goes(world: DagWorld) -> None:
    world.settings.__dict__.update(bulk_endings_min=5, completions_per_step_max=6)
    large = await world.create(LARGE)
    await world.settle()
    for key in LARGE:
        world.queue.ack(key)
    results = world.loops.results[world.shard.number]
    await results.step()
    results.stop_polling()
    await results.close()
    assert (await world.dag(large))["state"] == "succeeded"
    assert [len(body) for verb, _, body in world.queue.calls if verb == "done"] == [6]


async def test_what_a_leaving_process_applies_last_is_told_to_the_queue(world: DagWorld) -> None:
    world.settings.__dict__["bulk_endings_min"] = 5
    await world.create({**LARGE, "end": list(LARGE)})
    await world.settle()
    for key in LARGE:
        world.queue.ack(key)
    await world.loops.results[world.shard.number].step()
    async with world.queue.hold("revive") as held:
        stopping = asyncio.create_task(world.loops.stop())
        await held.reached()
        gone, _ = await asyncio.wait([stopping], timeout=0.3)
        assert not gone, "it left while a call was on its way"
        held.released.set()
        await stopping
    assert world.queue.deliverable() == ["end"]


async def test_a_fan_out_is_told_in_pieces_and_others_do_not_wait_behind_it(world: DagWorld) -> None:
    world.settings.__dict__.update(bulk_sends_min=5, bulk_send_items_max=4)
    middle = {f"m{i}": ["root"] for i in range(10)}
    await world.create({"root": [], **middle})
    await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.calls.clear()
    async with world.queue.hold("revive") as held:
        world.queue.ack("root")
        await world.loops.results[world.shard.number].step()
        await held.reached()
        world.queue.ack("a")
        await world.loops.results[world.shard.number].step()
        held.released.set()
        await world.loops.relay.idle()
    told = [
        {world.queue.items[item_id].node for item_id, _ in body}
        for verb, _, body in world.queue.calls
        if verb == "revive"
    ]
    assert {"b"} in told
    assert sorted(map(len, told)) == [1, 2, 4, 4]


async def test_a_walk_leaves_time_to_the_transactions_of_other_dags(world: DagWorld) -> None:
    context, shard = world.duties.context, world.shard
    first, second = await world.create({"a": []}), await world.create({"b": []})
    await world.settle()
    nos = {row["id"]: row["no"] for row in await world.rows("SELECT id::text, no FROM dag")}
    before_s = context.clock.monotonic_s()
    world.queue.ack("a")
    await world.settle()
    assert context.neighbour_s(shard, nos[first]) < before_s <= context.neighbour_s(shard, nos[second])
