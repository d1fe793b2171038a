"""Results as files, as tables, and as words on a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.charts import draw
from benchmarks.machine import OTHER_CORES_MAX
from benchmarks.outcome import Outcome
from benchmarks.spread import Spread

BEGIN = "<!-- results: written by python -m benchmarks, do not edit -->"
END = "<!-- end of results -->"
# What users drive comes first, by the SDK and its worker; then what the services could do, by bare sockets.
ORDER = (
    *("worker_beside", "worker", "steps", "graphs", "client", "managed", "workflows"),
    *("cycle", "peers", "latency", "backlog", "snapshot", "spread", "payload", "processes", "sampling"),
    "overload",
    *("chain", "fan", "dags", "layered", "build", "shapes", "large", "schema"),
)


def iso(wall_s: float) -> str:
    """A time as RFC 3339, to the second."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def save(directory: Path, result: Mapping[str, Any]) -> Path:
    """Write one scenario's result; answer where."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{result['scenario']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def text(outcome: Outcome) -> str:
    """One scenario for a terminal."""
    width = max((len(row.name) for row in outcome.rows), default=0)
    lines = [f"\n{outcome.scenario}"]
    lines += [f"  {row.name:<{width}}  {_median(row.measured, row.unit)}  {row.note}" for row in outcome.rows]
    for need in outcome.requirements:
        kind = ">=" if need.kind == "at_least" else "<"
        verdict = "met" if need.met else "NOT MET"
        measured = _median(need.measured, need.unit)
        lines.append(f"  {verdict}: {need.name}: {measured}, required {kind} {need.bound:g}")
    return "\n".join(lines) + "\n"


def update_page(page: Path, results: Path) -> None:
    """Draw the charts, and put them and the tables of all results between the markers."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"), key=_place)]
    charts = draw(found, page.with_suffix(""))
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{markdown(found, charts)}{END}{after}")


def _place(path: Path) -> tuple[int, str]:
    """Scenarios stand in the order in which they run."""
    names = ORDER.index(path.stem) if path.stem in ORDER else len(ORDER)
    return names, path.stem


def markdown(results: Sequence[Mapping[str, Any]], charts: Mapping[str, Sequence[Path]] | None = None) -> str:
    """The charts and tables of all results."""
    parts = [_requirements(results)] if any(result["requirements"] for result in results) else []
    drawn = charts or {}
    return "\n".join([*parts, *(_scenario(result, drawn.get(result["scenario"], ())) for result in results)])


def _requirements(results: Sequence[Mapping[str, Any]]) -> str:
    lines = ["### What is required", "", "| requirement | measured | required | met |", "|---|---:|---:|---|"]
    for result in results:
        for need in result["requirements"]:
            bound = f">= {need['at_least']:g}" if "at_least" in need else f"< {need['below']:g}"
            met = ("yes" if need["met"] else "**no**") + ("" if need["in_every_round"] else ", not in every round")
            lines.append(f"| {need['name']} | {_shown(need)} | {bound} | {met} |")
    return "\n".join([*lines, ""])


def _shown(need: Mapping[str, Any]) -> str:
    unit = need.get("unit", "ratio")
    return _cells(need["measured"], unit)[0] + ("" if unit == "ratio" else f" {unit}")


def _scenario(result: Mapping[str, Any], charts: Sequence[Path]) -> str:
    name = result["scenario"]
    lines = [f"### {name}", "", _when(result), "", result["method"], ""]
    lines += [line for path in charts for line in (f"![{path.stem}]({path.parent.name}/{path.name})", "")]
    if versions := result["details"].get("versions"):
        lines += [f"Versions: {', '.join(f'{who} {which}' for who, which in versions.items())}.", ""]
    for who in result["details"].get("left_out", {}):
        lines += [f"{who} could not be installed or started here and is left out.", ""]
    lines += ["<details><summary>All values</summary>", ""] if charts else []
    lines += ["| what | median | min - max | unit | |", "|---|---:|---:|---|---|"]
    for row in result["rows"]:
        median, span = _cells(row, row["unit"])
        lines.append(f"| {row['name']} | {median} | {span} | {row['unit']} | {row['note']} |")
    lines += ["", "</details>"] if charts else []
    return "\n".join([*lines, ""])


def _when(result: Mapping[str, Any]) -> str:
    run, machine = result["run"], result["machine"]
    path = f"{result['scenario']}.json"
    words = (
        f"[{path}](../benchmarks/results/{path}), {run['at']}, {run['rounds']} rounds; "
        f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']} GiB, "
        f"fdatasync {machine['fdatasync_us']} us, "
        f"Postgres {machine['postgres']['server_version']}, Python {machine['python']}."
    )
    other = result["other_load_cores"]
    if other and other["max"] > OTHER_CORES_MAX:
        used = f"up to {other['max']:.2f} processors meanwhile (median {other['median']:.2f})"
        words += f" **Other processes used {used}: to be measured again.**"
    return words


def _cells(row: Mapping[str, Any], unit: str) -> tuple[str, str]:
    return number(row["median"], unit), f"{number(row['min'], unit)} - {number(row['max'], unit)}"


def _median(measured: Spread, unit: str) -> str:
    shown = [number(value, unit) for value in (measured.median, measured.low, measured.high)]
    return f"{shown[0]} {unit} ({shown[1]} - {shown[2]})"


def number(value: float, unit: str) -> str:
    """A value with as many digits as mean something."""
    if unit == "ratio":
        return f"{value:.2f}"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
