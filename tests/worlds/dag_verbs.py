"""Verbs that build DAGs: create, add, link, expand, with everything that a node can be."""

from random import Random
from typing import Any

from tests.worlds.dag_facts import Dag, Edge
from tests.worlds.registry import verb
from tests.worlds.wire import Answer
from tests.worlds.world_names import NAMESPACES, NODE_TOPICS

TRIGGERS = ("all_succeeded",) * 5 + ("all_done", "none_failed", "any_succeeded", "any_failed")
_DEPTH_MAX = 2


def has_dags(world: Any) -> bool:
    return any(dag.id for dag in world.dags.all)


def pick(world: Any, rng: Random) -> Dag:
    """A DAG that is known by its id, rather a young one."""
    known = [dag for dag in world.dags.all if dag.id]
    return rng.choice(known[-6:] if rng.random() < 0.8 else known)


def node_spec(world: Any, rng: Random, tag: str, ups: list[str], depth: int = 0) -> dict[str, Any]:
    """A random node that waits for some of `ups`."""
    key = f"n{world.serial()}"
    upstream = rng.sample(ups, min(len(ups), rng.choice((0, 1, 1, 1, 2, 3))))
    spec: dict[str, Any] = {"key": key}
    if upstream:
        spec |= {"upstream": upstream, "trigger": rng.choice(TRIGGERS)}
    external = [name for name in ("x", "y") if rng.random() < 0.08]
    if external:
        spec["external"] = [
            {"name": name, "deadline_s": rng.choice((2.0, 15.0))} if rng.random() < 0.3 else name
            for name in external
        ]
    if rng.random() < 0.15:
        spec["tolerate"] = True
    if depth < _DEPTH_MAX and rng.random() < 0.06:
        return spec | {"dag": sub_dag(world, rng, f"{tag}/{key}", depth + 1)}
    item = item_spec(rng, f"{tag}/{key}")
    # By its number: seeds that are kept choose the rest as they did.
    number = int(key[1:])
    return spec | ({"timer": {"delay_s": float(number % 4)}} if number % 13 == 7 else item)


def item_spec(rng: Random, tag: str) -> dict[str, Any]:
    """What a node says of its item."""
    spec: dict[str, Any] = {"topic": rng.choice(NODE_TOPICS), "payload": {"tag": tag, "node": True}}
    options = [
        ("max_attempts", rng.randint(1, 2), 0.3),
        ("backoff", {"base_s": rng.choice((0, 2.0))}, 0.3),
        ("pass_outputs", True, 0.4),
        ("priority", rng.randint(-1, 1), 0.2),
        ("delay_s", 1.0, 0.1),
        ("ttl_s", 30.0, 0.05),
    ]
    spec |= {name: value for name, value, share in options if rng.random() < share}
    if rng.random() < 0.5:
        spec["lease_s"] = rng.choice((2.0, 5.0))
        spec["payload"]["lease_s"] = spec["lease_s"]
    return spec


def sub_dag(world: Any, rng: Random, tag: str, depth: int) -> dict[str, Any]:
    """A DAG that runs for a node, or a schedule."""
    nodes: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 3)):
        nodes.append(node_spec(world, rng, tag, [node["key"] for node in nodes], depth))
    return {"nodes": nodes} | ({"on_failure": "cancel"} if rng.random() < 0.2 else {})


def _for_the_end(world: Any, rng: Random, tag: str, keys: list[str]) -> dict[str, Any]:
    """Cleanup, or a compensation of some node."""
    spec = {"key": f"z{world.serial()}"} | item_spec(rng, f"{tag}/end")
    if keys and rng.random() < 0.5:
        return spec | {"compensates": rng.choice(keys)}
    if world.edition >= 3 and rng.random() < 0.5:
        spec["external"] = [{"name": "x", "deadline_s": rng.choice((2.0, 15.0))}]
    return spec | {"run_on": rng.choice(("always", "succeeded", "failed", "cancelled", "unsuccessful"))}


@verb(3)
async def create(world: Any, rng: Random) -> None:
    namespace = rng.choice(NAMESPACES)
    name = f"{namespace}/d{world.serial()}"
    nodes: list[dict[str, Any]] = []
    for _ in range(rng.choice((0, 1, 2, 4, 4, 8, 12))):
        nodes.append(node_spec(world, rng, name, [node["key"] for node in nodes]))
    plain = [node["key"] for node in nodes if "dag" not in node]
    while nodes and rng.random() < 0.2:
        nodes.append(_for_the_end(world, rng, name, plain))
        if "compensates" in nodes[-1]:
            plain.remove(nodes[-1]["compensates"])
    if world.edition >= 3 and not nodes and rng.random() < 0.5:
        nodes.append(_for_the_end(world, rng, name, []))
    body: dict[str, Any] = {"name": name, "nodes": nodes}
    options = [
        ("key", name, 0.7),
        ("open", True, 0.5),
        ("hold", True, 0.15),
        ("on_failure", "cancel", 0.2),
        ("deadline_s", rng.choice((5.0, 30.0)), 0.1),
        ("priority", {"inherit": 2, "critical_path": 1}, 0.15),
    ]
    body |= {field: value for field, value, share in options if rng.random() < share}
    dag = world.dags.new(Dag(name, namespace, body, world.now_s))
    await make(world, rng, dag)
    if "key" in body and rng.random() < 0.2:
        await make(world, rng, dag)


