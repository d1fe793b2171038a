"""Verbs of workers beside their items: what they say of themselves, and of their jobs, in logs and as progress."""

from random import Random
from typing import Any

from tests.worlds.facts import Delivery, Word
from tests.worlds.job_facts import Logged, Shown, Told
from tests.worlds.queue_verbs import GUESSED, has_held, has_items, say
from tests.worlds.registry import verb
from tests.worlds.world_names import NAMESPACES


def _own(world: Any, rng: Random, count: int) -> tuple[str, list[Delivery]]:
    namespace = rng.choice(world.held).namespace
    own = [held for held in world.held if held.namespace == namespace]
    return namespace, rng.sample(own, min(len(own), count))


@verb(2.5, has_held, since=4)
async def write_logs(world: Any, rng: Random) -> None:
    """Lines of jobs: of holders, of those that held an item before, of guessed tokens, of others; some twice.
    Under one token nothing else is under way meanwhile, as a worker sends one call after another."""
    namespace, chosen = _own(world, rng, rng.randint(1, 3))
    chosen += rng.sample(world.stale, min(1, len(world.stale))) if rng.random() < 0.4 else []
    chosen += [held for held in world.held if held.namespace != namespace][:1] if rng.random() < 0.2 else []
    made = [_lines(world, rng, namespace, held) for held in chosen]
    sent = [(held, one) for held, one in zip(chosen, made, strict=True) if one is not None]
    for _ in range(rng.choice((1, 1, 2)) if sent else 0):
        await _write(world, rng, namespace, sent)


def _lines(world: Any, rng: Random, namespace: str, held: Delivery) -> Logged | None:
    jobs, token = world.jobs, held.token
    if held.namespace == namespace and rng.random() < 0.1:
        token = GUESSED
    elif jobs.rounds.get(token) == world.round:
        return None
    jobs.rounds[token] = world.round
    jobs.numbers[token] = jobs.numbers.get(token, 0) + 1
    texts = [f"{held.id} {token[:8]} line {world.serial()}" for _ in range(rng.randint(1, 3))]
    is_own = held.namespace == namespace and token == held.token
    one = Logged(held.id, namespace, token, jobs.numbers[token], texts, is_own)
    jobs.logged.append(one)
    return one


async def _write(world: Any, rng: Random, namespace: str, sent: list[tuple[Delivery, Logged]]) -> None:
    items = [
        {
            "id": one.item,
            "lease_token": one.token,
            "attempt": held.attempt,
            "number": one.number,
            "lines": [{"text": text} for text in one.texts],
        }
        for held, one in sent
    ]
    answer = await world.queue(rng, namespace, "/logs", {"items": items})
    for (held, one), (known, result) in zip(sent, answer.results(len(sent)), strict=True):
        status = result.get("status", "")
        one.known.add((known, status))
        is_own = held.namespace == namespace
        told = Word("log", namespace, held.id, one.token, known, status, answer.sent, answer.done, {}, is_own)
        world.history.said(told)


@verb(1.5, has_held, since=4)
async def tell_progress(world: Any, rng: Random) -> None:
    namespace, chosen = _own(world, rng, rng.randint(1, 2))
    await _tell(world, rng, namespace, chosen)


async def _tell(world: Any, rng: Random, namespace: str, chosen: list[Delivery]) -> list[Told]:
    notes = [f"{held.id} {held.token[:8]} {world.serial()}" for held in chosen]
    lease_s = rng.choice((2.0, 5.0, 60.0))
    items = [
        {
            "id": held.id,
            "lease_token": held.token,
            "lease_s": lease_s,
            "progress": {"done": rng.randint(0, 5), "total": 5, "note": note},
        }
        for held, note in zip(chosen, notes, strict=True)
    ]
    answer = await world.queue(rng, namespace, "/extend", {"items": items})
    for held, note, (known, result) in zip(chosen, notes, answer.results(len(chosen)), strict=True):
        status, when = result.get("status", ""), (answer.sent, answer.done)
        said = {"lease_s": lease_s}
        world.history.said(Word("extend", namespace, held.id, held.token, known, status, *when, said))
        world.jobs.told.append(Told(held.id, held.token, note, known, status, *when))
    return list(world.jobs.told[-len(chosen) :])


@verb(2, has_held, since=7)
async def extend_silently(world: Any, rng: Random) -> None:
    """Who has told how far a job is extends its lease without a word of that, and it is shown as before."""
    namespace, [held] = _own(world, rng, 1)
    [told] = await _tell(world, rng, namespace, [held])
    await say(world, rng, namespace, "extend", [(held, held.token, {"lease_s": 60.0})])
    await _look(world, rng, namespace, held, told.note)


@verb(1.5, has_held, since=4)
async def look_at_items(world: Any, rng: Random) -> None:
    """What items show of their jobs; a stranger is shown nothing of them."""
    namespace, chosen = _own(world, rng, 2)
    for held in chosen:
        await _look(world, rng, namespace, held)
        stranger = rng.choice([other for other in NAMESPACES if other != namespace])
        for path in ("", "/logs"):
            told = await world.queue(rng, stranger, f"/items/{held.id}{path}", method="GET")
            if told.known == "ok" and (not path or told.body["items"]):
                world.fault(f"{stranger} is shown {path} of {namespace}'s {held.id}: {told.body}")


async def _look(world: Any, rng: Random, namespace: str, held: Delivery, behind: str = "") -> None:
    answer = await world.queue(rng, namespace, f"/items/{held.id}", method="GET")
    if answer.known == "ok":
        view = answer.body
        note = view["progress"]["note"] if view.get("progress") else None
        when = answer.sent, answer.done, behind
        world.jobs.shown.append(Shown(held.id, namespace, view["state"], view["attempt"], note, *when))


@verb(2, has_items, since=4)
async def report_worker(world: Any, rng: Random) -> None:
    """A worker tells that it is there, or leaves; it is told of cancels of its tenant's items, of no others."""
    namespace = rng.choice(NAMESPACES)
    body: dict[str, Any] = {
        "name": f"{namespace} worker {rng.randint(1, 3)}",
        "lease_s": rng.choice((3, 30)),
        "topics": [{"topic": "a", "slots": 3, "running": rng.randint(0, 3)}],
        "wait_s": rng.choice((0, 0, 0.05)),
    }
    if rng.random() < 0.2:
        body["leaving"] = True
    answer = await world.queue(rng, namespace, "/workers", body)
    for item_id in answer.body["cancelled"] if answer.known == "ok" else ():
        whose = {one.namespace for one in world.history.deliveries.get(item_id, ())}
        if whose - {namespace}:
            world.fault(f"{namespace} is told that {item_id} of {whose} is cancelled")


@verb(1, since=4)
async def list_workers(world: Any, rng: Random) -> None:
    """A tenant's own."""
    namespace = rng.choice(NAMESPACES)
    gone = rng.choice(("true", "false"))
    for worker in await world.pages(rng, world.queue, namespace, "/workers", gone=gone) or ():
        if not worker["name"].startswith(f"{namespace} "):
            world.fault(f"{namespace} is shown the worker {worker}")


# -- the way to the end


async def read_logs(world: Any, rng: Random) -> list[str]:
    """The log of each item of which somebody wrote one; what cannot be read."""
    found = []
    owners = {one.item: one.namespace for one in world.jobs.logged if one.is_own}
    for item_id, namespace in owners.items():
        log = await world.pages(rng, world.queue, namespace, f"/items/{item_id}/logs", limit=rng.choice((2, 1000)))
        if log is None:
            found.append(f"the log of {item_id} cannot be read")
        else:
            world.jobs.logs[item_id] = log
    return found
