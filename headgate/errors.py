"""What can go wrong with a call, as one tree.

    HeadgateError
    ├── NoAnswer                     no answer came: retried where that is safe
    │   ├── ConnectionFailed         could not connect (`outcome: none`), or lost it half-way (`unknown`)
    │   └── TimedOut
    ├── BadAnswer                    what answered is no Headgate service: a proxy, a wrong URL
    ├── BadRequest            400    not JSON, too deep
    ├── Unauthorized          401    unknown token
    ├── Forbidden             403    the token lacks a scope or the namespace
    ├── NotFound              404    no such object, or another tenant's
    ├── Conflict              409
    │   ├── NodeExists               another node has this key
    │   ├── NodeReleased             too late: the downstream node is released
    │   ├── NodeNotRunning           only a node that runs can expand itself
    │   ├── DagFinished              the DAG takes no more nodes
    │   ├── DagCancelling            a cancel is still being confirmed
    │   ├── NothingToRetry
    │   ├── ParentWaits              retry the node that the DAG runs for
    │   └── VersionConflict          a value was written meanwhile: read it again
    ├── TooLarge              413    over a size limit
    ├── Invalid               422    wrong shape, type, range, name or unknown field: see `errors`
    │   ├── Cycle                    the edges close a cycle; one is named
    │   └── UnknownNode              an edge names a node that is not there
    ├── OverQuota             429    later, after `retry_after_s`
    ├── Unavailable           503    a shard or a service is away
    ├── ServerError           5xx    anything else that is the service's fault
    │   └── GatewayError             a proxy got no answer from the service (502, 504)
    ├── WrongArguments               a function of an app is not called as its signature says; nothing was sent
    └── JobError                     what a job's result raises besides what its function raised
        ├── JobFailed                the function raised what cannot be raised here
        ├── JobCancelled
        ├── JobSkipped               its condition was not met, or what it waits for did not succeed
        ├── JobTimedOut              an attempt took longer than its function's `timeout_s`
        ├── NotDone                  it has not ended in time; it goes on
        ├── ResultGone               it is no longer kept, or there is none
        └── NoResult                 it was sent with `result=False`

Handlers raise `Retry`, `Throttled` and `Fail`. `RemoteTraceback` is the cause of what a result raises.

What happens to single elements of a batch (a lost lease, a duplicate, a refused item) is a result, no error; of a
verb for one item (`enqueue_one`, `ack_one`, `nack_one`) a refusal is one.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from headgate.wire import DELAY_S_MAX, NAME_BYTES_MAX, THROTTLE_S_MAX, FieldError

# Why an element is refused that may be taken a moment later, as it is.
FOR_NOW: Final = frozenset({"shard_unavailable", "overloaded"})


class HeadgateError(Exception):
    """Base of all errors of this package.

    `outcome` is "none" when nothing was done, "unknown" when it may have been. `retryable` says whether the
    same call can help later. `results` holds what earlier chunks of one large batch answered before this
    error.
    """

    code: str = "error"
    status: int | None = None
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        status: int | None = None,
        outcome: str = "none",
        errors: Sequence[FieldError] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.status = status or type(self).status
        self.outcome = outcome
        self.errors = tuple(errors)
        self.retry_after_s = retry_after_s
        self.results: list[Any] = []

    def __str__(self) -> str:
        """The detail, and what it does not say of single fields."""
        untold = [error for error in self.errors if not (error.pointer and error.pointer in self.detail)]
        faults = "; ".join(
            f"{error.pointer or '/'}: {error.detail}" for error in untold[:3] if error.detail not in self.detail
        )
        return f"{self.detail} ({faults})" if faults else self.detail


class NoAnswer(HeadgateError):
    code, retryable = "no_answer", True


class ConnectionFailed(NoAnswer):
    code = "connection_failed"


class TimedOut(NoAnswer):
    code = "timed_out"


class BadAnswer(HeadgateError):
    code = "bad_answer"


class BadRequest(HeadgateError):
    code, status = "bad_request", 400


class Unauthorized(HeadgateError):
    code, status = "unauthorized", 401


class Forbidden(HeadgateError):
    code, status = "forbidden", 403


class NotFound(HeadgateError):
    code, status = "not_found", 404


class Conflict(HeadgateError):
    code, status = "conflict", 409


class NodeExists(Conflict):
    code = "node_exists"


class NodeReleased(Conflict):
    code = "node_released"


class NodeNotRunning(Conflict):
    code = "node_not_running"


class DagFinished(Conflict):
    code = "dag_finished"


class DagCancelling(Conflict):
    code = "dag_cancelling"


class NothingToRetry(Conflict):
    code = "nothing_to_retry"


class ParentWaits(Conflict):
    code = "parent_waits"


class VersionConflict(Conflict):
    code = "version_conflict"


class TooLarge(HeadgateError):
    code, status = "too_large", 413


class Invalid(HeadgateError):
    code, status = "invalid", 422


class Cycle(Invalid):
    code = "cycle"


class UnknownNode(Invalid):
    code = "unknown_node"


class OverQuota(HeadgateError):
    code, status, retryable = "over_quota", 429, True


class Unavailable(HeadgateError):
    code, status, retryable = "unavailable", 503, True


class ServerError(HeadgateError):
    code, status = "internal", 500


class GatewayError(ServerError):
    """A proxy in front of the service got no answer from it (502, 504)."""

    code, status, retryable = "gateway", 502, True


class WrongArguments(HeadgateError, TypeError):
    """A function is not called as its signature says. Nothing was sent."""

    code = "wrong_arguments"


class JobError(HeadgateError):
    """Base of what a job's result may raise besides what its function raised."""

    code = "job_error"


