"""Verbs that steer DAGs, and the way to the end of every DAG."""

from random import Random
from typing import Any

from tests.worlds.dag_facts import Dag
from tests.worlds.dag_verbs import has_dags, make, pick
from tests.worlds.registry import verb


def over(dag: Dag) -> bool:
    """Whether it was last seen ended, or was never made."""
    return dag.shown.get("state") in ("succeeded", "failed", "cancelled") or (dag.id is None and not dag.is_made)


async def steer(world: Any, rng: Random, dag: Dag, path: str, body: Any = None, keys: tuple[str, ...] = ()) -> Any:
    """A call that changes a DAG, written down."""
    answer = await world.dag(rng, dag.namespace, f"/dags/{dag.id}/{path}", body or {})
    dag.act(path, answer, keys, body)
    return answer


def _keys(rng: Random, dag: Dag, count: int) -> tuple[str, ...]:
    return tuple(rng.sample(list(dag.nodes), min(len(dag.nodes), rng.randint(1, count))))


@verb(3, has_dags)
async def control(world: Any, rng: Random) -> None:
    await steer(world, rng, pick(world, rng), rng.choice(("pause", "resume", "resume", "release", "close")))


@verb(4, has_dags)
async def resolve(world: Any, rng: Random) -> None:
    """Externals that are waited for, and some that nobody has declared yet."""
    dag = pick(world, rng)
    named = [(node.key, name) for node in dag.nodes.values() for name in node.externals]
    if rng.random() < 0.2:
        named.append((f"n{world.serial() + rng.randint(1, 20)}", "x"))
    chosen = rng.sample(named, min(len(named), 2))
    if not chosen:
        return
    external = [
        {"node": node, "name": name}
        | ({"failed": True} if rng.random() < 0.15 else {"data": f"data {world.serial()}"})
        for node, name in chosen
    ]
    await steer(world, rng, dag, "resolve", {"external": external})


@verb(1, has_dags)
async def skip(world: Any, rng: Random) -> None:
    dag = pick(world, rng)
    if keys := _keys(rng, dag, 2):
        await steer(world, rng, dag, "skip", {"nodes": list(keys)}, keys)


@verb(1, has_dags)
async def cancel_nodes(world: Any, rng: Random) -> None:
    dag = pick(world, rng)
    if keys := _keys(rng, dag, 2):
        await steer(world, rng, dag, "nodes/cancel", {"nodes": list(keys)}, keys)


@verb(0.7, has_dags)
async def cancel_dag(world: Any, rng: Random) -> None:
    body = {"reason": f"whim {world.serial()}"} if rng.random() < 0.5 else {}
    await steer(world, rng, pick(world, rng), "cancel", body)


@verb(5, has_dags)
async def retry(world: Any, rng: Random) -> None:
    """All that failed, some nodes, from some nodes down, or all."""
    dag = pick(world, rng)
    keys = _keys(rng, dag, 2)
    body: dict[str, Any] = rng.choice(({}, {"nodes": list(keys)}, {"from": list(keys)}, {"from": list(keys)}))
    if rng.random() < 0.1:
        body, keys = {"all": True}, ()
    await steer(world, rng, dag, "retry", body, keys)


@verb(2, has_dags)
async def look_at(world: Any, rng: Random) -> None:
    """Everything that a DAG can be asked; counts in one answer agree."""
    dag = pick(world, rng)
    answer = await world.dag(rng, dag.namespace, f"/dags/{dag.id}", method="GET")
    if answer.known == "ok":
        counts = dict(answer.body["nodes"])
        if counts.pop("total") != sum(counts.values()):
            world.fault(f"{dag.name} ({dag.id}) shows {answer.body['nodes']}")
    for path in rng.sample(("frontier", "outputs", "graph", "nodes"), 2):
        await world.dag(rng, dag.namespace, f"/dags/{dag.id}/{path}", method="GET")
    if dag.nodes:
        key = rng.choice(list(dag.nodes))
        for path in ("node", "timeline", "node/inputs"):
            await world.dag(rng, dag.namespace, f"/dags/{dag.id}/{path}", method="GET", key=key)
    await find_subs(world, rng, dag)


async def find_subs(world: Any, rng: Random, dag: Dag) -> None:
    """Learn the ids of the DAGs that run in the place of nodes."""
    if any("dag" in node.spec for node in dag.nodes.values()):
        for view in await world.pages(rng, world.dag, dag.namespace, f"/dags/{dag.id}/nodes") or ():
            if view["dag"] is not None:
                await find_sub(world, rng, dag.namespace, view["dag"])


async def find_sub(world: Any, rng: Random, namespace: str, dag_id: str) -> Dag | None:
    """A DAG that is known by its id, or runs in the place of a node of one that is."""
    if dag_id in world.dags.by_id:
        return world.dags.by_id[dag_id]
    answer = await world.dag(rng, namespace, f"/dags/{dag_id}", method="GET")
    parent = answer.body["parent"] if answer.known == "ok" else None
    if parent is None:
        return None  # its node is released, and it is about to be made; or it is nobody's
    above = await find_sub(world, rng, namespace, parent["dag"])
    if above is None or parent["node"] not in above.nodes:
        return None
    body = above.nodes[parent["node"]].spec["dag"]
    sub = world.dags.new(Dag(f"{above.name}/{parent['node']}", namespace, body, above.sent))
    sub.parent = (parent["dag"], parent["node"])
    world.dags.named(sub, dag_id)
    sub.add(body["nodes"], answer)
    for node in sub.nodes.values():
        node.sent = above.sent  # it is older than its being seen
    return sub


# -- the way to the end


async def let_go(world: Any, rng: Random) -> None:
    """Nothing keeps any DAG but its work."""
    for dag in list(world.dags.all):
        if dag.id is None and dag.is_made:
            await _find(world, rng, dag)
        if dag.id is None or over(dag):
            continue
        for path in ("release", "resume", "close"):
            await steer(world, rng, dag, path)
        if world.round % 4 == 0:
            await find_subs(world, rng, dag)
        external = [{"node": n.key, "name": name} for n in dag.nodes.values() for name in n.externals]
        if external and not dag.is_left_alone:
            await steer(world, rng, dag, "resolve", {"external": external})


async def _find(world: Any, rng: Random, dag: Dag) -> None:
    """A DAG whose create was not answered is there, or is not."""
    if "key" in dag.body:
        await make(world, rng, dag)
        return
    answer = await world.dag(rng, dag.namespace, "/dags", method="GET", name=dag.name)
    if answer.known == "ok" and not answer.body.get("away"):
        dag.is_made = bool(answer.body["items"])
        for found in answer.body["items"][:1]:
            world.dags.named(dag, found["id"])
        if len(answer.body["items"]) > 1:
            world.fault(f"{dag.name} was made {len(answer.body['items'])} times")


async def all_ended(world: Any, rng: Random) -> bool:
    """Whether every DAG has ended; what each shows. What had ended may have gone on for the sake of another."""
    for is_last_look in (False, True):
        for dag in world.dags.all:
            if dag.id is not None and (is_last_look or not over(dag)):
                answer = await world.dag(rng, dag.namespace, f"/dags/{dag.id}", method="GET")
                dag.shown = answer.body if answer.known == "ok" else {}
        if not all(map(over, world.dags.all)):
            return False
    return True
