"""Verbs of callers who may not: without a token, with a wrong one, a revoked one, another's, or one that lacks a
scope. What they send has no effect."""

from random import Random
from typing import Any

from tests.worlds.queue_verbs import new_item
from tests.worlds.registry import verb
from tests.worlds.tokens import Tokens
from tests.worlds.world_names import NAMESPACES

_UNKNOWN = "hg_0123456789ab_" + "00" * 24


def has_tokens(world: Any) -> bool:
    return world.stage.tokens is not None


@verb(1, has_tokens, since=2)
async def give_token_anew(world: Any, rng: Random) -> None:
    world.stage.tokens.give_anew(rng.choice(NAMESPACES))


@verb(0.5, has_tokens, since=3)
async def spoil_tokens(world: Any, rng: Random) -> None:
    """Somebody makes a mistake in the file, and takes it back."""
    world.stage.tokens.spoil()


def give_all_anew(world: Any) -> None:
    """Tenants come with others, though the file holds a line that is none."""
    if has_tokens(world):
        world.stage.tokens.spoil(for_good=True)
        for namespace in NAMESPACES:
            world.stage.tokens.give_anew(namespace)


@verb(2, has_tokens, since=2)
async def enqueue_without_leave(world: Any, rng: Random) -> None:
    """What is refused for certain never comes."""
    namespace = rng.choice(NAMESPACES)
    sent = new_item(world, rng, namespace)
    token, status = _bad(world, rng, namespace, "consume")
    body = {"items": [sent.body]}
    answer = await world.queue(rng, namespace, "/enqueue", body, token=token)
    sent.first_sent, _ = answer.sent, sent.known.add("fail")
    _judge(world, answer, status, "enqueue")


@verb(2, has_tokens, since=2)
async def act_without_leave(world: Any, rng: Random) -> None:
    """Nothing is taken, cancelled or shown."""
    namespace = rng.choice(NAMESPACES)
    token, status = _bad(world, rng, namespace, "enqueue")
    known = [sent for sent in world.history.sent.values() if sent.namespace == namespace and sent.id]
    dags = [dag for dag in world.dags.all if dag.namespace == namespace and dag.id]
    calls: list[tuple[Any, str, Any, str]] = [
        (world.queue, "/dequeue", {"topics": [{"topic": "a", "count": 5}]}, "POST"),
        (world.queue, "", {"items_max": 1}, "PUT"),
    ]
    if status != 403:  # who may enqueue may see, and cancel
        calls += [(world.queue, "/items", None, "GET")]
        calls += [(world.queue, "/cancel", {"ids": [sent.id]}, "POST") for sent in known[-1:]]
        calls += [(world.dag, f"/dags/{dag.id}/cancel", {}, "POST") for dag in dags[-1:]]
    call, path, body, method = rng.choice(calls)
    answer = await call(rng, namespace, path, body, method=method, token=token)
    _judge(world, answer, status, path)


def _bad(world: Any, rng: Random, namespace: str, scope: str) -> tuple[str, int]:
    """A token that is not to do, of a tenant's own that with this scope alone; and how it is refused."""
    tokens: Tokens = world.stage.tokens
    others = [other for other in NAMESPACES if other != namespace]
    choices = [("", 401), (_UNKNOWN, 401), (tokens.lacking(namespace, scope), 403)]
    choices += [(tokens.of(rng.choice(others)), 404)] * 2 if tokens.is_confined else []
    choices += [(revoked, 401)] * 2 if (revoked := tokens.revoked(rng)) else []
    if world.edition >= 9:  # the token of somebody who is known, its last digits guessed
        choices += [(f"{tokens.of(namespace)[:-8]}{'0' * 8}", 401)] * 2
    return rng.choice(choices)


def _judge(world: Any, answer: Any, status: int, what: str) -> None:
    # A token that is just being given anew is not known at each process; one that nobody reaches says nothing.
    if answer.known == "ok" or (answer.known == "fail" and answer.status not in (0, status, 401, 429, 503)):
        world.fault(f"{what} with a token that is to be refused as {status} was answered {answer}")