async def make(world: Any, rng: Random, dag: Dag) -> None:
    """Create a DAG, again if it was perhaps made."""
    answer = await world.dag(rng, dag.namespace, "/dags", dag.body)
    if answer.code == "add_unfinished":
        answer = Answer("info", answer.sent, answer.done)
    dag.add(dag.body["nodes"], answer)
    if answer.code == "invalid":
        world.fault(f"{dag.name} is refused as {answer}: {dag.body}")
    if answer.known != "ok":
        return
    if answer.body["namespace"] != dag.namespace or (dag.id or answer.body["id"]) != answer.body["id"]:
        world.fault(f"{dag.name} ({dag.id}) was made as {answer.body}")
    world.dags.named(dag, answer.body["id"])


@verb(4, has_dags)
async def add(world: Any, rng: Random) -> None:
    dag = pick(world, rng)
    keys = [key for key, node in dag.nodes.items() if not node.is_last]
    specs: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 4)):
        specs.append(node_spec(world, rng, dag.name, keys + [spec["key"] for spec in specs]))
    known = [node.spec for node in dag.nodes.values()]
    if known and rng.random() < 0.2:
        specs.append(rng.choice(known))  # the same again
    await _add(world, rng, dag, specs)


async def _add(world: Any, rng: Random, dag: Dag, specs: list[dict[str, Any]]) -> None:
    answer = await world.dag(rng, dag.namespace, f"/dags/{dag.id}/nodes", {"nodes": specs})
    dag.add(specs, _settled(answer))


def _settled(answer: Answer) -> Answer:
    """What was written and is being made known to the queue is there, some time."""
    if answer.code == "add_unfinished":
        return Answer("info", answer.sent, answer.done, answer.status, answer.body)
    return answer


@verb(3, has_dags)
async def link(world: Any, rng: Random) -> None:
    """Edges between nodes that are there; some close a cycle, or come too late."""
    dag = pick(world, rng)
    keys = [key for key, node in dag.nodes.items() if not node.is_last]
    if len(keys) < 2:
        return
    pairs = [tuple(rng.sample(keys, 2)) for _ in range(rng.randint(1, 2))]
    body = {"dependencies": [{"upstream": up, "downstream": down} for up, down in pairs]}
    answer = await world.dag(rng, dag.namespace, f"/dags/{dag.id}/dependencies", body)
    if answer.known != "fail":
        since = answer.done if answer.known == "ok" else None
        dag.edges += [Edge(up, down, since) for up, down in pairs]


@verb(3, lambda world: any(held.dag for held in world.held))
async def expand(world: Any, rng: Random) -> None:
    """A node that runs, or did, adds children; some that are there already."""
    running = [held for held in (*world.held, *world.stale) if held.dag and held.dag["id"] in world.dags.by_id]
    if not running:
        return
    held = rng.choice(running)
    dag, key = world.dags.by_id[held.dag["id"]], held.dag["node"]
    specs: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 3)):
        specs.append(node_spec(world, rng, dag.name, [spec["key"] for spec in specs]))
    adopted = [k for k, node in dag.nodes.items() if k != key and not node.is_last and "dag" not in node.spec]
    if adopted and rng.random() < 0.3:
        specs.append(dag.nodes[rng.choice(adopted)].spec)
    body: dict[str, Any] = {"node": key, "nodes": specs}
    if rng.random() < 0.7:
        body["generation"] = held.dag["generation"]
    await expand_by(world, rng, dag, body)


async def expand_by(world: Any, rng: Random, dag: Dag, body: dict[str, Any]) -> Answer:
    """An expansion, written down."""
    answer = _settled(await world.dag(rng, dag.namespace, f"/dags/{dag.id}/expand", body))
    dag.add(body["nodes"], answer)
    pairs = [(body["node"], spec["key"]) for spec in body["nodes"]]
    if answer.known == "ok":
        dag.children += [(*pair, answer.done) for pair in pairs]
    elif answer.known == "info":
        dag.perhaps_children += pairs
    return answer


@verb(0.7, has_dags)
async def build_in_anothers(world: Any, rng: Random) -> None:
    """Another tenant's DAG is not there."""
    dag = pick(world, rng)
    stranger = rng.choice([namespace for namespace in NAMESPACES if namespace != dag.namespace])
    path = rng.choice(("", "/nodes", "/dependencies", "/cancel", "/retry", "/resolve", "/pause"))
    bodies: dict[str, Any] = {
        "/nodes": {"nodes": [{"key": "evil", "topic": "n"}]},
        "/dependencies": {"dependencies": [{"upstream": "a", "downstream": "b"}]},
        "/resolve": {"external": [{"node": "a", "name": "x"}]},
    }
    method = "POST" if path else "GET"
    body = bodies.get(path, {}) if path else None
    answer = await world.dag(rng, stranger, f"/dags/{dag.id}{path}", body, method=method)
    if answer.known == "ok" or (answer.known == "fail" and answer.status not in (0, 404, 429, 503)):
        world.fault(f"{stranger} is answered {answer} about {dag.name}{path}")