class JobFailed(JobError):
    """The job failed with an exception that cannot be raised here, or without one; `error` is its whole text."""

    code = "job_failed"

    def __init__(self, detail: str, *, error: str | None = None, **more: Any) -> None:
        super().__init__(detail, **more)
        self.error = error


class JobCancelled(JobError):
    code = "job_cancelled"


class JobSkipped(JobError):
    """The job did not run: its condition was not met, or what it waits for did not succeed."""

    code = "job_skipped"


class JobTimedOut(JobError, TimeoutError):
    """An attempt took longer than the `timeout_s` of its function."""

    code = "job_timed_out"


class NotDone(JobError, TimeoutError):
    """The job has not ended within the time that `result` was to wait; it goes on."""

    code = "not_done"


class ResultGone(JobError):
    """There is no such job, or its result is no longer kept."""

    code = "result_gone"


class NoResult(JobError):
    """The job was sent without keeping its result (`result=False`)."""

    code = "no_result"


class RemoteTraceback(Exception):
    """The traceback of an exception where it was raised; its `__cause__`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


class Retry(Exception):
    """Raised in a handler: give the item back, to be delivered again after `delay_s`.

    `metadata` replaces the item's; with `costs_attempt=False` this delivery is not counted.
    """

    def __init__(
        self,
        reason: str = "the handler asked to be called again",
        *,
        delay_s: float | None = None,
        metadata: dict[str, Any] | None = None,
        costs_attempt: bool = True,
    ) -> None:
        super().__init__(reason)
        self.delay_s = delay_s
        self.metadata = metadata
        self.costs_attempt = costs_attempt


class Throttled(Retry):
    """Raised in a handler that is told to slow down: nothing of the item's topic is delivered for `retry_after_s`.

    With `key` that holds for the items with this `fairness_key` only; the `key` with which a job was enqueued
    names one job, and is another thing. It holds for all workers, and for an hour at most. The item comes again
    after `retry_after_s`; this delivery is not counted.
    """

    def __init__(
        self,
        retry_after_s: float,
        reason: str = "the handler was told to slow down",
        *,
        key: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        if key is not None and not (isinstance(key, str) and 1 <= len(key.encode()) <= NAME_BYTES_MAX):
            raise ValueError(f"key={key!r} is no fairness key: those are texts of 1 to {NAME_BYTES_MAX} bytes")
        if not 0 <= retry_after_s <= DELAY_S_MAX:
            raise ValueError(f"retry_after_s={retry_after_s!r} is not within 0 and {DELAY_S_MAX} seconds")
        super().__init__(reason, delay_s=retry_after_s, metadata=metadata, costs_attempt=False)
        self.throttle_s = min(retry_after_s, THROTTLE_S_MAX)
        self.key = key


class Fail(Exception):
    """Raised in a handler: the item is dead, whatever attempts it has left; a DAG's node has failed."""


