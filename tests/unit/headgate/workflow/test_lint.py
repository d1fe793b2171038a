"""What is seen of workflows in text, and the two commands that need no service."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.testing import simulate
from headgate.workflow import Workflow
from headgate.workflow.lint import lint, workflows_in
from tests.support.workflow_cases import REFUSED
from tests.unit.headgate.conftest import Run

ROOT = Path(__file__).resolve().parents[4]

HEAD = """\
import asyncio, os, random, time, uuid
import datetime as dt
from datetime import datetime
from time import time as now
from headgate import Workflow, Worker
worker = Worker()

@worker.workflow("order")
async def order(wf, cart):
"""
FAULTS = {
    "time.time()": "time.time(...) reads the clock",
    "now()": "time.time(...) reads the clock",
    "datetime.now()": "datetime.datetime.now(...) reads the clock",
    "dt.date.today()": "datetime.date.today(...) reads the clock",
    "time.sleep(1)": "holds the worker",
    "random.choice([1])": "draws chance",
    "random.Random()": "draws chance",
    "uuid.uuid4()": "draws chance",
    "open('a')": "reaches outside",
    "cart.path.read_text()": "reaches outside",
    "os.environ['A']": "os.environ reaches outside",
    "os.getenv('A')": "reaches outside",
    "asyncio.to_thread(len, 'a')": "starts what the workflow's loop does not run",
    "await asyncio.wait_for(wf.call('a'), 5)": "asyncio.timeout",
    "asyncio.as_completed([])": "wf.as_completed",
    "id(cart)": "differs by process",
    "[x for x in {1, 2}]": "goes through a set",
    "list(set(cart))": "goes through a set",
    "asyncio.gather(*{1, 2})": "goes through a set",
    "wf.call('a')": "is not awaited",
    "global state": "is another's in each process",
}
GOOD = """\
    rate = await wf.run(lambda: time.time())
    rng = random.Random(7)
    for each in sorted(set(cart)):
        await wf.call("a", each)
    async with asyncio.timeout(5):
        await wf.receive("go")
    task = asyncio.create_task(wf.call("a"))
    os.path.join("a", "b")
    wf.random.choice([1])
    return dt.timedelta(days=1)

def not_a_workflow():
    return time.time()

async def handler(job):
    return open("a").read()
"""


@pytest.mark.parametrize("line", FAULTS)
def test_each_fault_is_found_at_its_line(line: str) -> None:
    found = lint(f"{HEAD}    pass\n    {line}\n", "shop.py")
    assert [(each.line, each.function) for each in found] == [(HEAD.count("\n") + 2, "order")]
    assert FAULTS[line] in str(found[0])


def test_good_code_and_other_functions_raise_no_alarm() -> None:
    assert lint(HEAD + GOOD) == []


def test_functions_that_a_workflow_calls_are_looked_at_too() -> None:
    called = "async def inner(wf):\n    time.time()\n"
    text = f"import time\nasync def flow(wf: 'Workflow'):\n    await inner(wf)\n{called}"
    assert [(each.function, each.line) for each in lint(text)] == [("inner", 5)]
    assert workflows_in(text) == ["flow"]


def test_of_the_cases_only_those_are_found_that_are_refused() -> None:
    found = lint((ROOT / "tests" / "support" / "workflow_cases.py").read_text())
    refused = {function.__name__ for function in REFUSED} - {"wait_for_gathered"}
    assert {each.function for each in found} == refused


def test_the_command_lints_files_and_directories(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(HEAD + GOOD)
    (tmp_path / "bad.py").write_text(f"{HEAD}    time.time()\n")
    code, out, _ = run("workflow", "lint", str(tmp_path))
    assert code == 1
    assert out.splitlines() == [f"{tmp_path}/bad.py:10: order: time.time(...) reads the clock; take wf.now()"]
    assert run("workflow", "lint", str(tmp_path / "good.py"))[0] == 0
    code, out, _ = run("workflow", "lint", str(tmp_path), "-o", "json")
    assert json.loads(out)[0]["line"] == 10
    assert run("workflow", "lint", str(tmp_path / "none.py"))[0] == 3
    (tmp_path / "broken.py").write_text("async def (")
    code, _, err = run("workflow", "lint", str(tmp_path))
    assert code == 2 and "is not Python" in err


async def order(wf: Workflow, cart: Any) -> Any:
    receipt = await wf.call("charge", cart)
    return await wf.call("ship", receipt)


ORDER = """\
async def order(wf, cart):
    receipt = await wf.call("charge", cart)
    return await wf.call("ship", receipt)

async def edited(wf, cart):
    receipt = await wf.call("charge", cart)
    return await wf.call("ship", [receipt, 1])

async def by_set(wf, cart):
    for each in set(cart):
        receipt = await wf.call("charge", cart)
    return await wf.call("ship", receipt) if list(set(cart))[0] == "b" else None

