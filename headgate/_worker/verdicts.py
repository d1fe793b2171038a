"""How a handler ended, as the service is to be told.

Whatever a handler returns or raises has a verdict, and making one raises nothing: what stands in an error is its
program's code, of which also the text may end in a panic or with `sys.exit`.
"""

import asyncio
import json
from contextvars import Context
from types import TracebackType
from typing import Any, Final

from headgate import _error_text
from headgate._calls.verbs import encode, present
from headgate._error_text import clean, is_of, name_of, text_of
from headgate._worker.job import Job
from headgate._worker.job_logs import current_job
from headgate._worker.program_log import log
from headgate.errors import Fail, Invalid, Retry, Throttled

# A verb, and its element, which is sent with others': it is of plain JSON, and not of classes of the program's.
Ending = tuple[str, Any]
_PLAIN: Final = (type(None), bool, int, float, str)


def verdict_of(job: Job, output: Any) -> Ending:
    """How the service is told of a handler that returned.

    By an ack, unless its output has no JSON form, or children that it wanted to add are lost.
    """
    if job.drop_expansions():
        return "nack", job.nack(
            error="job.expand(...) had not ended when the handler did, so its children are not there: write "
            "`await job.expand(...)`"
        )
    try:
        text = encode(output)
    except Invalid as error:
        return "nack", job.nack(error=f"the handler's output {error.detail}")
    job.output_bytes = len(text)
    return "ack", job.leased.ack(output if type(output) in _PLAIN else json.loads(text))


def handed_back(job: Job, error: BaseException | None = None) -> Ending:
    """How the service is told of what a worker that stops has not ended; `error` is what its cancel has become."""
    if error is not None and not is_of(error, asyncio.CancelledError):
        log.warning("the handler of %r made of its cancel %r", job, error, exc_info=traced(error))
    return "nack", job.nack(error="the worker stopped", costs_attempt=False)


def ended_by_exit(job: Job, found: tuple[BaseException, Context] | None) -> Ending | None:
    """How the service is told of a job of which a task or a callback, which have its context, has ended the event
    loop. None for all others, which have no part in it."""
    if found is None:
        return None
    error, context = found
    return verdict_of_error(job, error) if context.get(current_job) is job else None


def verdict_of_task(job: Job, working: asyncio.Task[Ending]) -> Ending:
    """How the service is told of a job whose task has ended, and was not cancelled."""
    error = working.exception()
    return working.result() if error is None else verdict_of_error(job, error)


def verdict_of_failure(job: Job, error: BaseException) -> Ending:
    """As `verdict_of_error`; the program's log is told of it, too."""
    verdict = verdict_of_error(job, error)
    if is_of(error, Retry, Fail):
        # Of a traceback the last line: all of it was logged where it was caught.
        said = str(verdict[1].get("error") or "").strip().rpartition("\n")[2]
        log.info("%r ends with %s: %s", job, name_of(error), said)
    elif is_of(error, asyncio.CancelledError):
        log.warning("the handler of %r was cancelled", job)
    else:
        log.warning("the handler of %r raised %r", job, error, exc_info=traced(error))
    return verdict


def verdict_of_error(job: Job, error: BaseException) -> Ending:
    """How the service is told of a handler that raised, whatever it was."""
    try:
        verb, element = _verdict_of_error(job, error)
        return verb, json.loads(encode(element))
    except Invalid as unfit:
        return _in_short(job, error, unfit.detail)
    except BaseException as failure:
        return _in_short(job, error, name_of(failure))


def _in_short(job: Job, error: BaseException, why: str) -> Ending:
    text = f"the handler raised {name_of(error)}, of which no more can be told: {why}"
    return "nack", job.nack(error=clean(text), final=is_of(error, Fail))


def _verdict_of_error(job: Job, error: BaseException) -> Ending:
    if isinstance(error, Fail):
        return "nack", job.nack(error=clean(str(error) or "failed"), final=True)
    if isinstance(error, Retry):
        throttle_s, key = (error.throttle_s, error.key) if isinstance(error, Throttled) else (None, None)
        options = present(delay_s=error.delay_s, metadata=error.metadata, throttle_s=throttle_s, throttle_key=key)
        return "nack", job.nack(error=clean(str(error)), costs_attempt=error.costs_attempt, **options)
    return "nack", job.nack(error=text_of(error, trace_of(error)))


def traced(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """An error, as logging takes it, with its traceback from the handler on."""
    return type(error), error, trace_of(error)


def trace_of(error: BaseException) -> TracebackType | None:
    """Its traceback from the handler on: how the worker came there is nobody's question."""
    trace = whole = _error_text.trace_of(error)
    while trace is not None and _is_own(trace.tb_frame.f_globals.get("__package__")):
        trace = trace.tb_next
    return trace or whole


def _is_own(package: object) -> bool:
    return isinstance(package, str) and package.partition(".")[0] == "headgate"
