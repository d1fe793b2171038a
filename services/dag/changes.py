"""The log of a DAG's changes: how a transaction's are written down, and how they are read; pure.

Changes are numbered per DAG under its lock, so their numbers are in the order of the commits and have no
gaps. A transaction is one step: a node that it moves twice changed once. A change of the DAG itself stands
before those of its nodes when the DAG goes on (`running`), and after them when it ends. Of a DAG that has ended
the end is the last that is told, also where it began and ended again in one step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from services.dag.model import NODE_BITS, Change, Dag, NodeNo

# So many changes keep a row of the log within its page.
CHANGES_PER_ROW: Final = 100

_MASK: Final = (1 << NODE_BITS) - 1


class Logged(NamedTuple):
    """One change, as it was read. `n` is the node's number in its DAG, None for the DAG itself."""

    number: int
    at: datetime
    n: int | None
    state: str
    generation: int
    dag: dict[str, Any]


class Log:
    """What one transaction changes."""

    def __init__(self, dags: Iterable[Dag]) -> None:
        self._stood = {dag.no: _stand(dag) for dag in dags}
        self._nodes: dict[int, dict[int, str]] = {}

    def node(self, no: NodeNo, generation: int, state: str) -> None:
        """A node is in this state now."""
        nodes = self._nodes.setdefault(no >> NODE_BITS, {})
        n = no & _MASK
        nodes.pop(n, None)
        nodes[n] = f"{n}:{state}" if generation == 1 else f"{n}:{state}#{generation}"

    def written(self, dags: Iterable[Dag]) -> list[Change]:
        """The log's new rows for these DAGs, whose `last_event` grows by as much."""
        rows = []
        for dag in dags:
            nodes = list(self._nodes.get(dag.no, {}).values())
            is_news = dag.last_event == 0 or _stand(dag) != self._stood[dag.no] or (dag.over and nodes)
            news = _stand(dag) if is_news else None
            first = news is not None and dag.state == "running"
            parts = [nodes[at : at + CHANGES_PER_ROW] for at in range(0, len(nodes), CHANGES_PER_ROW)]
            for i, part in enumerate(parts or [[]] * (news is not None)):
                here = news is not None and i == (0 if first else max(len(parts), 1) - 1)
                dag.last_event += len(part) + here
                text = " ".join(part) or None
                rows.append(Change(dag.no, dag.last_event, text, json.dumps(news) if here else None))
        return rows


def of_creation(dag: Dag, lefts: Sequence[int], first_n: int = 0) -> list[Change]:
    """The log's rows of new nodes, from the number `first_n` on, and of their DAG if it is new, as `Log` writes
    them: a node with no upstream left is released, if any is."""
    released = "released" if dag.releasing else "blocked"
    texts = [f"{n}:blocked" if left else f"{n}:{released}" for n, left in enumerate(lefts, first_n)]
    rows = []
    news = json.dumps(_stand(dag)) if dag.last_event == 0 else None
    dag.last_event += news is not None
    for at in range(0, len(texts), CHANGES_PER_ROW):
        part = texts[at : at + CHANGES_PER_ROW]
        dag.last_event += len(part)
        rows.append(Change(dag.no, dag.last_event, " ".join(part), None if at else news))
    return rows


def read(last_event: int, at: datetime, nodes: str | None, dag: str | None) -> Iterator[Logged]:
    """The changes in one row of the log, in order."""
    parts = nodes.split(" ") if nodes else []
    stand: dict[str, Any] = json.loads(dag) if dag else {}
    number = last_event - len(parts) - bool(stand)
    if stand and stand["state"] == "running":
        number += 1
        yield Logged(number, at, None, "running", 0, stand)
    for part in parts:
        number += 1
        n, _, rest = part.partition(":")
        state, _, generation = rest.partition("#")
        yield Logged(number, at, int(n), state, int(generation or 1), {})
    if stand and stand["state"] != "running":
        yield Logged(last_event, at, None, stand["state"], 0, stand)


def _stand(dag: Dag) -> dict[str, Any]:
    return {"state": dag.state, "open": dag.open, "held": dag.held, "paused": dag.paused}


def numbers(rows: Sequence[Logged]) -> list[int]:
    """The nodes' numbers that these changes name, each once."""
    return list({row.n: None for row in rows if row.n is not None})
