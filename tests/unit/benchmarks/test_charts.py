"""Charts are drawn from the JSON alone, and say what it says."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.charts import charts_of, draw
from benchmarks.cost import Cost
from benchmarks.machine import Busy
from benchmarks.outcome import Outcome, to_json
from benchmarks.svg import Bar, Line, bars, lines


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]


def widths(svg: str) -> list[float]:
    rects = [node for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("rect")]
    return [float(node.attrib["width"]) for node in rects[1:]]


def result(scenario: str = "cycle", details: dict[str, Any] | None = None) -> dict[str, Any]:
    cost = Cost()
    cost.add(Busy(1.0, {"queue": 0.5, "postgres": 0.25}, 0.0), 1_000, 700_000.0)
    made = Outcome(scenario, "")
    made.add("batch 100: through HTTP", "items/s", [20_000.0, 22_000.0, 24_000.0], cost)
    made.add("batch 100: fixed reference", "items/s", [40_000.0], cost)
    made.add("batch 100: through HTTP / reference", "ratio", [0.5])
    made.details.update(details or {})
    return to_json(made, {}, {})


def test_a_bar_is_as_long_as_its_value() -> None:
    one, two = widths(bars("a", "items/s", [Bar("x", 10.0), Bar("y", 40.0)]))
    assert two == 4 * one


def test_labels_cannot_break_the_file() -> None:
    assert "1 -> 2 & <3>" in texts(bars("t", "ms", [Bar("1 -> 2 & <3>", 1.0)]))


def test_rates_and_costs_of_a_cell_are_drawn_and_ratios_are_not() -> None:
    rates, costs = charts_of(result())
    assert {"through HTTP", "fixed reference", "22,000", "40,000"} <= set(texts(rates))
    assert "750 us, 700 B" in texts(costs)
    assert not any("ratio" in text for text in texts(rates))


def test_an_axis_of_powers_of_ten_holds_every_point() -> None:
    svg = lines("t", "x", "ms", [Line("a", [(25, 0.7), (50, 30.0), (90, 4_000.0)])], log=True)
    assert {"0.1", "10,000"} <= set(texts(svg))


def test_what_changes_over_time_is_a_line() -> None:
    names = ("pinned_items_per_s", "free_items_per_s", "pinned_p99_ms", "free_p99_ms")
    series = {"at_s": [60.0, 120.0], **{name: [2.0, 1.0] for name in names}}
    first = charts_of(result("snapshot", {"series": series}))[0]
    assert "snapshot held" in texts(first)


def test_charts_of_scenarios_that_are_gone_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "gone-1.svg").write_text("")
    made = draw([result()], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in made["cycle"]]
