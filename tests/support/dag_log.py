"""What the log of a DAG's changes must not tell: D1, D6, D8 of any history, whatever made it."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from services.dag import changes
from services.dag.changes import Logged
from services.dag.graph import decide
from services.dag.model import NODE_BITS, TRANSITIONS, UNDO, Counts

_MASK = (1 << NODE_BITS) - 1
_LOGS = """
SELECT dag_no, last_event, at, nodes, dag FROM change
WHERE $1::uuid IS NULL OR dag_no = (SELECT no FROM dag WHERE id = $1) ORDER BY dag_no, last_event
"""
_NODES = """
SELECT no, state, generation, trigger, run_on,
    ARRAY(SELECT up FROM edge WHERE down = node.no) AS ups,
    ARRAY(SELECT up FROM edge JOIN expansion ON child_no = up WHERE down = node.no) AS children
FROM node WHERE dag_no = $1
"""


async def check(connection: Any, dag: str | None) -> None:
    """Every DAG that a shard has the log of, or one."""
    logs: dict[int, list[Logged]] = defaultdict(list)
    for dag_no, *row in await connection.fetch(_LOGS, dag):
        logs[dag_no] += changes.read(*row)
    for dag_no, log in logs.items():
        nodes = {row["no"] - (dag_no << NODE_BITS): row for row in await connection.fetch(_NODES, dag_no)}
        _check(log, nodes)


def _check(log: list[Logged], nodes: dict[int, Any]) -> None:
    """Changes are numbered without gaps, each may follow the one before, the last ones are how it stands, and
    whatever was released had been let go by the DAG and by its upstreams as they stood then."""
    stood: dict[int, tuple[str, int]] = {}
    dag: dict[str, Any] = {}
    for number, change in enumerate(log, 1):
        assert change.number == number, f"a gap before change {change.number}"
        if change.n is None:
            dag = change.dag
            continue
        node = nodes.get(change.n)
        was, generation = stood.get(change.n, ("new", 1))
        stood[change.n] = (change.state, change.generation)
        if change.generation == generation:
            may_follow = TRANSITIONS.get(was, TRANSITIONS)
            assert change.state in may_follow, f"node {change.n} was {was} and became {change.state}"
        else:
            assert change.generation == generation + 1, f"node {change.n} left out a generation"
        if change.state == "released" and node is not None:
            _check_release(change, dag, node, stood)
    for n, node in nodes.items():
        assert stood.get(n) == (node["state"], node["generation"]), f"node {n} is {node['state']}, untold"


def _check_release(change: Logged, dag: dict[str, Any], node: Any, stood: dict[int, tuple[str, int]]) -> None:
    if node["run_on"] is None:
        let_go = dag["state"] == "running" and not dag["held"] and not dag["paused"]
        assert let_go, f"node {change.n} was released by a DAG that lets nothing go: {dag}"
    if node["run_on"] == UNDO or change.generation != node["generation"]:
        return  # what has come before an older generation is not known any more: edges may be younger
    # An expansion binds what has begun too: its edges are perhaps younger than the release.
    known = [up for up in node["ups"] if up & _MASK in stood]
    assert set(node["ups"]) - set(known) <= set(node["children"]), f"node {change.n} waits for what came later"
    states = {up: stood[up & _MASK][0] for up in known}
    verdicts = [_verdict(node, states.values())]
    verdicts += [_verdict(node, [state for up, state in states.items() if up not in node["children"]])]
    assert "fire" in verdicts, f"node {change.n} was released while its upstreams said {verdicts[0]}: {states}"


def _verdict(node: Any, states: Iterable[str]) -> str:
    counts = Counts()
    for state in states:
        counts.add(state)
    return decide(node["trigger"], counts)
