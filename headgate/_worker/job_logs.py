"""What jobs log, on its way to the service.

Lines are taken from Python's loggers in any thread, and go in batches beside the worker's other calls: all that
has gathered, of all jobs, in one call. No handler waits for that. What a worker cannot send in time is dropped and
counted, and the count is a line of the log. A nack is told behind the rest of its job's log, as only the holder of
an item may write that; an ack need not wait, as the service knows who gave it until the lease would have run out.
"""

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from headgate._backoff import pause_s
from headgate._calls.elements import Leased
from headgate._worker.program_log import log
from headgate.errors import HeadgateError
from headgate.wire import BATCH_MAX, LOG_AGE_S_MAX

if TYPE_CHECKING:
    from headgate._client.aio.client import AsyncClient


# How long lines gather before they are sent.
GATHER_S: Final = 0.5
# How long a call may take; then it is tried again with the next, or, of a job that is to be nacked, given up.
SEND_S_MAX: Final = 2.0
# Of all jobs of a worker, waiting to be sent.
BYTES_MAX: Final = 4 * 1024 * 1024
TEXT_CHARS_MAX: Final = 4_000
# Of one element of a call; the service takes 64 KiB.
BATCH_BYTES_MAX: Final = 48 * 1024
CALL_BYTES_MAX: Final = 2 * 1024 * 1024
# What a line takes beside its text, about.
_AROUND_BYTES: Final = 100
_NAME_CHARS_MAX: Final = 50
_LEVELS: Final = ((50, "critical"), (40, "error"), (30, "warning"), (20, "info"))


class Job(Protocol):
    """What has a log here; `logs` is where its lines go, while it is at work."""

    leased: Leased
    logs: "JobLogs | None"


current_job: ContextVar[Job | None] = ContextVar("headgate_job", default=None)


class _Line(NamedTuple):
    at_s: float
    level: str
    logger: str
    text: str
    bytes: int


@dataclass(slots=True)
class _Batch:
    """Lines that go in one element, the same each time that it is sent."""

    number: int
    lines: list[_Line]
    bytes: int


@dataclass(slots=True)
class _Log:
    """What one job has logged and the service does not have yet."""

    lines: list[_Line] = field(default_factory=list)
    batches: list[_Batch] = field(default_factory=list)
    number: int = 0
    dropped: int = 0
    is_closed: bool = False  # the service takes no more
    is_over: bool = False  # the job has ended
    then: Callable[[], None] | None = None  # what is to be done behind its last line

    @property
    def is_empty(self) -> bool:
        return not (self.lines or self.batches or self.dropped)


class JobLogs:
    """The logs of a worker's jobs."""

    def __init__(self, client: "AsyncClient", namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._logs: dict[Job, _Log] = {}
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_woken = False
        self._some, self._hurry, self._sent = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._sent.set()
        self._bytes = self._failures = 0

    def add(self, job: Job, level: int, logger: str, text: str) -> None:
        """Take a line of a job, in any thread."""
        text = clean(text)
        line = _Line(
            self._clock(), level_name(level), clean(logger)[:_NAME_CHARS_MAX] or "root", text, _size(text)
        )
        with self._lock:
            if job.logs is not self:
                return  # it has ended meanwhile
            kept = self._logs.setdefault(job, _Log())
            if kept.is_closed:
                return
            if self._bytes + line.bytes > BYTES_MAX:
                kept.dropped += 1
                return
            kept.lines.append(line)
            self._bytes += line.bytes
            loop, wakes = self._loop, not self._is_woken
            self._is_woken = True
        if wakes and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._some.set)

    def end(self, job: Job, then: Callable[[], None] | None = None) -> None:
        """The job has ended. Send the rest of its log, and then, or when that cannot be done, call `then`."""
        with self._lock:
            job.logs = None
            kept = self._logs.get(job)
            if kept is not None and not kept.is_empty:
                kept.is_over, kept.then = True, then
                self._sent.clear()
            else:
                self._forget(job)
                kept = None
        if kept is not None:
            self._some.set()
            if then is not None:
                self._hurry.set()
        elif then is not None:
            then()

    def drop(self, job: Job) -> None:
        """The job is no longer this worker's."""
        with self._lock:
            job.logs = None
            self._forget(job)

    async def sent(self) -> None:
        """Wait until nothing is left of jobs that have ended."""
        self._hurry.set()
        await self._sent.wait()

    async def run(self) -> None:
        """Send what there is, until cancelled."""
        self._loop = asyncio.get_running_loop()
        with self._lock:
            if self._logs:
                self._some.set()
        with taking():
            while True:
                await self._some.wait()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s(self._failures) if self._failures else GATHER_S):
                        await self._hurry.wait()
                await self.step()

    async def step(self) -> None:
        """Send what there is, in one call."""
        self._some.clear()
        self._hurry.clear()
        taken, calls = self._taken()
        try:
            if calls:
                async with asyncio.timeout(SEND_S_MAX):
                    results = await self._client.logs.write(calls, namespace=self._namespace)
                for (job, batch), result in zip(taken, results, strict=True):
                    self._answered(job, batch, result.status)
            self._failures = 0
        except (TimeoutError, HeadgateError) as error:
            self._failures += 1
            log.warning("could not send what jobs have logged: %s", error or "no answer in time")
            retryable = isinstance(error, TimeoutError) or error.retryable
            self._unanswered({job for job, _ in taken}, closes=not retryable)
        except Exception:
            log.exception("could not send what jobs have logged")
            self._unanswered({job for job, _ in taken}, closes=True)
        finally:
            self._tell_ends()

    def _taken(self) -> tuple[list[tuple[Job, _Batch]], list[dict[str, Any]]]:
        """What goes with the next call, each batch by its job."""
        taken: list[tuple[Job, _Batch]] = []
        left_bytes, now_s = CALL_BYTES_MAX, self._clock()
        with self._lock:
            self._is_woken = False
            for job, kept in self._logs.items():
                _cut(kept, now_s)
                for batch in kept.batches:
                    if len(taken) >= BATCH_MAX or left_bytes < batch.bytes:
                        self._some.set()
                        self._hurry.set()
                        break
                    left_bytes -= batch.bytes
                    taken.append((job, batch))
        return taken, [_element(job, batch, now_s) for job, batch in taken]

    def _answered(self, job: Job, batch: _Batch, status: str) -> None:
        if status == "refused":
            self._unanswered({job}, closes=False)
            return
        if status == "full":
            log.warning("%r logs more than is kept", job)
        with self._lock:
            kept = self._logs.get(job)
            if kept is None:
                return
            if status != "written":
                kept.is_closed = True
                self._empty(kept)
            elif batch in kept.batches:
                kept.batches.remove(batch)
                self._bytes -= batch.bytes

    def _unanswered(self, jobs: set[Job], *, closes: bool) -> None:
        """What is not answered goes with the next call, too; but nobody waits for it any longer."""
        with self._lock:
            for job in jobs:
                kept = self._logs.get(job)
                if kept is not None and (closes or kept.then is not None):
                    kept.is_closed = True
                    self._empty(kept)
        self._some.set()

    def _tell_ends(self) -> None:
        with self._lock:
            over = [(job, kept.then) for job, kept in self._logs.items() if kept.is_over and kept.is_empty]
            for job, _ in over:
                self._forget(job)
            if not any(kept.is_over for kept in self._logs.values()):
                self._sent.set()
        for _, then in over:
            if then is not None:
                then()

    def _forget(self, job: Job) -> None:
        kept = self._logs.pop(job, None)
        if kept is not None:
            self._empty(kept)

    def _empty(self, kept: _Log) -> None:
        self._bytes -= sum(line.bytes for line in kept.lines) + sum(batch.bytes for batch in kept.batches)
        kept.lines, kept.batches, kept.dropped = [], [], 0


