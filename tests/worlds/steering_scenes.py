"""Scenes of DAGs that are steered: cancelled, retried, paused and linked at the moment at which it matters."""

import asyncio
from random import Random
from typing import Any

from tests.worlds.faults import is_inside
from tests.worlds.registry import verb
from tests.worlds.scenes import Otherwise, Scene, play_of_its_own
from tests.worlds.world_names import NAMESPACES

_LOOKS_MAX = 20
_LOOK_S = 0.1
_WAIT_S = 0.3
_BEFORE_S = 0.1  # until they wait
_STEPS_OF_A_RETRY = 3


def _reason(world: Any) -> str:
    return f"whim {world.serial()}"


@verb(1.7, is_inside, since=9)
async def cancel_amid_cleanup(world: Any, rng: Random) -> None:
    """A cancel that comes when all that is left cleans up changes nothing."""
    async with play_of_its_own(world, rng) as play:
        node, last = play.spec(), play.spec(run_on=rng.choice(("always", "succeeded")))
        await play.create(node, last)
        await play.ack(node["key"])
        await play.hold(last["key"])
        await play.steer("cancel", reason=_reason(world))
        await play.ack(last["key"])
        await play.settle()
        shown = await play.shown()
        if shown["state"] == "cancelled" or shown["reason"]:
            play.fault(f"it was cancelled when all that was left cleaned up, for {shown['reason']}")


@verb(1.7, is_inside, since=9)
async def cancel_twice(world: Any, rng: Random) -> None:
    """The first one's reason stays."""
    async with play_of_its_own(world, rng) as play:
        node = play.spec()
        await play.create(node, play.spec(node["key"]))
        await play.hold(node["key"])
        first = _reason(world)
        await play.steer("cancel", reason=first)
        await play.steer("cancel", reason=_reason(world))
        await play.settle()
        if (reason := (await play.shown())["reason"]) != first:
            play.fault(f"its reason is {reason}, and it was cancelled for {first}")


@verb(1.7, is_inside, since=9)
async def retry_below(world: Any, rng: Random) -> None:
    """A DAG in the place of a node that is retried by itself takes the node along: see `_parents`."""
    async with play_of_its_own(world, rng) as play:
        inner = play.spec()
        above = play.spec()
        inner["payload"]["tag"] = f"{play.dag.name}/{above['key']}/{inner['key']}"
        await play.create({"key": above["key"], "dag": {"nodes": [inner]}}, play.spec(above["key"]))
        below = await play.below(above["key"])
        await play.fail(inner["key"])
        await play.settle()
        await play.steer_below(below, "retry", (inner["key"],), nodes=[inner["key"]])
        await play.ack(inner["key"])
        await play.settle()


@verb(1.7, is_inside, since=9)
async def link_too_late(world: Any, rng: Random) -> None:
    """An edge into what runs is refused, while its upper node runs."""
    async with play_of_its_own(world, rng) as play:
        up, down = play.spec(), play.spec()
        await play.create(up, down)
        await play.hold(up["key"])
        await play.hold(down["key"])
        answer = await play.link(rng.choice(world.stage.dags), up["key"], down["key"])
        if answer.known == "ok":
            play.fault(f"{down['key']}, which runs, is to wait for {up['key']}, which does, by now: {answer.body}")


@verb(1.7, is_inside, since=9)
async def close_a_cycle(world: Any, rng: Random) -> None:
    """Two processes add edges by turns, which together would close a cycle."""
    async with play_of_its_own(world, rng) as play:
        specs = [play.spec() for _ in range(3)]
        first, second, third = (spec["key"] for spec in specs)
        play.dag.body["hold"] = True
        await play.create(*specs)
        at, other = rng.sample(world.stage.dags, 2)
        for where, up, down in ((at, first, second), (other, second, third)):
            answer = await play.link(where, up, down)
            if answer.known != "ok":
                raise Otherwise(f"no edge: {answer}")
            play.linked(up, down, answer)
        answer = await play.link(at, third, first)
        if answer.known == "ok":
            play.fault(f"a cycle of {first}, {second} and {third} was taken: {answer.body}")


@verb(1.7, is_inside, since=9)
async def retry_before_the_queue_hears(world: Any, rng: Random) -> None:
    """What two retries have superseded, one right after the other, is gone from the queue once that is told."""
    async with play_of_its_own(world, rng) as play:
        node = play.spec()
        await play.create(node)
        await play.settle()
        for _ in range(2):
            await play.steer("retry", all=True)
            for process in _STEPS_OF_A_RETRY * list(world.stage.dags):
                await play.do("walks", process)
        begun, moves = world.stage.begun, world.history.moves
        for _ in range(_LOOKS_MAX):
            await play.settle()
            there = await _generations(world, rng, play)
            if there is None or there <= {3}:
                return
            await asyncio.sleep(_LOOK_S)
        if world.stage.begun == begun and world.history.moves == moves and world.now_s not in world.history.cuts:
            play.fault(f"{node['key']} is in generation 3, and there are {sorted(there)}")


