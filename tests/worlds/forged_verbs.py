"""Verbs of callers who say what is not theirs to say: turns of runs, verbs on their DAGs, lines of logs."""

from random import Random
from typing import Any

from headgate.workflow.turns import Lease, Turn
from tests.worlds.facts import Delivery, Word
from tests.worlds.queue_verbs import has_held
from tests.worlds.registry import verb

_GUESSED = "0" * 32
# A run's DAG is changed by its code alone.
_MANAGED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("nodes", {"nodes": [{"key": "x", "topic": "n", "payload": {"tag": "forged"}}]}),
    ("retry", {"all": True}),
    ("cancel", {}),
    ("close", {}),
    ("pause", {}),
    ("resume", {}),
    ("release", {}),
    ("nodes/cancel", {"nodes": ["decider"]}),
)


async def forge_turn(
    world: Any, rng: Random, namespace: str, lease: Lease, turn: Turn, asked: list[dict[str, Any]]
) -> None:
    """Before a worker sends its turn, another sends it, who does not know what its holder does; or one that
    answers what nobody has asked, or asks for what its run has `asked` for before. Nothing of it is written: the
    turn that follows is taken."""
    body = turn.body()
    nobody = {"kind": "answer", "key": "signal:ask#99", "after": turn.seen, "fingerprint": "0" * 16, "shown": ""}
    nobody |= {"spec": {"id": "nobody", "state": "done", "output": 1}}
    choices = [{"secret": _GUESSED}, {"generation": lease.generation + 1}]
    choices += [{"generation": lease.generation - 1}] * 2 if lease.generation > 1 else []
    choices += [{"commands": [*body.get("commands", ()), nobody]}] * 2 if "seen" in body else []
    if asked and "seen" in body:
        again = [{**rng.choice(asked), "after": turn.seen}]
        choices += [{"commands": again}] * 3
    forged = body | rng.choice(choices)
    answer = await world.dag(rng, namespace, f"/dags/{lease.run}/turn", forged)
    if answer.known == "ok":
        world.fault(f"a forged turn of {lease.run} was taken: {forged} for {body}")


@verb(1, lambda world: any(run.dag for run in world.runs.all), since=7)
async def meddle_with_run(world: Any, rng: Random) -> None:
    """Nobody changes a run's DAG by the verbs of DAGs."""
    run = rng.choice([run for run in world.runs.all if run.dag])
    what, body = rng.choice(_MANAGED)
    answer = await world.dag(rng, run.namespace, f"/dags/{run.dag}/{what}", body)
    if answer.known == "ok":
        world.fault(f"{what} of {run.dag}, the DAG of run {run.id}, was taken: {body}")


@verb(2, has_held, since=7)
async def log_wrongly(world: Any, rng: Random) -> None:
    """Who holds an item writes lines of another's, or of one that has been cancelled meanwhile."""
    one = rng.choice(world.held)
    own = {delivery.token for delivery in world.history.deliveries[one.id]}
    others = [held for held in world.held if held.namespace == one.namespace and held.token not in own]
    if others and rng.random() < 0.5:
        await _log(world, rng, one, rng.choice(others).token, "with another item's token")
    elif one.dag is None and one.tag in world.history.sent:
        answer = await world.queue(rng, one.namespace, "/cancel", {"ids": [one.id]})
        [(known, result)] = answer.results(1)
        status = result.get("status", "")
        when = answer.sent, answer.done
        world.history.said(Word("cancel", one.namespace, one.id, "", known, status, *when))
        if status == "cancelled":
            await _log(world, rng, one, one.token, "and is cancelled")


async def _log(world: Any, rng: Random, held: Delivery, token: str, why: str) -> None:
    lines = [{"text": f"forged {world.serial()}"}]
    body = {"id": held.id, "lease_token": token, "attempt": held.attempt, "number": 10_000, "lines": lines}
    answer = await world.queue(rng, held.namespace, "/logs", {"items": [body]})
    [(_, result)] = answer.results(1)
    if result.get("status") in ("written", "full"):
        world.fault(f"the log of {held.id} was written {why}: {result}")