_BY_STATUS: dict[int, type[HeadgateError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: Invalid,
    429: OverQuota,
    502: GatewayError,
    503: Unavailable,
    504: GatewayError,
}
_BY_CODE: dict[str, type[HeadgateError]] = {
    error.code: error
    for error in (
        NodeExists,
        NodeReleased,
        NodeNotRunning,
        DagFinished,
        DagCancelling,
        NothingToRetry,
        ParentWaits,
        VersionConflict,
        Cycle,
        UnknownNode,
    )
}


_AWAY: Final = "the item's shard cannot take it now; send it again"
_REFUSALS: dict[str, tuple[type[HeadgateError], str]] = {
    "over_quota": (OverQuota, "the namespace's quota is used up; send it again later, or raise the quota"),
    "key_reused": (Conflict, "the idempotency key stands for other content; use a new key for new content"),
    "id_too_old": (Conflict, "the id is from before the id window; make a new id if the item never ran"),
    "id_in_future": (Invalid, "the id's time lies ahead of the shard's clock; set this machine's clock"),
    "id_unavailable": (Conflict, "the id stands for an item that is not this namespace's; make a new id"),
    "shard_unavailable": (Unavailable, _AWAY),
    "overloaded": (Unavailable, _AWAY),
    "shutting_down": (Unavailable, _AWAY),
    "storage_full": (Unavailable, "the disk of the item's shard is full; make room there, and send it again"),
}


def from_refusal(code: str | None, outcome: str | None) -> HeadgateError:
    """The error that a refused item stands for, where it was the only one of its call."""
    kind, detail = _REFUSALS.get(code or "", (HeadgateError, f"the service refused the item: {code}"))
    return kind(detail, code=code, outcome=outcome or "none")


def from_problem(status: int, content: bytes, headers: Mapping[str, str]) -> HeadgateError:
    """The error that an answer with `status` >= 400 stands for, problem+json or not."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("code"), str):
        body = None
    retry_after_s = _seconds(headers.get("retry-after"))
    if body is None:
        return _unspoken(status, content, retry_after_s)
    kind = _BY_CODE.get(body["code"]) or _kind_of(status)
    return kind(
        str(body.get("detail") or body.get("title") or body["code"]),
        code=body["code"],
        status=status,
        outcome="none" if body.get("outcome") == "none" else "unknown",
        errors=_faults(body.get("errors")),
        retry_after_s=retry_after_s,
    )


def _unspoken(status: int, content: bytes, retry_after_s: float | None) -> HeadgateError:
    """An answer that no Headgate service wrote. A 4xx of a proxy did not reach the service."""
    kind = _kind_of(status) if status >= 500 or status == 429 else BadAnswer
    text = " ".join(content[:200].decode(errors="replace").split())
    outcome = "none" if status < 500 else "unknown"
    detail = f"HTTP {status} without a problem body: {text or 'empty'}"
    return kind(detail, status=status, outcome=outcome, retry_after_s=retry_after_s)


def _kind_of(status: int) -> type[HeadgateError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ServerError if status >= 500 else BadRequest


def _faults(faults: object) -> list[FieldError]:
    if not isinstance(faults, list):
        return []
    return [
        FieldError(pointer=str(fault.get("pointer", "")), detail=str(fault.get("detail", "")))
        for fault in faults
        if isinstance(fault, dict)
    ]


def _seconds(text: str | None) -> float | None:
    """Retry-After in seconds; the form with a date is not used by Headgate and is ignored."""
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
