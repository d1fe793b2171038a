"""Whose turn it is among the DAGs that have work left, tenants by turns, and the DAGs of each by turns; and how
much of a whole step the next one of a DAG is.

A step keeps its DAG locked until it ends, and one that runs into a timeout has done nothing. So after one that was
slow, or failed, the next is half as large. Slowness alone may be the load's: it makes no step smaller than
`SHARE_MIN`. Held in memory only: a process that forgets it begins a round anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, count, zip_longest

from services.dag.model import DagNo
from services.dag.store.duties import Waiting

# A step that takes longer is slow. It is quick, and the next may be twice it, below half of that.
STEP_S = 0.2
SHARE_MIN = 1 / 16

_FAILED_SHARE_MIN = 1 / 4_096
_PAUSE_S_MAX = 30.0


class Turns:
    """The turns of one shard's DAGs."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._tenants: dict[str, int] = {}
        self._dags: dict[DagNo, int] = {}
        self._failed: dict[DagNo, tuple[int, float]] = {}
        self._shares: dict[DagNo, float] = {}

    def pick(self, waiting: Iterable[Waiting], dags_max: int, now_s: float) -> list[DagNo]:
        """The next DAGs: of each tenant one before any tenant's second, those first that waited longest. One whose
        step failed waits for a time that doubles with each failure."""
        by_tenant: dict[str, list[DagNo]] = {}
        for dag_no, namespace in waiting:
            by_tenant.setdefault(namespace, []).append(dag_no)
        self._forget_all_but(by_tenant)
        rows: list[Sequence[DagNo]] = []
        tenants = sorted(by_tenant, key=lambda namespace: self._tenants.get(namespace, 0))
        for namespace in tenants:
            due = [no for no in by_tenant[namespace] if self._failed.get(no, (0, 0.0))[1] <= now_s]
            rows.append(sorted(due, key=lambda no: self._dags.get(no, 0)))
        picked = [no for no in chain.from_iterable(zip_longest(*rows)) if no is not None][:dags_max]
        for namespace in tenants:
            if not set(picked).isdisjoint(by_tenant[namespace]):
                self._tenants[namespace] = next(self._numbers)
        for no in picked:
            self._dags[no] = next(self._numbers)
        return picked

    def share(self, dag_no: DagNo) -> float:
        """How much of a whole step the next one of this DAG is."""
        return self._shares.get(dag_no, 1.0)

    def succeeded(self, dag_no: DagNo, took_s: float) -> None:
        """A DAG's step was done, in so many seconds."""
        self._failed.pop(dag_no, None)
        share = self.share(dag_no)
        if took_s > STEP_S:
            self._shares[dag_no] = max(share / 2, min(share, SHARE_MIN))
        elif share < 1 and took_s < STEP_S / 2:
            self._shares[dag_no] = share * 2

    def failed(self, dag_no: DagNo, now_s: float) -> None:
        """A DAG's step failed."""
        failures = self._failed.get(dag_no, (0, 0.0))[0] + 1
        pause_s = min(2.0 ** min(failures - 1, 10), _PAUSE_S_MAX)
        self._failed[dag_no] = (failures, now_s + pause_s)
        self._shares[dag_no] = max(self.share(dag_no) / 2, _FAILED_SHARE_MIN)

    def _forget_all_but(self, by_tenant: dict[str, list[DagNo]]) -> None:
        living = set(chain.from_iterable(by_tenant.values()))
        self._tenants = {name: turn for name, turn in self._tenants.items() if name in by_tenant}
        self._dags = {no: turn for no, turn in self._dags.items() if no in living}
        self._failed = {no: failure for no, failure in self._failed.items() if no in living}
        self._shares = {no: share for no, share in self._shares.items() if no in living}
