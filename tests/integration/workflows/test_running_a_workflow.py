"""Workflows on the real stack: the SDK's worker and client, both services, and their databases."""

import asyncio
import json
import os
import secrets
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate import App, AsyncClient, Client, Dag, Job, NodeFailed, Worker, Workflow
from headgate._cli import program as cli
from headgate._cli.workflow.code import function_named
from headgate.testing import replay
from services.local.stack import Stack


class Shop:
    """A namespace of its own, a client of it, and a worker whose loop is the test's."""

    def __init__(self, stack: Stack) -> None:
        self.client = AsyncClient(
            queue_url=stack.queue_url, dag_url=stack.dag_url, namespace=f"wf-{secrets.token_hex(4)}"
        )
        self.worker = Worker(self.client, drain_s=2, wait_s=2)
        self._working: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._working = asyncio.create_task(self.worker.run(signals=False))

    async def close(self) -> None:
        if self._working is not None:
            self.worker.stop()
            self.worker.stop()
            await self._working
        await self.client.aclose()

    async def output(self, type: str, input: Any = None, **options: Any) -> Any:
        run = await self.client.workflows.start(type, input, **options)
        ended = await run.wait(timeout_s=30)
        assert ended.state == "succeeded", ended
        return ended.output


@pytest.fixture
async def shop(stack: Stack) -> AsyncIterator[Shop]:
    made = Shop(stack)
    async with asyncio.timeout(60):
        yield made
    await made.close()


async def test_calls_steps_graphs_timers_and_signals(shop: Shop) -> None:
    @shop.worker.task("double")
    async def double(job: Job) -> int:
        return int(job.payload) * 2

    @shop.worker.task("broken", max_attempts=1)
    async def broken(job: Job) -> None:
        raise ValueError("as it must be")

    @shop.worker.workflow("everything")
    async def everything(wf: Workflow, count: int) -> dict[str, Any]:
        doubled = await asyncio.gather(*(wf.call("double", number) for number in range(count)))
        length = await wf.run(len, doubled)
        try:
            await wf.call("broken", max_attempts=1)
        except NodeFailed as error:
            failed = error.key
        await wf.sleep(0.05)
        wf.publish("state", "waits")
        approved = await wf.receive("approval")
        graph = Dag("pack")
        box = graph.node("box", "double", payload=21)
        graph.node("label", "double", payload=4, after=[box])
        packed = await wf.dag(graph)
        try:
            async with asyncio.timeout(0.05):
                await wf.receive("nothing")
        except TimeoutError:
            late = True
        return {
            "doubled": doubled,
            "length": length,
            "failed": failed,
            "approved": approved,
            "packed": packed,
            "late": late,
        }

    shop.open()
    run = await shop.client.workflows.start("everything", 5, id="order-17")
    assert (run.id, run.existing) == ("order-17", False)
    again = await shop.client.workflows.start("everything", 5, id="order-17")
    assert again.existing and again.run == run.run
    assert (await run.signal("approval", {"by": "ada"}, id="one")).status == "accepted"
    assert (await run.signal("approval", {"by": "eve"}, id="one")).status == "duplicate"
    ended = await run.wait(timeout_s=30)
    assert ended.state == "succeeded", ended
    assert ended.output == {
        "doubled": [0, 2, 4, 6, 8],
        "length": 5,
        "failed": "broken#1",
        "approved": {"by": "ada"},
        "packed": {"label": 8},
        "late": True,
    }
    assert ended.published == {"state": "waits"}
    history = await run.history()
    assert [event["event"] for event in history["events"]] == list(range(1, len(history["events"]) + 1))
    replay(history, everything)