def _cut(kept: _Log, now_s: float) -> None:
    """Make batches of the lines of a log, and of the number of those that were dropped."""
    lines: list[_Line] = []
    size = 0
    if kept.dropped:
        told = f"{kept.dropped} lines are not here: there were more than could be sent"
        kept.lines.append(_Line(now_s, "warning", "headgate", told, 0))
        kept.dropped = 0
    for line in kept.lines:
        if lines and (len(lines) == BATCH_MAX or size + line.bytes > BATCH_BYTES_MAX):
            kept.number += 1
            kept.batches.append(_Batch(kept.number, lines, size))
            lines, size = [], 0
        lines.append(line)
        size += line.bytes
    if lines:
        kept.number += 1
        kept.batches.append(_Batch(kept.number, lines, size))
    kept.lines = []


def _element(job: Job, batch: _Batch, now_s: float) -> dict[str, Any]:
    lines = [
        {
            "text": line.text,
            "level": line.level,
            "logger": line.logger,
            "age_s": round(min(max(now_s - line.at_s, 0.0), LOG_AGE_S_MAX), 4),
        }
        for line in batch.lines
    ]
    return {
        "id": job.leased.id,
        "lease_token": job.leased.lease_token,
        "attempt": job.leased.attempt,
        "number": batch.number,
        "lines": lines,
    }


def level_name(number: int) -> str:
    return next((name for least, name in _LEVELS if number >= least), "debug")


def clean(text: str) -> str:
    """Text in characters that may be stored; of a long one its beginning and its end."""
    if len(text) > TEXT_CHARS_MAX:
        half = TEXT_CHARS_MAX // 2
        text = f"{text[:half]} … {text[-half:]}"
    if text.isascii() and text.isprintable():
        return text
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def _size(text: str) -> int:
    plain = text.isascii() and text.isprintable()
    return _AROUND_BYTES + (2 * len(text) if plain else len(json.dumps(text, ensure_ascii=False).encode()))


class _Taker(logging.Handler):
    """Gives each record to the log of the job in whose handler it was made.

    In a program that has set up no logging, Python's handler of last resort would be silent beside this one, and
    with it all warnings: so it is asked here.
    """

    def emit(self, record: logging.LogRecord) -> None:
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_alone(record.name):
            last.handle(record)
        self._keep(record)

    def _is_alone(self, name: str) -> bool:
        """Whether nobody else handles what the logger of this name tells, as `logging` would look for it."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True

    def _keep(self, record: logging.LogRecord) -> None:
        job: Job | None = getattr(record, "headgate_job", None) or current_job.get()
        logs = None if job is None else job.logs
        if job is None or logs is None:
            return
        try:
            logs.add(job, record.levelno, record.name, self.format(record))
        except Exception:
            self.handleError(record)


class taking:  # noqa: N801 - as a function
    """While workers run, records go to the logs of jobs."""

    _taker = _Taker()
    _users = 0
    _lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            taking._users += 1
            logging.getLogger().addHandler(self._taker)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            taking._users -= 1
            if not taking._users:
                logging.getLogger().removeHandler(self._taker)


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines are a job's, in whatever thread they are made. To call it is to call its `info`."""

    def __init__(self, job: Job) -> None:
        super().__init__(logging.getLogger("headgate.job"), {"headgate_job": job})

    def __call__(self, msg: object, *args: object) -> None:
        self.info(msg, *args)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


logging.getLogger("headgate.job").setLevel(logging.INFO)
