"""Verbs of items, topics and namespaces, and the way to the end of every item."""

from itertools import pairwise
from random import Random
from typing import Any

from headgate._ids import shard_of
from headgate.wire import BATCH_MAX
from tests.worlds.facts import Bulk, Delivery, End, Gate, Sent, Unheard, Word
from tests.worlds.registry import verb
from tests.worlds.stage import SHARDS_MAX
from tests.worlds.wire import Answer, Known
from tests.worlds.world_names import ENDS, NAMESPACES, NODE_TOPICS, PLAY_TOPICS, SCENE_TOPIC, SOLO_TOPIC, TOPICS

_BEST_PRIORITY = -(2**31)
GUESSED = "01234567-89ab-4cde-8f01-23456789abcd"
_LEASES_S = (1.0, 2.0, 5.0, 60.0)
# A delivery, the token that is said, and what else.
Said = tuple[Delivery, str, dict[str, Any]]


def has_held(world: Any) -> bool:
    return bool(world.held)


def has_items(world: Any) -> bool:
    return bool(world.history.sent)


# -- into the queue, and out of it


def new_item(world: Any, rng: Random, namespace: str) -> Sent:
    """An item that is to be sent."""
    tag = f"{namespace}/{world.serial()}"
    body: dict[str, Any] = {"topic": rng.choice(TOPICS), "payload": {"tag": tag}}
    options = [
        ("priority", rng.randint(-1, 1), 0.3),
        ("delay_s", rng.choice((0.5, 3.0, 20.0)), 0.2),
        ("disabled", True, 0.1),
        ("delivery", "at_most_once", 0.1),
        ("max_attempts", rng.randint(1, 3), 0.3),
        ("lease_s", rng.choice(_LEASES_S), 0.4),
        ("backoff", {"base_s": rng.choice((0, 1.0, 4.0))}, 0.4),
        ("ack_topic", rng.choice((ENDS, f"{rng.choice(NAMESPACES)}:{ENDS}")), 0.3),
        ("fairness_key", f"lane{rng.randint(1, 3)}", 0.2),
        ("metadata", {"a": rng.randint(1, 2)}, 0.2),
    ]
    body |= {name: value for name, value, share in options if rng.random() < share}
    if rng.random() < 0.15:
        body["ttl_s"] = body.get("delay_s", 0.0) + rng.choice((2.0, 8.0, 40.0))
    named = rng.random()
    if named < 0.5:
        body["id"] = world.ids.make(rng.choice(world.stage.shard_numbers()))[0]
    elif named < 0.7:
        body["idempotency_key"] = f"key {tag}"
    elif named < 0.8:
        body["affinity"] = f"home{rng.randint(1, 4)}"
    sent = Sent(tag, namespace, body["topic"], body, body.get("id"))
    if sent.id:
        sent.ids.add(sent.id)
    world.history.sent[tag] = sent
    return sent


async def send(world: Any, rng: Random, namespace: str, items: list[Sent], at: Any = None) -> None:
    """Enqueue items, `at` a process or any, whatever was said of them before."""
    at = rng.choice(world.stage.queues) if at is None else at
    body = {"items": [sent.body for sent in items]}
    answer = await world.call(rng, at, namespace, "POST", "/enqueue", body, {})
    for sent, (known, result) in zip(items, answer.results(len(items)), strict=True):
        sent.first_sent = sent.first_sent or answer.sent
        sent.known.add(known)
        if known == "ok":
            sent.ids.add(result["id"])
            sent.met_cancel |= result["status"] == "cancelled"
            if sent.namespace != namespace:
                world.fault(f"{sent.tag} was taken as {namespace}'s: {result}")


@verb(10)
async def enqueue(world: Any, rng: Random) -> None:
    """New items, with some that were sent before."""
    namespace = rng.choice(NAMESPACES)
    own = [sent for sent in world.history.sent.values() if sent.namespace == namespace]
    named = [
        sent for sent in own if "id" in sent.body or ("idempotency_key" in sent.body and "unique" not in sent.body)
    ]
    items = [new_item(world, rng, namespace) for _ in range(rng.randint(1, 5))]
    again = rng.sample(named, min(len(named), rng.choice((0, 0, 1, 2))))
    items += again
    rng.shuffle(items)
    await send(world, rng, namespace, items)


