"""What a failover may have taken, exactly; everything else is told.

Where commits wait for the standby nothing may be missing. Else shard 1 may have lost what was done there from
`cut_s` on: the moment at which the standby had all there was. Nothing here knows the services.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from headgate._ids import shard_of
from tests.integration.failover.load import DIAMOND, LEASE_S, Delivery, Log, Sent

LOSSY = 1
_EPSILON_S = 0.05

ByItem = dict[str, list[Delivery]]


def judge(log: Log, cut_s: float | None) -> list[str]:
    """Every violation, as a sentence."""
    by_item: ByItem = defaultdict(list)
    for delivery in log.deliveries:
        by_item[delivery.item].append(delivery)
    return [
        *(f"{call} was not answered in time" for call in log.late),
        *_mixed_up(log),
        *(fault for sent in log.items.values() for fault in _lost(sent, by_item[sent.name], cut_s)),
        *(fault for item in by_item for fault in _again(log, item, by_item[item], cut_s)),
        *(fault for sent in log.dags.values() for fault in _unended(sent, by_item, cut_s)),
        *_early(log),
        *(fault for verb in log.verbs for fault in verb.faults(cut_s)),
    ]


def missing(log: Log) -> int:
    """How many items and DAGs were promised and are gone."""
    came = {delivery.item for delivery in log.deliveries}
    items = sum(sent.answered is not None and sent.name not in came for sent in log.items.values())
    return items + sum(sent.answered is not None and not sent.state for sent in log.dags.values())


def _mixed_up(log: Log) -> Iterator[str]:
    for delivery in log.deliveries:
        payload = delivery.payload
        if payload["tenant"] != delivery.tenant or payload.get("item", delivery.item) != delivery.item:
            yield f"{delivery.tenant} was given {payload} as {delivery.item}"


def _may_be_lost(shard: int, at_s: float, cut_s: float | None) -> bool:
    """Whether what was answered then, by that shard, may be forgotten."""
    return cut_s is not None and shard == LOSSY and at_s >= cut_s


def _lost(sent: Sent, came: list[Delivery], cut_s: float | None) -> Iterator[str]:
    if sent.answered is None or any(delivery.confirmed or delivery.is_unknown for delivery in came):
        return
    if not _may_be_lost(shard_of(sent.name), sent.answered, cut_s):
        yield f"{sent.name} of {sent.tenant} was promised and is gone after {len(came)} deliveries"


def _again(log: Log, item: str, came: list[Delivery], cut_s: float | None) -> Iterator[str]:
    """A delivery after an ack that was answered, or within another's lease."""
    for first, second in pairwise(came):
        if first.confirmed is not None:
            is_lost = _may_be_lost(shard_of(item), first.confirmed, cut_s) or _forgotten(log, first, cut_s)
            if first.confirmed < second.asked and not is_lost:
                yield f"{item} was acked and came again"
        is_within = first.confirmed is None and second.answered < first.asked + LEASE_S - _EPSILON_S
        if is_within and not _may_be_lost(shard_of(item), first.answered, cut_s):
            yield f"{item} came again within its lease"


def _forgotten(log: Log, delivery: Delivery, cut_s: float | None) -> bool:
    """Whether the node's DAG may have lost that the node had ended: it runs again."""
    if cut_s is None or "node" not in delivery.payload:
        return False
    dag = log.dags[delivery.payload["node"][0]]
    return (dag.ended is None or dag.ended >= cut_s) and (dag.dag is None or shard_of(dag.dag) == LOSSY)


def _unended(sent: Sent, by_item: ByItem, cut_s: float | None) -> Iterator[str]:
    if sent.answered is None or sent.state == "succeeded":
        return
    assert sent.dag is not None
    if sent.state or not _may_be_lost(shard_of(sent.dag), sent.answered, cut_s):
        yield f"the DAG {sent.name} ({sent.dag}) is {sent.state or 'gone'}"


def _early(log: Log) -> Iterator[str]:
    """Whatever was lost: no node before an ack was sent of each that it waits for."""
    acked: dict[tuple[str, str], float] = {}
    for delivery in log.deliveries:
        if "node" in delivery.payload and delivery.acked is not None:
            key, node = delivery.payload["node"]
            acked[key, node] = min(delivery.acked, acked.get((key, node), delivery.acked))
    for delivery in log.deliveries:
        if "node" in delivery.payload:
            key, node = delivery.payload["node"]
            for up in DIAMOND[node]:
                if acked.get((key, up), float("inf")) > delivery.answered:
                    yield f"{node} of {key} came before {up} was acked"