async def test_a_workflow_calls_functions_of_an_app_as_they_are_typed(stack: Stack) -> None:
    client = Client(queue_url=stack.queue_url, dag_url=stack.dag_url, namespace=f"wf-{secrets.token_hex(4)}")
    app = App(client=client)

    @app.job(max_attempts=3, backoff={"base_s": 0.01})
    def due(job: Job, day: date, days: int = 1) -> date:
        if job.attempt == 1:
            raise OSError("not yet")
        return day + timedelta(days=days)

    @app.workflow("invoice")
    async def invoice(wf: Workflow, day: str) -> str:
        first = await wf.call(due.call(date.fromisoformat(day), days=30))
        task = await wf.fork(due.options(priority=1).call(first))
        return ((await wf.join(task)) + timedelta(days=1)).isoformat()

    worker = app.worker(drain_s=2, wait_s=2)
    async with asyncio.timeout(60):
        working = asyncio.create_task(worker.run(signals=False))
        run = await app.async_client.workflows.start("invoice", "2026-01-01")
        ended = await run.wait(timeout_s=30)
        assert (ended.state, ended.output) == ("succeeded", "2026-02-02"), ended
        worker.stop()
        await working
    await app.aclose()
    app.close()


async def test_children_graphs_with_workflows_and_what_runs_send_each_other(shop: Shop) -> None:
    @shop.worker.task("double")
    async def double(job: Job) -> int:
        return int(job.payload) * 2

    @shop.worker.workflow("leaf")
    async def leaf(wf: Workflow, number: int) -> int:
        if number < 0:
            raise ValueError("as it must be")
        return int(await wf.call("double", number))

    @shop.worker.workflow("listener")
    async def listener(wf: Workflow) -> Any:
        return await wf.receive("news")

    @shop.worker.workflow("middle")
    async def middle(wf: Workflow, number: int) -> Any:
        graph = Dag("graph")
        first = graph.workflow("first", "leaf", number)
        graph.node("second", "double", payload=7, after=[first])
        return [await wf.dag(graph), await wf.child("leaf", number)]

    @shop.worker.workflow("top")
    async def top(wf: Workflow, number: int) -> Any:
        found, other = await asyncio.gather(wf.child("middle", number), wf.child("leaf", 50, id="fifty"))
        try:
            await wf.child("leaf", -1)
        except NodeFailed as error:
            failed = [error.key, error.state]
        started = await wf.start("listener", id="listener-1")
        await wf.signal("listener-1", "news", {"of": number})
        try:
            await wf.signal("nobody", "news")
        except NodeFailed as error:
            failed.append(error.state)
        return {"found": found, "other": other, "failed": failed, "started": started["id"]}

    shop.open()
    assert await shop.output("top", 4) == {
        "found": [{"second": 14}, 8],
        "other": 100,
        "failed": ["child:leaf#2", "failed", "failed"],
        "started": "listener-1",
    }
    heard = await shop.client.workflows.get("listener-1").wait(timeout_s=20)
    assert heard.output == {"of": 4}
    release = Dag("release")
    review = release.workflow("review", "leaf", 21)
    release.node("publish", "double", payload=1, after=[review])
    handle = await shop.client.submit(release)
    assert (await handle.wait(timeout_s=20)).state == "succeeded"
    assert (await handle.node("review")).state == "succeeded"


async def test_a_cancel_from_the_top_leaves_nothing_running_three_deep(shop: Shop) -> None:
    cleaned: list[str] = []

    def nest(type: str, below: str | None) -> None:
        @shop.worker.workflow(type)
        async def run(wf: Workflow) -> None:
            try:
                await (wf.child(below, id=f"{below}-1") if below else wf.receive("never"))
            finally:
                await wf.run(cleaned.append, type)

    nest("top", "middle")
    nest("middle", "leaf")
    nest("leaf", None)
    shop.open()
    runs = shop.client.workflows
    top = await runs.start("top", id="top-1")
    while not await runs.list(type="leaf"):
        await asyncio.sleep(0.05)
    await top.cancel("no longer wanted")
    for id in ("top-1", "middle-1", "leaf-1"):
        assert (await runs.get(id).wait(timeout_s=20)).state == "cancelled"
    assert sorted(cleaned) == ["leaf", "middle", "top"]
    assert await runs.list(state="running") == []