@verb(1, since=3)
async def enqueue_one_id_twice(world: Any, rng: Random) -> None:
    """Two contents under one id, in one call: the first wins."""
    namespace = rng.choice(NAMESPACES)
    sent = new_item(world, rng, namespace)
    if sent.id is None:
        sent.body.pop("idempotency_key", None)
        sent.body.pop("affinity", None)
        sent.id = sent.body["id"] = world.ids.make(rng.choice(world.stage.shard_numbers()))[0]
        sent.ids.add(sent.id)
    later = {**sent.body, "payload": {"tag": f"{sent.tag} later"}}
    answer = await world.queue(rng, namespace, "/enqueue", {"items": [sent.body, later]})
    (known, result), (of_later, told) = answer.results(2)
    sent.first_sent, _ = answer.sent, sent.known.add(known)
    if of_later == "ok" and (known != "ok" or told["status"] == "enqueued"):
        world.fault(f"of {sent.id} twice in a call the later was {told} and the first {known} {result}")
    sent.met_cancel |= known == "ok" and result["status"] == "cancelled"


@verb(14)
async def dequeue(world: Any, rng: Random) -> None:
    await take(world, rng, rng.choice(NAMESPACES), rng.choice((1, 2, 5, 10)))


async def take(
    world: Any,
    rng: Random,
    namespace: str,
    count: int,
    settle: dict[str, list[Said]] | None = None,
    chosen: list[str] | None = None,
    at: Any = None,
    wait_s: float | None = None,
) -> list[Delivery]:
    """Lease what there is of some topics, `at` a process or any; in the same call, say something of what is
    leased."""
    topics = [*TOPICS, *NODE_TOPICS, ENDS]
    if chosen is None:
        narrow = {topic for place, topic in world.limits.scenes if place == namespace}
        narrow |= {SOLO_TOPIC} if world.edition >= 7 else set()
        narrow |= {SCENE_TOPIC} if world.edition >= 8 else set()
        narrow |= set(PLAY_TOPICS) if world.edition >= 9 else set()
        chosen = [*topics, *sorted(narrow)] if world.draining else rng.sample(topics, rng.randint(1, 3))
    count = min(count, BATCH_MAX // len(chosen))
    body: dict[str, Any] = {"topics": [{"topic": topic, "count": count} for topic in chosen]}
    if rng.random() < 0.3:
        body["lease_s"] = rng.choice(_LEASES_S)
    if rng.random() < 0.2 and not world.draining:
        body["wait_s"] = 0.05
    if wait_s is not None:
        body["wait_s"] = wait_s
    if world.edition >= 4 and rng.random() < 0.3:
        body["worker"] = f"{namespace} worker {rng.randint(1, 3)}"
    if settle is not None:
        body["settle"] = {f"{name}s": _named(said) for name, said in settle.items()}
    at = rng.choice(world.stage.queues) if at is None else at
    answer = await world.call(rng, at, namespace, "POST", "/dequeue", body, {})
    if answer.code == "invalid":
        world.fault(f"a dequeue of {namespace} is refused as {answer}: {answer.body}")
    heard = {"ok": world.history.asked, "info": world.history.unheard}
    if answer.known in heard:
        heard[answer.known].append(Unheard(namespace, frozenset(chosen), answer.sent))
    for name, said in (settle or {}).items():
        _note(world, name, namespace, said, answer, answer.results(len(said), f"{name}s"))
    found = []
    for leased in answer.body["items"] if answer.known == "ok" else ():
        found.append(delivery_of(world, leased, answer, namespace, body.get("lease_s")))
        world.note(f"  leased {leased['id']} {found[-1].tag} attempt {leased['attempt']} {leased['lease_token']}")
    return found


def delivery_of(world: Any, leased: dict[str, Any], answer: Answer, namespace: str, lease_s: Any) -> Delivery:
    payload, dag = leased["payload"], leased.get("dag")
    sent = world.history.sent.get(payload.get("tag", ""))
    own_s = (sent.body.get("lease_s", 60.0) if sent else None) if dag is None else payload.get("lease_s", 60.0)
    delivery = Delivery(
        tag=payload.get("tag", f"end of {payload.get('id')}"),
        namespace=namespace,
        topic=leased["topic"],
        id=leased["id"],
        token=leased["lease_token"],
        attempt=leased["attempt"],
        lease_s=lease_s or own_s or 60.0,
        sent=answer.sent,
        done=answer.done,
        dag=dag,
        inputs=leased.get("inputs"),
    )
    world.history.delivered(delivery)
    world.held.append(delivery)
    if leased["topic"] == ENDS:
        said = payload["outcome"], payload.get("output"), payload["attempt"]
        world.history.told(End(leased["id"], payload["id"], namespace, *said))
    elif dag is None and (sent is None or sent.namespace != namespace):
        world.fault(f"{namespace} was given {payload}")
    elif dag is not None and "run" in payload:
        world.runs.delivered(delivery)
    elif dag is not None:
        world.dags.delivered(delivery, world.fault)
    return delivery


# -- what is said of leased items


def _elements(world: Any, rng: Random, namespace: str, count: int) -> list[tuple[Delivery, str]]:
    """Good elements of a tenant, with repeated, stale, forged and foreign ones among them: item and token."""
    own = [held for held in world.held if held.namespace == namespace]
    chosen = rng.sample(own, min(len(own), count))
    found = [(held, held.token) for held in chosen]
    if rng.random() < 0.3 and not world.draining:
        others = [held for held in world.held if held.namespace != namespace]
        bad = [(held, held.token) for held in others[:1]]
        bad += [(held, held.token) for held in rng.sample(world.stale, min(1, len(world.stale)))]
        bad += [(held, GUESSED) for held in own[:1]]
        bad += found[:1]
        bad += [(held, other.token) for held, other in pairwise(own)][:1]
        found += rng.sample(bad, min(len(bad), rng.randint(1, 3)))
        rng.shuffle(found)
    return found


async def say(world: Any, rng: Random, namespace: str, verb_: str, said: list[Said], at: Any = None) -> None:
    """One call about leased items, `at` a process or any, written down."""
    if said:
        at = rng.choice(world.stage.queues) if at is None else at
        answer = await world.call(rng, at, namespace, "POST", f"/{verb_}", {"items": _named(said)}, {})
        _note(world, verb_, namespace, said, answer, answer.results(len(said)))


def _named(said: list[Said]) -> list[dict[str, Any]]:
    return [{"id": held.id, "lease_token": token, **given} for held, token, given in said]


def _note(
    world: Any, verb_: str, namespace: str, said: list[Said], answer: Answer, results: list[tuple[Known, Any]]
) -> None:
    for (held, token, given), (known, result) in zip(said, results, strict=True):
        is_own = held.namespace == namespace
        status = result.get("status", "")
        world.history.said(
            Word(verb_, namespace, held.id, token, known, status, answer.sent, answer.done, given, is_own)
        )
        if verb_ != "extend" and token == held.token and known == "ok" and is_own:
            drop(world, held)


def drop(world: Any, held: Delivery) -> None:
    """Nobody works on it any more; its token may still be said."""
    if held in world.held:
        world.held.remove(held)
        world.stale.append(held)


def _one_tenant(world: Any, rng: Random) -> str:
    return str(rng.choice(world.held).namespace)


@verb(14, has_held)
async def ack(world: Any, rng: Random) -> None:
    namespace = _one_tenant(world, rng)
    elements = _elements(world, rng, namespace, rng.randint(1, 6))
    await say(world, rng, namespace, "ack", _acks(world, rng, elements))


def _acks(world: Any, rng: Random, elements: list[tuple[Delivery, str]]) -> list[Said]:
    return [
        (held, token, {"output": {"by": f"{token[:8]}-{world.serial()}"}} if rng.random() < 0.8 else {})
        for held, token in elements
    ]


@verb(4, has_held)
async def nack(world: Any, rng: Random) -> None:
    namespace = _one_tenant(world, rng)
    elements = _elements(world, rng, namespace, rng.randint(1, 3))
    await say(world, rng, namespace, "nack", [(held, token, _given_back(rng)) for held, token in elements])


def _given_back(rng: Random) -> dict[str, Any]:
    """With what an item is given back."""
    options = [
        ("delay_s", rng.choice((0, 1.0, 10.0)), 0.5),
        ("final", True, 0.25),
        ("costs_attempt", False, 0.2),
        ("error", f"error {rng.randint(1, 3)}", 0.5),
        ("metadata", {"a": 3}, 0.2),
    ]
    return {name: value for name, value, share in options if rng.random() < share}


@verb(5, has_held, since=2)
async def settle(world: Any, rng: Random) -> None:
    """Acks and nacks in the call that asks for more; an item may be in both."""
    namespace = _one_tenant(world, rng)
    acks = _acks(world, rng, _elements(world, rng, namespace, rng.randint(0, 3)))
    nacks = [
        (held, token, _given_back(rng)) for held, token in _elements(world, rng, namespace, rng.randint(0, 2))
    ]
    await take(world, rng, namespace, rng.choice((1, 5)), {"ack": acks, "nack": nacks})


@verb(3, has_held)
async def extend(world: Any, rng: Random) -> None:
    namespace = _one_tenant(world, rng)
    elements = _elements(world, rng, namespace, rng.randint(1, 3))
    said = [
        (held, token, {"lease_s": rng.choice(_LEASES_S)} if held.dag or rng.random() < 0.7 else {})
        for held, token in elements
    ]
    await say(world, rng, namespace, "extend", said)


@verb(2, has_held)
async def forget(world: Any, rng: Random) -> None:
    """A worker dies: its lease is left to run out."""
    drop(world, rng.choice(world.held))


# -- what is said of items by their ids


def _targets(world: Any, rng: Random, count: int) -> tuple[str, list[Sent]]:
    namespace = rng.choice(NAMESPACES)
    known = [sent for sent in world.history.sent.values() if len(sent.ids) == 1]
    own = [sent for sent in known if sent.namespace == namespace]
    foreign = [sent for sent in known if sent.namespace != namespace] if rng.random() < 0.2 else []
    return namespace, rng.sample(own[-40:], min(len(own[-40:]), count)) + foreign[-1:]


async def by_id(world: Any, rng: Random, verb_: str, namespace: str, items: list[Sent]) -> None:
    ids = [next(iter(sent.ids)) for sent in items]
    body: dict[str, Any] = {"ids": ids} if verb_ == "cancel" else {"items": [{"id": item_id} for item_id in ids]}
    answer = await world.queue(rng, namespace, f"/{verb_}", body)
    for sent, item_id, (known, result) in zip(items, ids, answer.results(len(items)), strict=True):
        is_own = sent.namespace == namespace
        status = result.get("status", "")
        word = Word(verb_, namespace, item_id, "", known, status, answer.sent, answer.done, {}, is_own)
        # A foreign id that is not known yet is cancelled for the stranger alone.
        if is_own or verb_ != "cancel":
            world.history.said(word)


@verb(3, has_items)
async def cancel(world: Any, rng: Random) -> None:
    namespace, items = _targets(world, rng, rng.randint(1, 2))
    if items:
        await by_id(world, rng, "cancel", namespace, items)


@verb(3, has_items)
async def revive(world: Any, rng: Random) -> None:
    namespace, items = _targets(world, rng, 6)
    items = [sent for sent in items if sent.disabled or rng.random() < 0.2]
    if items:
        await by_id(world, rng, "revive", namespace, items)


@verb(2, lambda world: world.dags.items)
async def meddle(world: Any, rng: Random) -> None:
    """A tenant has no business with a DAG's items but by its DAG."""
    namespace, item_id = rng.choice(sorted(world.dags.items))
    by = rng.choice(NAMESPACES)
    verb_ = rng.choice(("cancel", "revive"))
    body = {"ids": [item_id]} if verb_ == "cancel" else {"items": [{"id": item_id}]}
    answer = await world.queue(rng, by, f"/{verb_}", body)
    [(_, result)] = answer.results(1)
    # A stranger cancels an id of its own that nobody has seen; that an item is cancelled anybody is told.
    did = result.get("status")
    if (verb_, did) == ("revive", "revived") or ((verb_, did) == ("cancel", "cancelled") and by == namespace):
        world.fault(f"{by} {verb_}s {item_id}, a DAG's item of {namespace}: {result}")


# -- topics and namespaces


@verb(1)
async def pause(world: Any, rng: Random) -> None:
    topic, namespace = rng.choice((*TOPICS, *NODE_TOPICS)), rng.choice(NAMESPACES)
    await gate(world, rng, namespace, topic, rng.choice(("pause", "resume", "resume")))


async def gate(world: Any, rng: Random, namespace: str, topic: str, what: str) -> None:
    answer = await world.queue(rng, namespace, f"/topics/{what}", {"topic": topic})
    made = Gate(what == "pause", namespace, topic, answer.known, answer.sent, answer.done)
    world.history.gates.append(made)


@verb(0.7)
async def purge_or_redrive(world: Any, rng: Random) -> None:
    namespace, topic, kind = rng.choice(NAMESPACES), rng.choice(TOPICS), rng.choice(("purge", "redrive"))
    world.history.bulks.append(Bulk(kind, namespace, topic, world.now_s))
    await world.queue(rng, namespace, f"/topics/{kind}", {"topic": topic})


@verb(0.5)
async def quota(world: Any, rng: Random) -> None:
    """Quotas come and go; what they refuse, they refuse for certain."""
    quotas = rng.choice(
        ({}, {}, {"in_flight_max": rng.randint(1, 5)}, {"items_max": 40}, {"stored_bytes_max": 800})
    )
    await world.queue(rng, rng.choice(NAMESPACES), "", quotas, method="PUT")


@verb(0.5)
async def configure(world: Any, rng: Random) -> None:
    shares = rng.choice(([], [{"priority": 1, "share": 0.3}]))
    if shares and world.edition >= 3:
        shares[0]["priority"] = rng.choice((1, _BEST_PRIORITY))
    await world.queue(rng, rng.choice(NAMESPACES), "/topics/configure", {"topic": "a", "min_share": shares})


@verb(1)
async def list_items(world: Any, rng: Random) -> None:
    """A tenant sees its own items, and no other's."""
    namespace = rng.choice(NAMESPACES)
    for item in await world.pages(rng, world.queue, namespace, "/items") or ():
        if not str(item["payload"].get("tag", namespace)).startswith(namespace):
            world.fault(f"{namespace} sees {item}")


# -- the way to the end


async def open_all(world: Any, rng: Random) -> None:
    """No pause and no quota keeps an item any more."""
    for namespace in NAMESPACES:
        for topic in (*TOPICS, *NODE_TOPICS, *(PLAY_TOPICS if world.edition >= 9 else ())):
            await gate(world, rng, namespace, topic, "resume")
        await world.queue(rng, namespace, "", {}, method="PUT")


async def finish(world: Any, rng: Random) -> None:
    """One round of good workers: everything is revived, taken and acked."""
    for namespace in NAMESPACES:
        own = [s for s in world.history.sent.values() if s.namespace == namespace]
        unsure = [s for s in own if not s.is_promised and s.is_possible and "id" in s.body]
        # What nobody was answered for is sent again, until it is too old for that.
        if unsure:
            await send(world, rng, namespace, unsure)
        opened = [s for s in own if s.disabled and world.history.left.get(next(iter(s.ids), "")) == "disabled"]
        if opened:
            await by_id(world, rng, "revive", namespace, opened)
        await take(world, rng, namespace, 100)
        said = [(held, held.token, {"output": {"by": held.token[:8]}}) for held in world.held]
        await say(world, rng, namespace, "ack", [one for one in said if one[0].namespace == namespace])


async def look(world: Any, rng: Random) -> bool:
    """Whether nothing is left but what has died; notes that."""
    left: dict[str, str] = {}
    for namespace in NAMESPACES:
        found = await world.pages(rng, world.queue, namespace, "/items")
        if found is None:
            return False
        for item in found:
            left[item["id"]], world.history.tags[item["id"]] = item["state"], str(item["payload"].get("tag"))
            if "node" in item["payload"] or item["topic"] == ENDS:
                world.history.made.add(item["id"])
            sent = world.history.sent.get(item["payload"].get("tag"))
            # Where nobody was answered for it, nor heard that it came, its id is seen here alone.
            is_unsure = sent is not None and sent.is_possible and not sent.is_promised
            if sent is not None and (item["state"] == "disabled" or is_unsure) and sent.namespace == namespace:
                sent.ids.add(item["id"])
    world.history.left = left
    return set(left.values()) <= {"dead"} and all(shard_of(item_id) < SHARDS_MAX for item_id in left)
