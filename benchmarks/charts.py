"""Which charts each scenario's results get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.svg import Bar, Line, bars, lines

Result = Mapping[str, Any]
_OTHERS = (
    "reference",
    "pgmq",
    "own statements",
    "pgqueuer",
    "procrastinate",
    "graphile",
    "BullMQ",
    "DBOS",
    "Restate",
    "Celery",
    "dramatiq",
    "pg-boss",
)
# What `schema` measures is about tables, and its page is among the decisions.
_WITHOUT = ("schema",)


def draw(results: Sequence[Result], folder: Path) -> dict[str, list[Path]]:
    """Write the charts of all results; by scenario, where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    made: dict[str, list[Path]] = {}
    for result in results:
        scenario = result["scenario"]
        if scenario in _WITHOUT:
            continue
        for number, chart in enumerate(charts_of(result), start=1):
            path = folder / f"{scenario}-{number}.svg"
            path.write_text(chart)
            made.setdefault(scenario, []).append(path)
    return made


def charts_of(result: Result) -> list[str]:
    """The charts of one scenario: what changes over an axis first, then rates, then costs."""
    made: list[str] = []
    series = result["details"].get("series")
    if series and result["scenario"] == "latency":
        made += _latency(series, result)
    elif series:
        made += _over_time(series)
    groups: dict[tuple[str, str], list[Bar]] = {}
    costs: dict[str, list[Bar]] = {}
    for row in result["rows"]:
        if row["unit"] in ("ratio", "count") or (result["scenario"] == "latency" and row["unit"] == "ms"):
            continue
        cell, label = _split(row["name"])
        ours = not any(name in label for name in _OTHERS)
        groups.setdefault((cell, row["unit"]), []).append(Bar(label, row["median"], row["min"], row["max"], ours))
        if row.get("cost"):
            costs.setdefault(cell, []).append(_cost(label, row["cost"]))
    made += [
        bars(cell or result["scenario"], unit, rows) for (cell, unit), rows in groups.items() if len(rows) > 1
    ]
    # Batches of one cost so much more that one chart shows only them.
    made += [
        bars(f"{cell or result['scenario']}: processor time, and bytes of log", "us an item", rows)
        for cell, rows in costs.items()
        if len(rows) > 1
    ]
    return made


def _split(name: str) -> tuple[str, str]:
    cell, found, label = name.partition(": ")
    return (cell, label) if found else ("", name)


def _cost(label: str, cost: Mapping[str, float]) -> Bar:
    parts = {group: value for group, value in cost.items() if group != "wal_bytes"}
    wal = f" us, {cost['wal_bytes']:,.0f} B" if "wal_bytes" in cost else " us"
    return Bar(label, sum(parts.values()), parts=parts, high=sum(parts.values()), note=wal)


def _latency(series: Mapping[str, Any], result: Result) -> list[str]:
    shares = sorted({int(row["name"].split(" ")[0]) for row in result["rows"] if "% load" in row["name"]})
    drawn = []
    for colour, (name, found) in enumerate(series.items()):
        for which, dashed in (("p50_ms", True), ("p99_ms", False)):
            points = list(zip(shares, found[which], strict=False))
            drawn.append(Line(f"{name}, {which.removesuffix('_ms')}", points, dashed, colour))
    by_rate = [
        Line(f"{name}, p99", list(zip(found["items_per_s"], found["p99_ms"], strict=True)), colour=colour)
        for colour, (name, found) in enumerate(series.items())
    ]
    return [
        lines("Latency against load", "load, % of each one's own capacity", "ms", drawn, log=True),
        lines("p99 against items offered", "items offered a second", "ms", by_rate, log=True),
    ]


def _over_time(series: Mapping[str, Any]) -> list[str]:
    minutes = [at_s / 60 for at_s in series["at_s"]]
    made = []
    for title, unit, suffix in (
        ("Rate while an old snapshot is held", "items/s", "items_per_s"),
        ("p99 of a dequeue while an old snapshot is held", "ms", "p99_ms"),
    ):
        drawn = [
            Line(name, list(zip(minutes, series[f"{key}_{suffix}"], strict=True)), colour=colour)
            for colour, (key, name) in enumerate((("pinned", "snapshot held"), ("free", "no old snapshot")))
        ]
        if len(minutes) > 1:
            made.append(lines(title, "minutes since the snapshot was taken", unit, drawn))
    return made
