"""What a scenario hands back, and its form as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.cost import Cost
from benchmarks.spread import Spread, spread


@dataclass(frozen=True)
class Row:
    """One measured quantity. `note` says what a reader would otherwise ask."""

    name: str
    unit: str
    measured: Spread
    note: str = ""
    cost: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Requirement:
    """A bound that a median must keep: `at_least` is reached, `below` is not."""

    name: str
    measured: Spread
    kind: Literal["at_least", "below"]
    bound: float
    unit: str = "ratio"

    @property
    def met(self) -> bool:
        """Whether the median keeps the bound."""
        value = self.measured.median
        return value >= self.bound if self.kind == "at_least" else value < self.bound

    @property
    def certain(self) -> bool:
        """Whether every single round says the same as the median."""
        low, high = self.measured.low, self.measured.high
        return (low >= self.bound) == (high >= self.bound)


@dataclass
class Outcome:
    """All that one scenario measured. `method` says what was done; `other_cores` what else ran meanwhile."""

    scenario: str
    method: str
    rows: list[Row] = field(default_factory=list)
    requirements: list[Requirement] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    other_cores: list[float] = field(default_factory=list)

    def add(self, name: str, unit: str, values: Sequence[float], note: str | Cost = "") -> Spread:
        """Add a row; answer its spread. A cost is kept as words and as numbers."""
        cost = {name: _rounded(value) for name, value in note.numbers.items()} if isinstance(note, Cost) else {}
        row = Row(name, unit, spread(values), str(note), cost)
        self.rows.append(row)
        return row.measured

    def require_at_least(self, name: str, measured: Spread, bound: float, unit: str = "ratio") -> None:
        """The median must not be below the bound."""
        self.requirements.append(Requirement(name, measured, "at_least", bound, unit))

    def require_below(self, name: str, measured: Spread, bound: float, unit: str = "ratio") -> None:
        """The median must be below the bound."""
        self.requirements.append(Requirement(name, measured, "below", bound, unit))


def to_json(outcome: Outcome, machine: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome as it is kept in `results/`."""
    other = spread(outcome.other_cores) if outcome.other_cores else None
    return {
        "scenario": outcome.scenario,
        "method": outcome.method,
        "machine": dict(machine),
        "run": dict(run),
        "other_load_cores": None
        if other is None
        else {"median": round(other.median, 3), "max": round(other.high, 3)},
        "requirements": [
            {
                "name": need.name,
                "unit": need.unit,
                "measured": _numbers(need.measured),
                need.kind: need.bound,
                "met": need.met,
                "in_every_round": need.certain,
            }
            for need in outcome.requirements
        ],
        "rows": [
            {
                "name": row.name,
                "unit": row.unit,
                "note": row.note,
                **_numbers(row.measured),
                "cost": dict(row.cost),
            }
            for row in outcome.rows
        ],
        "details": outcome.details,
    }


def _numbers(measured: Spread) -> dict[str, Any]:
    return {
        "median": _rounded(measured.median),
        "min": _rounded(measured.low),
        "max": _rounded(measured.high),
        "values": [_rounded(value) for value in measured.values],
    }


def _rounded(value: float) -> float:
    """Five digits that count."""
    return float(f"{value:.5g}")