async def _generations(world: Any, rng: Random, play: Scene) -> set[int] | None:
    """Of its items that are there."""
    items = await world.pages(rng, world.queue, play.dag.namespace, "/items", topic=play.topic)
    if items is None:
        return None
    return {item["dag"]["generation"] for item in items if item.get("dag") and item["dag"]["id"] == play.dag.id}


@verb(1.7, is_inside, since=9)
async def retry_whose_key_is_taken(world: Any, rng: Random) -> None:
    """A DAG that has failed is not retried beside the one that has its unique key by now."""
    namespace = rng.choice(NAMESPACES)
    async with (
        play_of_its_own(world, rng, namespace) as play,
        play_of_its_own(world, rng, namespace) as other,
    ):
        key = play.dag.name
        node, another = play.spec(), other.spec()
        for one, spec in ((play, node), (other, another)):
            # One that nobody was told of is looked for by its name.
            one.dag.body["key"], one.dag.body["unique"] = key, True
            try:
                await one.create(spec)
            finally:
                del one.dag.body["key"], one.dag.body["unique"]
            if one is play:
                await play.fail(node["key"])
                await play.settle()
                if (await play.shown())["state"] != "failed":
                    raise Otherwise("it has not ended yet")
        answer = await play.ask("retry", (node["key"],), nodes=[node["key"]])
        if answer.known == "ok":
            play.fault(f"it was retried, and {other.dag.id} has its key {key}")


@verb(2, is_inside, since=9)
async def ack_what_waits(world: Any, rng: Random) -> None:
    """What an ack would release is not, where the DAG was paused or cancelled since, or it is to wait a while; at
    each process somebody waits for it."""
    async with play_of_its_own(world, rng) as play:
        how = rng.choice(("pause", "cancel", "delay", "delay"))
        # At a time, or one of several.
        nodes = [play.spec() for _ in range(rng.choice((1, 2)))]
        given = {"delay_s": 5.0} if how == "delay" else {}
        child = play.spec(*(node["key"] for node in nodes), **given)
        await play.create(*nodes, child)
        for node in nodes:
            await play.hold(node["key"])
        if how != "delay":
            await play.steer(how)

        async def ack() -> None:
            await asyncio.sleep(_BEFORE_S)
            await play.ack_all([node["key"] for node in nodes])

        waiting = [play.take(process, _WAIT_S) for process in list(world.stage.queues)]
        await asyncio.gather(*waiting, ack())
        play.is_absent(child["key"], f"its DAG is told to {how}")


@verb(1.7, is_inside, since=9)
async def undo(world: Any, rng: Random) -> None:
    """A compensation is given what it undoes: see `_undoing` of the oracle. What died and was retried is gone: see
    `_dead`."""
    async with play_of_its_own(world, rng) as play:
        node = play.spec()
        failing = play.spec(node["key"])
        undoing = play.spec(compensates=node["key"], pass_outputs=True)
        del undoing["upstream"]
        await play.create(node, failing, undoing)
        await play.ack(node["key"])
        await play.fail(failing["key"])
        await play.ack(undoing["key"])
        await play.settle()
        if rng.random() < 0.5:
            await play.retry("nodes", failing["key"])
            await play.ack(node["key"])
            await play.ack(failing["key"])


@verb(1, is_inside, since=9)
async def fail_and_retry(world: Any, rng: Random) -> None:
    """What died and was retried, and has succeeded, is gone: see `_dead` of the oracle."""
    async with play_of_its_own(world, rng) as play:
        node = play.spec()
        await play.create(node)
        await play.fail(node["key"])
        await play.retry("nodes", node["key"])
        await play.ack(node["key"])


@verb(1.7, is_inside, since=9)
async def ack_amid_a_retry(world: Any, rng: Random) -> None:
    """The last node that runs ends while a retry reopens the others, some at a time: its DAG goes on."""
    async with play_of_its_own(world, rng) as play:
        line = [play.spec()]
        for _ in range(3):
            line.append(play.spec(line[-1]["key"]))
        beside = play.spec()
        await play.create(*line, beside)
        await play.hold(beside["key"])
        await play.fail(line[0]["key"])
        await play.settle()
        await play.steer("retry")
        await play.ack(beside["key"])
        await play.settle()
        for spec in line:
            await play.ack(spec["key"])


@verb(1, is_inside, since=9)
async def end_below_at_once(world: Any, rng: Random) -> None:
    """The last nodes of a DAG in the place of a node end in one call: the node ends, too."""
    async with play_of_its_own(world, rng) as play:
        inner, above = [play.spec() for _ in range(2)], play.spec()
        for spec in inner:
            spec["payload"]["tag"] = f"{play.dag.name}/{above['key']}/{spec['key']}"
        await play.create({"key": above["key"], "dag": {"nodes": inner}}, play.spec(above["key"]))
        await play.below(above["key"])
        for spec in inner:
            await play.hold(spec["key"])
        await play.ack_all([spec["key"] for spec in inner])
