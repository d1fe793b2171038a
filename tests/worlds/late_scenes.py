"""Scenes of what falls due: somebody acts at the moment at which processes look whether it is."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from tests.worlds.faults import is_inside
from tests.worlds.registry import verb
from tests.worlds.scenes import Scene, play_of_its_own
from tests.worlds.schedule_verbs import has_schedules

_SOON_S = 0.03
Act = Callable[[], Awaitable[Any]]


async def _amid(play: Scene, duty: str, world: Any, rng: Random, acts: Sequence[Act]) -> None:
    """Each of `acts` at some moment while every process does a duty."""

    async def soon(act: Act) -> None:
        await asyncio.sleep(rng.random() * _SOON_S)
        await act()

    doing = [play.do(duty, process) for process in list(world.stage.dags)]
    await asyncio.gather(*map(soon, acts), *doing)


@verb(2, is_inside, since=9)
async def resolve_at_the_deadline(world: Any, rng: Random) -> None:
    """What was resolved, by the answer, does not fail by its deadline."""
    async with play_of_its_own(world, rng) as play:
        external = [{"name": "x", "deadline_s": 2.0}]
        nodes = [play.spec(external=external) for _ in range(8)]
        keys = [node["key"] for node in nodes]
        await play.create(*nodes)

        told: list[dict[str, Any]] = []

        async def resolve(key: str) -> None:
            answer = await play.ask("resolve", external=[{"node": key, "name": "x", "data": key}])
            told.extend(answer.body["results"] if answer.known == "ok" else ())

        async def go_on(play: Scene) -> None:
            await _amid(play, "sweeper", world, rng, [partial(resolve, key) for key in keys])
            for result in told:
                shown = await play.shown(key=result["node"])
                is_failed = any(one["failed"] for one in shown["external"])
                if result["status"] == "resolved" and is_failed and shown["generation"] == 1:
                    play.fault(f"{result} was answered, and its deadline has failed it: {shown}")

        play.later(3.0, go_on)


@verb(1.7, is_inside, since=9)
async def retry_at_the_timers_end(world: Any, rng: Random) -> None:
    """A timer that begins anew when it would have ended takes its time: see `_end` of the oracle."""
    async with play_of_its_own(world, rng) as play:
        timers = [{"key": f"n{world.serial()}", "timer": {"delay_s": 3.0}} for _ in range(3)]
        await play.create(*timers)
        await play.settle()

        async def go_on(play: Scene) -> None:
            await _amid(play, "timers", world, rng, [partial(play.ask, "retry", all=True)])
            await play.settle()

        play.later(4.0, go_on)


@verb(1.7, is_inside, since=9)
async def cancel_past_a_cleanups_deadline(world: Any, rng: Random) -> None:
    """A cleanup node whose deadline passes while its DAG is being cancelled fails in its time: the DAG ends, and
    nobody has resolved what it waits for."""
    async with play_of_its_own(world, rng) as play:
        node = play.spec()
        last = play.spec(run_on="always", external=[{"name": "x", "deadline_s": 2.0}])
        await play.create(node, last)
        await play.hold(node["key"])
        play.dag.is_left_alone = True

        async def go_on(play: Scene) -> None:
            await play.steer("cancel")
            for process in list(world.stage.dags):
                await play.do("sweeper", process)
            await play.settle()

        play.later(3.0, go_on)


@verb(2, lambda world: is_inside(world) and has_schedules(world), since=9)
async def decide_slots_at_once(world: Any, rng: Random) -> None:
    """Two processes that both take a shard for theirs decide what is due: each slot once."""
    names = {name for process in world.stage.dags for name in process.duties() if name.startswith("slots")}
    await asyncio.gather(
        *(world.stage.step(process, name) for process in list(world.stage.dags) for name in sorted(names))
    )