async def test_a_run_goes_on_as_a_new_one_with_what_it_has_not_received(shop: Shop) -> None:
    @shop.worker.workflow("counter")
    async def counter(wf: Workflow, heard: list[int]) -> list[int]:
        heard = [*heard, await wf.receive("number"), await wf.receive("number")]
        if len(heard) < 6:
            wf.continue_as_new(heard)
        return heard

    run = await shop.client.workflows.start("counter", [], id="counter-1")
    for number in range(6):
        await run.signal("number", number)
    shop.open()
    ended = await run.wait(timeout_s=20)
    assert (ended.state, ended.output) == ("succeeded", [0, 1, 2, 3, 4, 5])
    assert len(await shop.client.workflows.list(type="counter", state="continued")) == 2


DRILL = """
async def order(wf, count):
    found = await wf.call("price", count)
    wf.publish("state", "priced")
    cents = found["{name}"]
    return count * int(await wf.call("price", cents) is not None) * cents
"""


async def test_the_drill_of_a_run_that_failed(shop: Shop, tmp_path: Path) -> None:
    """It stops with a traceback; its history fails alike where no service is; the code is mended; it goes on."""
    file, saved = tmp_path / "code.py", tmp_path / "run.json"

    async def replayed() -> tuple[int, str]:
        """By a process that can reach no service."""
        words = ("-m", "headgate", "workflow", "replay", str(saved), f"{file}:order", "--seeds", "1")
        nowhere = {f"HEADGATE_{service}_URL": "http://127.0.0.1:1" for service in ("QUEUE", "DAG")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env={**os.environ, **nowhere}, stdout=PIPE, stderr=STDOUT
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    async def deploy() -> Worker:
        worker = Worker(shop.client, drain_s=2, wait_s=2)
        worker.workflow("order")(function_named(f"{file}:order"))

        @worker.task("price")
        async def price(job: Job) -> dict[str, int]:
            return {"cents": 250}

        return worker

    file.write_text(DRILL.format(name="price"))
    first = await deploy()
    working = asyncio.create_task(first.run(signals=False))
    run = await shop.client.workflows.start("order", 3, id="order-1")
    failed = await run.wait(timeout_s=20)
    assert failed.state == "failed" and failed.published == {"state": "priced"}
    assert "KeyError: 'price'" in (failed.error or "") and f"{file}" in (failed.error or "")
    first.stop()
    await working
    history = await run.history()
    saved.write_text(json.dumps(history))
    code, said = await replayed()
    assert code == 0 and "KeyError: 'price'" in said and "code.py" in said
    end = replay(history, function_named(f"{file}:order")).end
    assert end is not None and "KeyError: 'price'" in end.spec["error"]
    file.write_text(DRILL.format(name="cents"))
    code, said = await replayed()
    assert code == 1 and "code.py:6" in said and "price#2" in said, "the mended code does not end there"
    second = await deploy()
    working = asyncio.create_task(second.run(signals=False))
    await run.resume("the price is in cents now")
    ended = await run.wait(timeout_s=20)
    assert (ended.state, ended.output, ended.error) == ("succeeded", 750, None)
    saved.write_text(json.dumps(await run.history()))
    assert (await replayed())[0] == 0
    second.stop()
    await working


async def test_a_run_goes_on_with_another_output_and_from_an_earlier_event(
    shop: Shop, stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    charged: list[str] = []

    @shop.worker.task("charge", max_attempts=1)
    async def charge(job: Job) -> str:
        assert job.dag is not None
        charged.append(job.dag.node)
        if job.payload == "down":
            raise OSError("the bank is down")
        return f"receipt of {job.payload}"

    @shop.worker.workflow("order")
    async def order(wf: Workflow, first: str) -> list[str]:
        receipt = await wf.call("charge", first, max_attempts=1)
        return [receipt, await wf.call("charge", "second", max_attempts=1)]

    shop.open()
    run = await shop.client.workflows.start("order", "down", id="order-1")
    assert (await run.wait(timeout_s=20)).state == "failed"
    namespace = shop.client.namespace
    at = ["--dag-url", stack.dag_url, "--queue-url", stack.queue_url, "-n", namespace, "-o", "json"]

    async def command(*words: str) -> Any:
        code = await asyncio.to_thread(cli.main, [*words, *at])
        assert code == 0
        return json.loads(capsys.readouterr().out)

    shown = await command("workflow", "resume", "order-1", "--replace", 'charge#1="by hand"', "--reason", "bank")
    assert (shown["state"], shown["resets"]) == ("running", 1)
    ended = await run.wait(timeout_s=20)
    assert (ended.state, ended.output) == ("succeeded", ["by hand", "receipt of second"])
    [event] = [each for each in (await run.history())["events"] if each["state"] == "reset"]
    assert event["data"] == {"reset": 1, "event": 3, "reason": "bank", "replaced": ["charge#1"]}
    told = [
        each for each in (await run.history())["events"] if each.get("key") == "charge#1" and not each.get("void")
    ]
    await command("workflow", "reset", "order-1", str(told[-1]["event"]))
    ended = await run.wait(timeout_s=20)
    assert (ended.state, ended.output) == ("succeeded", ["by hand", "receipt of second"])
    assert charged == ["charge#1", "charge#2~1", "charge#2~2"]
    replay(await run.history(), order)


async def test_an_update_is_answered(shop: Shop, stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    @shop.worker.task("stock")
    async def stock(job: Job) -> int:
        return int(job.payload)

    @shop.worker.workflow("cart")
    async def cart(wf: Workflow) -> list[int]:
        counts: list[int] = []

        def some(count: int) -> None:
            if count < 1:
                raise ValueError("at least one")

        async def add(count: int) -> int:
            counts.append(await wf.call("stock", count))
            return sum(counts)

        wf.on_update("add", add, validator=some)
        await wf.receive("order")
        await wf.updates_done()
        return counts

    shop.open()
    run = await shop.client.workflows.start("cart", id="cart-1")
    first = await run.update("add", 2, id="one", wait_s=20)
    assert (first.status, first.output) == ("done", 2)
    urls = ["--queue-url", stack.queue_url, "--dag-url", stack.dag_url, "-n", shop.client.namespace]
    for words, code, said in ((["3"], 0, "5"), (["0"], 1, "at least one")):
        done = await asyncio.to_thread(cli.main, ["workflow", "update", "cart-1", "add", *words, *urls])
        assert done == code and said in capsys.readouterr().out
    assert (await run.update_state("one")).output == 2
    await run.signal("order")
    assert (await run.wait(timeout_s=20)).output == [2, 3]
    replay(await run.history(), cart)


async def test_old_code_ends_what_it_began_and_new_code_has_the_rest(shop: Shop) -> None:
    def worker(version: str, *, is_old: bool) -> Worker:
        made = Worker(shop.client, drain_s=2, wait_s=2)

        @made.workflow("release", version=version, only_pinned=is_old)
        async def release(wf: Workflow, _name: str) -> list[str]:
            first = version
            await wf.receive("go")
            return [first, version]

        return made

    old, new = worker("1", is_old=True), worker("2", is_old=False)
    working = [asyncio.create_task(each.run(signals=False)) for each in (old, new)]
    ids = {"stays": "1", "moves": "1", "begins": "2", "anyone": None}
    runs = {id: await shop.client.workflows.start("release", id, id=id, version=pin) for id, pin in ids.items()}
    for run in runs.values():
        while not (await run.show()).parked:
            await asyncio.sleep(0.01)
    assert (await runs["moves"].move("2")).version == "2"
    for run in runs.values():
        await run.signal("go")
    ends = {id: (await run.wait(timeout_s=20)).output for id, run in runs.items()}
    # Replayed by the other code, whose first line is another now: as if it had always been that.
    assert ends == {"stays": ["1", "1"], "moves": ["2", "2"], "begins": ["2", "2"], "anyone": ["2", "2"]}
    for each in (old, new):
        each.stop()
    await asyncio.gather(*working)


async def test_a_run_whose_code_asks_for_nonsense_is_stuck_until_it_is_mended(shop: Shop) -> None:
    asked = {"topic": "no topic", "max_attempts": -1}

    @shop.worker.task("work")
    async def work(job: Job) -> str:
        return "done"

    @shop.worker.workflow("odd")
    async def odd(wf: Workflow) -> Any:
        return await wf.call(str(asked["topic"]))

    shop.open()
    run = await shop.client.workflows.start("odd", id="odd-1")
    while (shown := await run.show()).stuck is None:
        await asyncio.sleep(0.05)
    assert shown.state == "running" and shown.stuck.code == "turn_refused"
    assert "/commands/0/spec/topic" in shown.stuck.error or "topic" in shown.stuck.error
    assert [each.id for each in await shop.client.workflows.list(stuck=True)] == ["odd-1"]
    asked["topic"] = "work"
    await run.resume()
    assert (await run.wait(timeout_s=20)).output == "done"


async def test_a_schedule_runs_a_workflow_each_run_with_an_id_of_its_own(shop: Shop) -> None:
    @shop.worker.workflow("report")
    async def report(wf: Workflow, day: str) -> str:
        return f"{day}: all is well"

    shop.open()
    schedules, runs = shop.client.schedules, shop.client.workflows
    await schedules.put("nightly", cron="0 3 * * *", workflow="report", input="monday", overlap="allow")
    ticks = [await schedules.trigger("nightly") for _ in range(3)]
    assert [tick.decision for tick in ticks] == ["started"] * 3
    while len(await runs.list(type="report", state="succeeded")) < 3:
        await asyncio.sleep(0.05)
    found = await runs.list(type="report")
    assert {run.output for run in found} == {"monday: all is well"} and len({run.id for run in found}) == 3


async def test_commands_ask_what_a_run_is_and_whether_new_code_fits(
    shop: Shop, stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @shop.worker.workflow("waits")
    async def waits(wf: Workflow, count: int) -> None:
        wf.publish("count", count)
        await wf.receive("never")

    shop.open()
    run = await shop.client.workflows.start("waits", 3, id="waits-1")
    while not (await run.show()).parked:
        await asyncio.sleep(0.05)
    code = tmp_path / "code.py"
    before = "async def waits(wf, count):\n    wf.publish('count', count)\n    await wf.receive('never')\n"
    urls = ["--queue-url", stack.queue_url, "--dag-url", stack.dag_url, "-n", shop.client.namespace]

    async def asked(*words: str) -> tuple[int, str]:
        done = await asyncio.to_thread(cli.main, ["workflow", *words, *urls])
        return done, capsys.readouterr().out

    code.write_text(before)
    assert await asked("check", "waits", f"{code}:waits") == (0, "1 of 1 runs replay to the same\n")
    code.write_text(before.replace("'count'", "'amount'"))
    done, said = await asked("check", "waits", f"{code}:waits", "-o", "json")
    [parted] = json.loads(said)["parted"]
    assert (done, parted["event"]) == (1, 1) and "code.py:2" in parted["line"]
    assert json.loads((await asked("query", "waits-1"))[1]) == {"count": 3}
    assert "waits-1" in (await asked("list", "--state", "running"))[1]
    assert "publish count" in (await asked("timeline", "waits-1"))[1]
    assert (await asked("history", "waits-1", "--to", str(tmp_path / "run.json")))[0] == 0
    assert (await asked("signal", "waits-1", "never", "7"))[1] == "accepted\n"
    assert (await run.wait(timeout_s=20)).state == "succeeded"
    replay(json.loads((tmp_path / "run.json").read_text()), waits)
