"""The examples of workflows: their ends, in their order and in others, and nothing that lint finds."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples.workflows import app_submission, backfill, order, provisioning
from headgate.testing import explore
from headgate.workflow.lint import lint

FOLDER = Path(__file__).resolve().parents[4] / "examples" / "workflows"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__")
PRINTS = {
    "order": "{'label': 'L-7', 'receipt': 'paid 600.0', 'state': 'shipped'} after 3660 s",
    "app_submission": "{'state': 'published', 'superseded': ['1.0'], 'version': '1.1'} after 24.7 h",
    "provisioning": "ready: 3 machines after 60 s\ntaken down: 3 of 3 machines could not be made",
    "backfill": "{'failed': ['2030-01-13']} after 325 s",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_runs_by_itself_is_short_and_clean(path: Path) -> None:
    assert lint(path.read_text()) == []
    assert path.read_text().count("\n") < 80
    run = subprocess.run(
        [sys.executable, "-m", f"examples.workflows.{path.stem}"],
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert PRINTS[path.stem] in run.stdout


def test_an_order_that_nobody_approves_is_undone_after_a_day() -> None:
    done = order.simulated()
    assert done.output == {"state": "undone", "why": "not approved"}
    assert (done.elapsed_s, done.asked[-2:]) == (order.DAY_S, ["stock/release#1", "state"])


def test_what_fails_late_is_undone_last_first() -> None:
    done = order.simulated(500).on("ship/label", fails=99)
    assert done.output["why"] == "ship/label#1 failed"
    assert [key for key in done.asked if key.startswith(("card/", "stock/"))] == [
        "stock/reserve#1",
        "card/charge#1",
        "card/refund#1",
        "stock/release#1",
    ]


@pytest.mark.parametrize("at_s", [0, 10, 30, 50, 70])
def test_a_cancelled_order_is_undone_at_each_stage(at_s: int) -> None:
    done = order.simulated(500).cancel(at_s=at_s)
    for topic in ("stock/reserve", "card/charge", "ship/pack", "ship/label"):
        done.on(topic, topic, takes_s=20)
    assert done.state == "cancelled"
    taken = [key for key in done.asked if key in ("stock/release#1", "card/refund#1")]
    assert taken == [[], ["stock/release#1"], ["card/refund#1", "stock/release#1"]][min(at_s // 20, 2)]


def test_an_order_in_any_order_of_events_ends_in_one_of_two_ways() -> None:
    found = explore(order.simulated().signal("approval", {"yes": True}), seeds=60)
    assert {end["state"] for end in found.outputs} == {"shipped", "undone"}


def test_a_version_is_published_in_stages() -> None:
    done = app_submission.simulated().signal("review", {"accepted": True})
    assert done.output == {"version": "1.0", "state": "published", "superseded": []}
    assert done.published == {"stage": "1.0: 100 %"}
    assert done.elapsed_s == 600 + 3 * app_submission.STAGE_S


def test_a_halt_holds_a_stage_until_somebody_says_go_on_or_takes_it_back() -> None:
    halted = app_submission.simulated().signal("review", {"accepted": True}).signal("halt", at_s=1_000)
    assert halted.output["state"] == "halted at 1 %"
    going = halted.signal("go on", at_s=50_000)
    assert going.output["state"] == "published"


@pytest.mark.parametrize("at_s", [0, 300, 700, 5_000, 30_000, 50_000])
def test_a_newer_version_supersedes_the_older_at_each_stage(at_s: int) -> None:
    done = (
        app_submission.simulated()
        .signal("review", {"accepted": True}, at_s=650)
        .signal("update", "2.0", at_s=at_s)
    )
    again = done.signal("review", {"accepted": True}, at_s=at_s + 700)
    assert again.output == {"version": "2.0", "state": "published", "superseded": ["1.0"]}


@pytest.mark.parametrize("at_s", [0, 300, 1_000, 30_000, 50_000])
def test_a_cancelled_submission_is_withdrawn_at_each_stage(at_s: int) -> None:
    done = app_submission.simulated().signal("review", {"accepted": True}).cancel(at_s=at_s)
    assert (done.state, done.asked[-1]) == ("cancelled", "store/withdraw#1")


def test_a_submission_in_any_order_of_events() -> None:
    simulation = (
        app_submission.simulated().signal("review", {"accepted": True}).signal("halt").signal("update", "2.0")
    )
    found = explore(simulation.signal("review", {"accepted": True}), seeds=60)
    assert {end["state"] for end in found.outputs} >= {"published"}
    assert {end["version"] for end in found.outputs} <= {"1.0", "2.0"}


def test_a_long_backfill_goes_on_as_new_runs() -> None:
    done = backfill.simulated("2030-01-01", "2030-04-01")
    assert done.state == "continued"
    assert done.next_input == {"failed": ["2030-01-13", "2030-02-13"], "first": "2030-03-02", "last": "2030-04-01"}


def test_machines_are_the_same_in_any_order() -> None:
    explore(provisioning.simulated(), seeds=20)
