"""`headgate workflow check`: open runs and kept histories against this code, under several hash seeds."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate import Workflow
from headgate._calls.elements import Listing
from headgate._cli import program as cli
from headgate._cli.workflow import runs
from headgate.testing import simulate

BEFORE = """
async def order(wf, count):
    await wf.call("reserve", count)
    await wf.call("charge", count, max_attempts=3)
    await wf.receive("never")
"""
BY_ORDER_OF_A_SET = """
async def order(wf, count):
    for topic in {"reserve", "charge", "ship", "bill", "tell"}:
        await wf.call(topic, count)
    await wf.receive("never")
"""


async def order(wf: Workflow, count: int) -> None:
    await wf.call("reserve", count)
    await wf.call("charge", count, max_attempts=3)
    await wf.receive("never")


def history_of(number: int, tmp_path: Path) -> dict[str, Any]:
    """Of a run that waits still."""
    file = tmp_path / "one.json"
    simulate(order, number).signal("never", at_s=60).save(str(file))
    found: dict[str, Any] = json.loads(file.read_text())
    kinds = [event["kind"] for event in found["events"]]
    found["events"] = found["events"][: kinds.index("signal")]
    found["seen"] = found["events"][-1]["event"]
    found["events"][0]["data"] |= {"id": f"order-{number}", "type": "order"}
    return found


class Open:
    """A client of a service with these open runs."""

    def __init__(self, histories: dict[str, dict[str, Any]]) -> None:
        self.workflows = self
        self._histories = histories

    def __enter__(self) -> "Open":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def list(self, *, type: str, state: str, limit: int) -> Listing[Any]:
        assert (type, state) == ("order", "running")
        return Listing(SimpleNamespace(id=id) for id in list(self._histories)[:limit])

    def get(self, id: str) -> Any:
        return SimpleNamespace(history=lambda: self._histories[id])


@pytest.fixture
def five_hundred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    one = json.dumps(history_of(1, tmp_path))
    histories = {f"order-{number}": json.loads(one.replace("order-1", f"order-{number}")) for number in range(500)}
    monkeypatch.setattr(runs.commands, "client_of", lambda _: Open(histories))
    return histories


def checked(capsys: pytest.CaptureFixture[str], file: Path, *more: str) -> tuple[int, dict[str, Any]]:
    code = cli.main(["workflow", "check", "order", f"{file}:order", "-o", "json", *more])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def test_five_hundred_open_runs_replay_on_the_code_that_they_ran_on(
    five_hundred: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "code.py"
    file.write_text(BEFORE)
    assert checked(capsys, file, "--seeds", "1") == (0, {"runs": 500, "parted": []})


def test_of_five_hundred_those_that_part_are_named_with_event_both_sides_and_line(
    five_hundred: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for id in ("order-7", "order-499"):  # had charged before the edit
        text = json.dumps(five_hundred[id]).replace("max_attempts", "attempts_max")
        five_hundred[id] = json.loads(text)
        for event in five_hundred[id]["events"]:
            if event.get("key") == "charge#1" and event["state"] == "added":
                event["data"]["fingerprint"] = "0" * 16
    file = tmp_path / "code.py"
    file.write_text(BEFORE)
    code, found = checked(capsys, file)
    assert (code, found["runs"]) == (1, 500)
    assert {one["id"] for one in found["parted"]} == {"order-7", "order-499"}
    for one in found["parted"]:
        assert one["event"] > 1 and "charge#1" in one["expected"] and "charge#1" in one["got"]
        assert one["line"] == f"{file}:4 in order"
    assert cli.main(["workflow", "check", "order", f"{file}:order", "--seeds", "1"]) == 1
    said = capsys.readouterr().out
    assert "498 of 500 runs replay to the same" in said and "expected: item charge#1" in said


def test_what_depends_on_the_order_of_a_set_parts_under_some_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    events = history_of(1, tmp_path)
    text = json.dumps(events)
    (kept / "run.json").write_text(text)
    file = tmp_path / "code.py"
    file.write_text(BY_ORDER_OF_A_SET)
    code, found = checked(capsys, file, "--sample", "0", "--corpus", str(kept))
    assert (code, found["runs"]) == (1, 1)
    assert found["parted"][0]["hash_seed"] in range(3)


REGISTERED = """
from headgate import App, Worker
from old import order as order_before

app, worker = App(), Worker()

async def order(wf, count):
    await wf.call("another", count)

app.workflow("order", version="2")(order)
worker.workflow("order", version="1", only_pinned=True)(order_before)
"""


def test_a_module_stands_for_the_workflows_of_its_workers_and_apps_each_run_by_its_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    for id, more in (
        ("any", {}),
        ("old", {"version": "1"}),
        ("away", {"version": "7"}),
        ("mail", {"type": "mail"}),
    ):
        history = history_of(1, tmp_path)
        history["events"][0]["data"] |= {"id": id, **more}
        (kept / f"{id}.json").write_text(json.dumps(history))
    (tmp_path / "old.py").write_text(BEFORE)
    module = tmp_path / "registered.py"
    module.write_text(REGISTERED)
    words = [
        "workflow",
        "check",
        str(module),
        "--sample",
        "0",
        "--corpus",
        str(kept),
        "-o",
        "json",
        "--seeds",
        "1",
    ]
    assert cli.main(words) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == 2, "what the module does not run is not looked at"
    assert [(one["id"], one["event"]) for one in found["parted"]] == [("any", 1)]
    assert cli.main([*words[:-1], "2"]) == 1, "in processes of their own, too"
    assert json.loads(capsys.readouterr().out)["parted"][0]["line"] == f"{module}:8 in order"
    (tmp_path / "nothing.py").write_text("")
    assert cli.main(["workflow", "check", str(tmp_path / "nothing.py")]) == 3
    assert "no worker and no app with a workflow" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [["--sample", "0"], ["--sample", "-1"], ["--seeds", "0"], ["--seeds", "21"]])
def test_a_check_of_nothing_is_refused(tmp_path: Path, bad: list[str]) -> None:
    file = tmp_path / "code.py"
    file.write_text(BEFORE)
    assert cli.main(["workflow", "check", "order", f"{file}:order", *bad]) == 2
