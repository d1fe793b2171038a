"""What an audit finds, and how it is printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

SAMPLES_MAX: Final = 3

# What each kind of finding means, and whether `repair` mends it.
KINDS: Final[dict[str, tuple[str, bool]]] = {
    "node_counters": ("a node's counters are not what its edges and externals say", True),
    "edge_unflipped": ("a node's upstream has ended, and nobody will count it", True),
    "dag_totals": ("a DAG's totals are not what its nodes say", True),
    "dag_unended": ("a DAG has nothing left to do and has not ended", True),
    "dag_ended_early": ("a DAG says that it has ended, and nodes of it, or the code of its run, have not", False),
    "node_stuck": ("a node waits for nothing and nobody will decide it", True),
    "timer_lost": ("a timer runs, and nobody will end it", True),
    "outbox_old": ("the queue has not been told for long; is it away?", False),
    "adding_old": ("an add call was never finished; is the DAG service away?", False),
    "item_lost": ("a released node's item is unknown to the queue", True),
    "disabled_lost": ("a blocked node's item, given to the queue ahead, is unknown to it", True),
    "revive_lost": ("a released node's item is still disabled", True),
    "end_lost": ("a node's item has ended, and the node was not told", True),
    "sub_lost": ("a released node's sub-DAG was not begun", True),
    "sub_end_lost": ("a node's sub-DAG has ended, and the node was not told", True),
    "end_given_up": ("a node's completion was given up: see the dead items of its topic in `_dag`", False),
    "item_orphaned": ("a managed item whose node does not know it", True),
    "item_nowhere": ("an item that is in no queue and no lease", True),
    "item_twice": ("an item that is in several places at once", False),
    "place_empty": ("a place in a queue without an item", True),
    "counts_wrong": ("a topic's counts are not what its rows say", True),
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `shard` is a schema's name; `ident` is what a person looks it up by."""

    kind: str
    shard: str
    ident: str
    detail: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)

    @property
    def mendable(self) -> bool:
        """Whether `repair` knows what to do."""
        return KINDS[self.kind][1]


def table(findings: Iterable[Finding]) -> Iterator[str]:
    """Lines: where, what, how many, sample ids, meaning."""
    groups: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        groups.setdefault((finding.shard, finding.kind), []).append(finding.ident)
    rows = [("shard", "finding", "count", "for example", "meaning")]
    for (shard, kind), idents in sorted(groups.items()):
        samples = ", ".join(idents[:SAMPLES_MAX])
        rows.append((shard, kind, f"{len(idents):,}", samples, KINDS[kind][0]))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
