"""Scenes of runs: one goes on at once, with tasks that nobody else takes, and some end while its code goes on."""

from random import Random
from typing import Any

from tests.worlds.facts import Delivery
from tests.worlds.faults import is_inside
from tests.worlds.queue_verbs import Said, say, take
from tests.worlds.registry import verb
from tests.worlds.run_facts import Move, Run, Signal
from tests.worlds.run_verbs import begin, read_history, retry_calls, send_signal, work
from tests.worlds.scenes import settle, topic_of_its_own
from tests.worlds.world_names import NAMESPACES

_TURNS = 4


@verb(2.5, is_inside, since=9)
async def drive_run(world: Any, rng: Random) -> None:
    """Its code asks for tasks; they end, some without success; what it has failed with is done once more, and what
    it has not is not, though that is asked for, too."""
    run_id, namespace = f"run{world.serial()}", rng.choice(NAMESPACES)
    with topic_of_its_own(world) as topic:
        calls = [topic] * rng.choice((1, 2, 2, 3))
        wanted = {"topics": calls, "signals": rng.choice((0, 0, 1)), "sleep_s": 0.0}
        run = Run(run_id, namespace, {"tag": f"{namespace}/{run_id}", **wanted})
        if rng.random() < 0.6:
            run.input["strict"], run.is_mended = rng.choice(("one", "all", "all")), True
        run.moves.append(Move(None, world.now_s, world.now_s))
        world.runs.all.append(run)
        await begin(world, rng, run)
        for _ in range(_TURNS):
            await settle(world)
            await work(world, rng, namespace, 3)
            await settle(world)
            if run.dag is None or not await _end_tasks(world, rng, run, topic):
                return


async def _end_tasks(world: Any, rng: Random, run: Run, topic: str) -> bool:
    """What it has asked for ends, or stays with somebody while the run is told something else; whether that can be
    said of it."""
    await take(world, rng, run.namespace, 10, chosen=[topic], wait_s=0.0)
    tasks = [one for one in world.held if one.dag is not None and one.dag["id"] == run.dag]
    rng.shuffle(tasks)
    if tasks and rng.random() < 0.4:
        run.signals.append(Signal(f"s{world.serial()}", f"data {world.serial()}"))
        await send_signal(world, rng, run, run.signals[-1])
    elif tasks:
        fails = "strict" in run.input and rng.random() < 0.6
        await _say(world, rng, "nack", tasks[:1] if fails else [])
        await _say(world, rng, "ack", tasks[int(fails) :])
    elif await read_history(world, rng, run) and run.failures():
        keys = sorted({event["key"] for event in run.events if event["kind"] == "item"})
        await retry_calls(world, rng, run, keys)
    return True


async def _say(world: Any, rng: Random, verb_: str, held: list[Delivery]) -> None:
    for one in held:
        given = {"output": {"by": one.token[:8]}} if verb_ == "ack" else {"final": True}
        said: list[Said] = [(one, one.token, given)]
        await say(world, rng, one.namespace, verb_, said)
