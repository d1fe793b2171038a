"""What readers see: verdicts that are not kinder than the numbers, and a page that keeps its other text."""

import json
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.outcome import Outcome, Requirement, to_json
from benchmarks.spread import spread

MACHINE = {
    "cores": 2,
    "cpu": "a processor",
    "memory_gib": 24,
    "fdatasync_us": 120,
    "python": "3.11",
    "postgres": {"server_version": "18.6"},
}
RUN = {"at": "2026-11-20T20:00:00Z", "rounds": 3}


def outcome(ratio: list[float], *, other: float = 0.0) -> dict[str, Any]:
    made = Outcome("cycle", "how it was done")
    made.add("through HTTP", "items/s", [21_000.0, 19_000.0, 20_000.0], "a note")
    made.require_at_least("ratio to the reference", spread(ratio), 0.35)
    made.other_cores.append(other)
    return to_json(made, MACHINE, RUN)


def test_a_bound_itself_is_enough_for_at_least_but_not_for_below() -> None:
    exactly = spread([3.0])
    assert Requirement("", exactly, "at_least", 3.0).met
    assert not Requirement("", exactly, "below", 3.0).met


def test_a_verdict_that_some_rounds_contradict_says_so() -> None:
    page = report.markdown([outcome([0.30, 0.36, 0.40])])
    assert "| yes, not in every round |" in page
    assert "| yes |" in report.markdown([outcome([0.36, 0.37, 0.40])])


def test_what_is_not_met_cannot_be_overlooked() -> None:
    assert "| **no** |" in report.markdown([outcome([0.1, 0.2, 0.3])])


def test_a_loaded_machine_is_named_beside_the_numbers() -> None:
    assert "to be measured again" in report.markdown([outcome([0.4], other=0.9)])
    assert "to be measured again" not in report.markdown([outcome([0.4], other=0.1)])


def test_every_row_shows_median_and_spread() -> None:
    page = report.markdown([outcome([0.4])])
    assert "| through HTTP | 20,000 | 19,000 - 21,000 | items/s | a note |" in page


def test_the_page_outside_the_markers_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.save(tmp_path / "results", outcome([0.4]))
    for _ in range(2):
        report.update_page(page, tmp_path / "results")
    text = page.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n") and text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text and text.count("### cycle") == 1


def test_results_keep_every_round(tmp_path: Path) -> None:
    path = report.save(tmp_path, outcome([0.30, 0.36, 0.40]))
    kept = json.loads(path.read_text())
    assert path.name == "cycle.json"
    assert kept["rows"][0]["values"] == [21_000.0, 19_000.0, 20_000.0]
    need = kept["requirements"][0]
    assert need["met"] is True and need["in_every_round"] is False and need["measured"]["median"] == 0.36


def test_small_numbers_keep_their_digits() -> None:
    assert [report.number(value, "ms") for value in (0.6741, 4.876, 1_234.5)] == ["0.674", "4.88", "1,234"]
    assert report.number(0.4166, "ratio") == "0.42"
