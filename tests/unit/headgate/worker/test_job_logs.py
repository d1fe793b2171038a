"""What jobs log, on its way: whose lines they are, how many calls they cost, and what failed calls leave."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate import Job
from headgate._worker import job_logs
from headgate._worker.job_logs import JobLogs, current_job
from headgate._worker.worker import Worker
from tests.unit.headgate.client.test_client import leased
from tests.unit.headgate.fakes import problem
from tests.unit.headgate.worker.test_worker import Queue, worker_on, working

log = logging.getLogger("app")


@pytest.fixture(autouse=True)
def levels() -> Any:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    yield
    root.setLevel(before)


def lines(queue: Queue, item: str) -> list[str]:
    return [line["text"] for batch in queue.said["logs"] if batch["id"] == item for line in batch["lines"]]


async def test_lines_are_of_the_job_in_whose_handler_they_were_made() -> None:
    """In the handler, in its tasks and threads, of libraries; and by `job.log` wherever it is used."""

    async def handler(job: Job) -> None:
        log.info("%s in the handler", job.id)
        await asyncio.create_task(deeper(job))
        await asyncio.to_thread(log.error, "%s in a thread", job.id)
        bare = threading.Thread(target=job.log.warning, args=("%s in a thread without context", job.id))
        bare.start()
        bare.join()
        log.debug("not asked for")

    async def deeper(job: Job) -> None:
        await asyncio.sleep(0)
        log.info("%s in a task", job.id)

    log.info("nobody's")
    queue = Queue(leased("a"), leased("b"))
    await working(queue, handler, lambda: queue.heard("ack", 2))
    for item in "ab":
        assert lines(queue, item) == [
            f"{item} in the handler",
            f"{item} in a task",
            f"{item} in a thread",
            f"{item} in a thread without context",
        ]
    [batch] = [batch for batch in queue.said["logs"] if batch["id"] == "a"]
    assert [(line["level"], line["logger"]) for line in batch["lines"]] == [
        ("info", "app"),
        ("info", "app"),
        ("error", "app"),
        ("warning", "headgate.job"),
    ]
    assert (batch["number"], batch["lease_token"]) == (1, "token-a")
    log.info("nobody's any more")
    assert not [handler for handler in logging.getLogger().handlers if isinstance(handler, job_logs._Taker)]


async def test_plain_functions_log_too() -> None:
    queue = Queue(leased("a"))
    await working(queue, lambda job: log.info("from the thread of %s", job.id), lambda: queue.heard("ack", 1))
    assert lines(queue, "a") == ["from the thread of a"]


async def test_the_log_of_a_job_that_fails_goes_before_its_nack_with_the_traceback() -> None:
    async def handler(_job: Job) -> None:
        log.info("before")
        raise ValueError("no such page")

    queue = Queue(leased("a"))
    await working(queue, handler, lambda: queue.heard("nack", 1))
    assert queue.calls.index("logs") < queue.calls.index("nack")
    before, raised = lines(queue, "a")
    assert before == "before" and "ValueError: no such page" in raised


async def test_an_ack_does_not_wait_for_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_logs, "GATHER_S", 3600.0)

    async def handler(_job: Job) -> None:
        log.info("x")

    queue = Queue(leased("a"))
    await working(queue, handler, lambda: queue.heard("ack", 1))
    assert lines(queue, "a") == ["x"], "sent when the worker stops, at the latest"


async def test_without_keep_logs_nothing_is_sent() -> None:
    async def handler(_job: Job) -> None:
        log.info("x")

    queue = Queue(leased("a"))
    await working(queue, handler, lambda: queue.heard("ack", 1), keep_logs=False)
    assert "logs" not in queue.calls


class Made:
    """A shipper whose steps are made by hand, and one job."""

    def __init__(self, queue: Queue, worker: Worker) -> None:
        self.queue = queue
        self.logs = JobLogs(worker.client, "ns", clock=lambda: self.now_s)
        self.now_s = 100.0

    def job(self, name: str) -> Job:
        made: Any = Job.__new__(Job)
        made.leased = type("Leased", (), {"id": name, "lease_token": f"token-{name}", "attempt": 1})
        made.logs = self.logs
        found: Job = made
        return found

    def line(self, job: Job, text: str) -> None:
        self.logs.add(job, logging.INFO, "app", text)


@pytest.fixture
async def made() -> AsyncIterator[Made]:
    queue = Queue()
    worker = worker_on(queue)
    yield Made(queue, worker)
    await worker.client.aclose()


async def test_a_thousand_lines_of_many_jobs_are_one_call(made: Made) -> None:
    jobs = [made.job(f"j{number}") for number in range(10)]
    for number in range(1_000):
        made.line(jobs[number % 10], f"line {number}")
    await made.logs.step()
    assert made.queue.calls == ["logs"]
    assert lines(made.queue, "j3") == [f"line {number}" for number in range(3, 1_000, 10)]
    await made.logs.step()
    assert made.queue.calls == ["logs"], "nothing is sent twice, and no call is made for nothing"


async def test_ages_are_told_as_they_are_when_the_call_is_made(made: Made) -> None:
    job = made.job("a")
    made.line(job, "x")
    made.now_s += 2.5
    await made.logs.step()
    assert made.queue.said["logs"][0]["lines"][0]["age_s"] == 2.5


async def test_what_was_not_answered_is_sent_again_as_it_was(made: Made) -> None:
    job = made.job("a")
    made.line(job, "x")
    made.queue.failing = [problem(503, "unavailable", "unknown")]
    await made.logs.step()
    made.line(job, "y")
    await made.logs.step()
    said = made.queue.said["logs"]
    assert [(batch["number"], [line["text"] for line in batch["lines"]]) for batch in said] == [
        (1, ["x"]),
        (2, ["y"]),
    ]


async def test_a_nack_waits_for_one_failed_call_and_no_longer(made: Made) -> None:
    job, told = made.job("a"), []
    made.line(job, "x")
    made.queue.failing = [problem(503, "unavailable", "unknown")]
    made.logs.end(job, lambda: told.append("told"))
    assert told == []
    await made.logs.step()
    assert told == ["told"]
    await made.logs.step()
    assert made.queue.calls == ["logs"] and made.logs._bytes == 0


@pytest.mark.parametrize("status", ["full", "lease_lost", "cancelled", "not_found"])
async def test_a_log_that_takes_no_more_is_closed(made: Made, status: str) -> None:
    job = made.job("a")
    made.queue.statuses["a"] = status
    made.line(job, "x")
    await made.logs.step()
    made.line(job, "y")
    await made.logs.step()
    assert lines(made.queue, "a") == ["x"] and made.logs._bytes == 0


async def test_a_service_that_keeps_no_logs_is_asked_once_a_job(made: Made) -> None:
    job = made.job("a")
    made.queue.failing = [problem(404, "not_found")]
    made.line(job, "x")
    await made.logs.step()
    made.line(job, "y")
    await made.logs.step()
    assert made.queue.calls == ["logs"]


async def test_what_cannot_be_sent_in_time_is_dropped_and_counted(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_logs, "BYTES_MAX", 1_000)
    job = made.job("a")
    for number in range(20):
        made.line(job, f"{number}")
    await made.logs.step()
    found = lines(made.queue, "a")
    kept = len(found) - 1
    assert found == [*map(str, range(kept)), f"{20 - kept} lines are not here: there were more than could be sent"]
    made.line(job, "room again")
    await made.logs.step()
    assert lines(made.queue, "a")[-1] == "room again"


async def test_elements_and_calls_are_bounded_in_bytes(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_logs, "CALL_BYTES_MAX", 100_000)
    job = made.job("a")
    for _ in range(60):
        made.line(job, "é\n" * 3_000)
    while made.logs._bytes:
        await made.logs.step()
    assert len(lines(made.queue, "a")) == 60 and len(made.queue.calls) > 3
    assert [batch["number"] for batch in made.queue.said["logs"]] == [*range(1, len(made.queue.said["logs"]) + 1)]


async def test_text_that_cannot_be_stored_is_made_such(made: Made) -> None:
    job = made.job("a")
    for text in ("a\x00b", "half \ud800", "x" * 100_000):
        made.line(job, text)
    await made.logs.step()
    nul, half, long = lines(made.queue, "a")
    assert (nul, half, len(long) < 8_192) == ("a\N{REPLACEMENT CHARACTER}b", "half ?", True)


async def test_who_logs_on_after_the_end_of_its_job_is_not_heard(made: Made) -> None:
    job = made.job("a")
    made.line(job, "x")
    made.logs.end(job)
    made.line(job, "too late")
    await made.logs.step()
    made.line(job, "too late")
    assert lines(made.queue, "a") == ["x"] and not made.logs._logs


async def test_handlers_log_while_the_service_stands_still() -> None:
    """Nothing in a handler waits for a call."""
    stuck = asyncio.Event()

    class Stuck(Queue):
        async def settle(self, verb: str, elements: list[dict[str, Any]]) -> list[dict[str, Any]]:
            if verb == "logs":
                await stuck.wait()
            return await super().settle(verb, elements)

    async def handler(_job: Job) -> None:
        for _ in range(100):
            log.info("x")

    queue = Stuck(*map(leased, "abc"))
    worker = worker_on(queue)
    worker.task("t")(handler)
    running = asyncio.create_task(worker.run(signals=False))
    await queue.heard("ack", 3)
    stuck.set()
    worker.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert current_job.get() is None


@pytest.mark.parametrize("has_handler", [False, True])
def test_a_program_without_logging_still_hears_warnings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_handler: bool
) -> None:
    """As Python shows them by itself; once, and not beside a handler of the program's own."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()] if has_handler else [])
    with job_logs.taking():
        log.warning("a run is stuck")
        log.info("quiet")
    assert capsys.readouterr().err == ("" if has_handler else "a run is stuck\n")