def no_workflow(): ...
"""


def replayed(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "headgate", "workflow", "replay", "run.json", *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_history_is_replayed_under_three_seeds_without_a_service(tmp_path: Path) -> None:
    simulate(order, ["a", "b", "c", "d"]).on("charge", "r-1").save(tmp_path / "run.json")
    (tmp_path / "shop.py").write_text(ORDER)
    done = replayed(tmp_path, "shop:order")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "run.json: the same commands at each of 3 events; succeeded (the end of the workflow)\n"
    piped = subprocess.run(
        [sys.executable, "-m", "headgate", "workflow", "replay", "-", "shop:order", "--seeds", "1"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        input=(tmp_path / "run.json").read_bytes(),
        capture_output=True,
        check=False,
    )
    assert (piped.returncode, piped.stderr) == (0, b"")
    failed = replayed(tmp_path, "shop.py:edited", "--seeds", "1")
    assert failed.returncode == 1
    said = dict(line.split(":", 1) for line in failed.stdout.splitlines())
    assert said["event"].strip() == "3"
    assert '"r-1"' in said["expected"] and '["r-1",1]' in said["got"]
    assert said["line"].strip().endswith("shop.py:7 in edited")
    assert failed.stderr.startswith("headgate: run.json: history_mismatch: at event 3 the history has item ship#1")
    as_json = json.loads(replayed(tmp_path, "shop:edited", "--seeds", "1", "-o", "json").stdout)
    assert (as_json["code"], as_json["event"]) == ("history_mismatch", 3)


def test_a_directory_of_histories_is_replayed_until_one_parts(tmp_path: Path, run: Run) -> None:
    (tmp_path / "shop.py").write_text(ORDER)
    kept = tmp_path / "kept"
    kept.mkdir()
    code, _, err = run("workflow", "replay", str(kept), f"{tmp_path}/shop.py:order", "--seeds", "1")
    assert code == 3 and "there is no history" in err
    for number in range(2):
        simulate(order, number).on("charge", [number, 1] if number else None).save(kept / f"{number}.json")
    code, out, _ = run("workflow", "replay", str(kept), f"{tmp_path}/shop.py:order", "--seeds", "1")
    assert (code, [line.split(":")[0] for line in out.splitlines()]) == (0, [f"{kept}/0.json", f"{kept}/1.json"])
    code, out, err = run("workflow", "replay", str(kept), f"{tmp_path}/shop.py:edited", "--seeds", "1")
    assert code == 1 and f"{kept}/0.json: history_mismatch" in err


def test_what_is_not_there_is_said(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(ORDER)
    simulate(order, 1).save(tmp_path / "run.json")
    (tmp_path / "bad.json").write_text("[1")
    (tmp_path / "other.json").write_text("[1]")
    for arguments, code, told in (
        (("run.json", "shop:none"), 3, "cannot import shop:none"),
        (("run.json", "no_shop:order"), 3, "cannot import no_shop: No module"),
        (("run.json", "none.py:order"), 3, "there is no none.py"),
        (("run.json", "order"), 2, "neither module:name"),
        (("run.json", "shop:no_workflow"), 2, "is no `async def`"),
        (("bad.json", "shop:order"), 2, "is not JSON"),
        (("other.json", "shop:order"), 2, "no list of `events`"),
        (("none.json", "shop:order"), 2, "No such file"),
        (("run.json", "shop:order", "--seeds", "0"), 2, "--seeds is 1 to"),
    ):
        seeds = () if "--seeds" in arguments else ("--seeds", "1")
        found = run("workflow", "replay", *arguments, *seeds)
        assert (found[0], told in found[2]) == (code, True), (arguments, found)


BY_SEED = """
import os

async def by_seed(wf, *given):
    return await (order if os.environ["PYTHONHASHSEED"] == "0" else edited)(wf, *given)

async def clocked(wf, *given):
    import time
    time.time()
    return await order(wf, *given)
"""


def test_code_that_goes_by_the_hash_seed_is_found_and_said_to(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(ORDER + BY_SEED)
    file = tmp_path / "run.json"
    simulate(order, 1).on("charge", [1, 1]).save(file)
    code, out, err = run("workflow", "replay", str(file), f"{tmp_path}/shop.py:by_seed", "--seeds", "3")
    assert code == 1 and "history_mismatch" in out + err
    assert "under hash seed 1, and not under 0: the order of a set?" in err
    words = (f"{tmp_path}/shop.py:clocked", "--seeds", "2")
    code, _, err = run("workflow", "replay", str(file), *words)
    assert code == 1 and "the clock" in err and "hash seed" not in err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    code, out, err = run("workflow", "replay", "-", *words, "--unguarded")
    assert (code, err, out.count("succeeded")) == (0, "", 1), "each seed was given the history"
