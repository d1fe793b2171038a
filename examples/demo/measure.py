"""What the traces of a DAG say about it: checks, latencies and paths."""

import graphlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from examples.demo.trace import Trace
from headgate.wire import Dag, GraphView

SHOWN_MAX = 3


@dataclass(frozen=True)
class Check:
    """Something that must be so. `faults` says where it is not."""

    what: str
    faults: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        return not self.faults


@dataclass(frozen=True)
class Path:
    """A chain of nodes, each waiting for the one before, and how long it took."""

    nodes: Sequence[str]
    seconds: float


@dataclass(frozen=True)
class Report:
    """One DAG, measured. `ready_to_delivery_s` has a time for each node that had to wait for something."""

    title: str
    nodes: int
    edges: int
    elapsed_s: float
    ready_to_delivery_s: Sequence[float]
    longest: int
    critical: Path
    per_worker: Mapping[str, int]
    checks: Sequence[Check]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def quantile_ms(self, share: float) -> float:
        """The time from ready to delivery that this share of the nodes did not exceed."""
        ordered = sorted(self.ready_to_delivery_s)
        return 1_000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def measure(title: str, dag: Dag, graph: GraphView, trace: Trace, *, began: float, results: Check) -> Report:
    """Put together what the service says of a DAG and what its workers saw. `began` is when it was let go."""
    upstream = upstreams(graph)
    checks = [ended_well(dag), once(upstream, trace), ordered(upstream, trace), results]
    if not checks[1].passed:
        # Without one delivery and one ack of every node there is nothing to measure.
        return Report(title, len(upstream), len(graph.edges), 0.0, (), 0, Path((), 0.0), {}, checks)
    deliveries = [found[0] for found in trace.deliveries.values()]
    workers = sorted({delivery.worker for delivery in deliveries})
    return Report(
        title=title,
        nodes=len(upstream),
        edges=len(graph.edges),
        elapsed_s=max(acks[0].answered for acks in trace.acks.values()) - began,
        ready_to_delivery_s=waits(upstream, trace),
        longest=longest(upstream),
        critical=critical(upstream, trace),
        per_worker={worker: sum(delivery.worker == worker for delivery in deliveries) for worker in workers},
        checks=checks,
    )


def upstreams(graph: GraphView) -> dict[str, list[str]]:
    """What each node waits for."""
    found: dict[str, list[str]] = {node.key: [] for node in graph.nodes}
    for edge in graph.edges:
        found[edge.downstream].append(edge.upstream)
    return found


def ended_well(dag: Dag) -> Check:
    faults = [] if dag.state == "succeeded" else [f"the DAG {dag.state}"]
    if dag.nodes.succeeded != dag.nodes.total:
        faults.append(f"{dag.nodes.succeeded} of {dag.nodes.total} nodes succeeded")
    return Check("all nodes succeeded", faults)


def once(upstream: Mapping[str, Sequence[str]], trace: Trace) -> Check:
    """Every node was delivered once and acked once, and nothing else was."""
    faults = [f"{key}: not a node" for key in trace.deliveries.keys() - upstream.keys()]
    for key in upstream:
        delivered, acked = len(trace.deliveries.get(key, ())), len(trace.acks.get(key, ()))
        if (delivered, acked) != (1, 1):
            faults.append(f"{key}: delivered {delivered} times, acked {acked} times")
    return Check("each node delivered and acked once", faults)


def ordered(upstream: Mapping[str, Sequence[str]], trace: Trace) -> Check:
    """No node was delivered before the acks of all its upstreams were sent, or before its external happened."""
    faults = []
    for key, found in trace.deliveries.items():
        for other in upstream.get(key, ()):
            acks = trace.acks.get(other)
            if not acks or found[0].at < acks[0].sent:
                faults.append(f"{key} was delivered before {other} was acked")
        if found[0].at < trace.resolves.get(key, 0.0):
            faults.append(f"{key} was delivered before its external was resolved")
    return Check("none before what it waits for", faults)


def waits(upstream: Mapping[str, Sequence[str]], trace: Trace) -> list[float]:
    """For each node that waited: from the last thing it waited for (the sending of it) to its delivery."""
    found = []
    for key, others in upstream.items():
        happened = [trace.acks[other][0].sent for other in others]
        if key in trace.resolves:
            happened.append(trace.resolves[key])
        if happened:
            found.append(trace.deliveries[key][0].at - max(happened))
    return found


def longest(upstream: Mapping[str, Sequence[str]]) -> int:
    """How many nodes the longest chain has."""
    depth: dict[str, int] = {}
    for key in graphlib.TopologicalSorter(upstream).static_order():
        depth[key] = 1 + max((depth[other] for other in upstream[key]), default=0)
    return max(depth.values(), default=0)


def critical(upstream: Mapping[str, Sequence[str]], trace: Trace) -> Path:
    """The chain that decided when the DAG ended: back from the last node, always by the last of its upstreams."""
    chain = [_last(trace.acks, trace)]
    while upstream[chain[-1]]:
        chain.append(_last(upstream[chain[-1]], trace))
    chain.reverse()
    return Path(chain, trace.acks[chain[-1]][0].answered - trace.deliveries[chain[0]][0].at)


def _last(keys: Iterable[str], trace: Trace) -> str:
    return max(keys, key=lambda key: trace.acks[key][0].sent)
