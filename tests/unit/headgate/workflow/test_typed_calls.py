"""Functions of an app, called by workflows: arguments and results as they are annotated."""

import asyncio
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from headgate import App, JobFailed, NodeFailed, Workflow
from headgate.testing import explore, replay, simulate
from headgate.workflow.errors import Mismatch

app = App("shop")


class Receipt(BaseModel):
    id: str
    day: date


@app.job(max_attempts=3, timeout_s=5)
def charge(cents: int, payer: str = "ada") -> Receipt:
    raise AssertionError("only a worker runs it")


@app.job
def total(numbers: list[int]) -> int:
    return sum(numbers)


async def order(wf: Workflow, cents: int) -> dict[str, Any]:
    first = await wf.call(charge.options(priority=3).call(cents=cents))
    task = await wf.fork(charge.call(cents + 1, payer="bob"))
    second = await wf.join(task)
    return {"ids": [first.id, second.id], "year": second.day.year}


def receipt(cents: int, payer: str = "ada") -> Receipt:
    return Receipt(id=f"{payer}-{cents}", day=date(2026, 11, 24))


def test_a_result_is_of_its_type_and_arguments_are_the_functions() -> None:
    done = simulate(order, 250).on(charge, receipt, fails=1)
    assert done.output == {"ids": ["ada-250", "bob-251"], "year": 2026}
    assert done.asked == ["job/charge#1", "job/charge#2"]
    explore(done, seeds=20)


def test_an_output_may_be_given_as_the_function_returns_it() -> None:
    done = simulate(order, 1).on(charge, receipt(7))
    assert done.output["ids"] == ["ada-7", "ada-7"]


def test_what_a_worker_is_told_is_what_the_app_would_send() -> None:
    [spec] = [charge.options(priority=3).call(cents=250).as_task(simulate(order, 1).history[0].at)[0]]
    assert spec == {
        "topic": "job/charge",
        "payload": {"fn": "charge", "v": 1, "args": {"cents": 250}},
        "priority": 3,
        "max_attempts": 3,
        "timeout_s": 35.0,
    }


def test_a_function_that_is_decorated_otherwise_replays_and_other_arguments_do_not() -> None:
    def at(settings: dict[str, Any], more: int) -> Any:
        other = App("shop")

        @other.job(name="charge", **settings)
        def charge_later(cents: int) -> Any: ...

        async def flow(wf: Workflow, cents: int) -> None:
            await wf.call(charge_later.call(cents + more))

        return flow

    history = simulate(at({}, 0), 250).history
    replay(history, at({"max_attempts": 9, "timeout_s": 1, "priority": 4}, 0))
    with pytest.raises(Mismatch, match="job/charge#1"):
        replay(history, at({}, 1))
    with pytest.raises(Mismatch):
        replay(history, at({"version": 2}, 0))


def test_a_result_that_does_not_fit_is_an_error_that_code_may_catch() -> None:
    async def careful(wf: Workflow) -> str:
        try:
            await wf.call(total.call([1, 2]))
        except JobFailed as error:
            return str(error)
        return "fits"

    async def fails(wf: Workflow) -> str:
        try:
            await wf.call(charge.call(5))
        except NodeFailed as error:
            return error.key
        return "succeeded"

    assert "of total is not of the type" in simulate(careful).on("job/total", "three").output
    assert "is in the app's store" in simulate(careful).on("job/total", {"$headgate": "stored", "key": "k"}).output
    assert simulate(careful).on(total, 3).output == "fits"
    assert simulate(fails).on(charge, fails=3).output == "job/charge#1"


def test_results_that_are_marked_are_opened() -> None:
    async def one(wf: Workflow) -> int:
        return await wf.call(total.call([1]))

    assert simulate(one).on("job/total", {"$headgate": "value", "value": 3, "trace": {}}).output == 3


@pytest.mark.parametrize(
    ("asking", "said"),
    [
        (lambda wf: wf.call(total.call([1]), 5), "has its arguments already"),
        (lambda wf: wf.call(total.call([1]), max_attempts=2), "charge.options(max_attempts=5).call"),
        (lambda wf: wf.call(total), "a function's call, like charge.call(cents=250)"),
        (lambda wf: wf.call(app.flow("pack")), "a function's call, like charge.call(cents=250)"),
        (lambda wf: wf.dag(app.flow("pack")), "flow.dag()"),
        (lambda wf: wf.call(total.call([total.call([1])])), "await that one first"),
        (lambda wf: wf.call(app.flow("pack").map(total, [[1]])), "await wf.dag(flow.dag())"),
        (lambda wf: wf.call(total.options(key="k").call([1])), "no option 'key'"),
        (lambda wf: wf.fork(total.options(result=False).call([1])), "no option 'result'"),
    ],
)
def test_what_is_no_call_says_what_to_write(asking: Any, said: str) -> None:
    async def flow(wf: Workflow) -> str:
        try:
            await asking(wf)
        except TypeError as error:
            return str(error)
        return "taken"

    assert said in simulate(flow).output


def test_a_moment_is_one_of_the_run() -> None:
    async def later(wf: Workflow) -> int:
        await asyncio.sleep(60)
        return await wf.call(total.options(at=wf.now()).call([1]))

    explore(simulate(later).on(total, 3), seeds=5)
