"""Errors of the queue service beyond the shared ones, and the codes of refused elements."""

from __future__ import annotations

from typing import Literal

from services.queue.model import Result
from shared.admission.connection_priority import Urgency
from shared.admission.delay import overloaded
from shared.errors import Overloaded, ServiceError

RefusalCode = Literal[
    "key_reused",
    "id_too_old",
    "id_in_future",
    "id_unavailable",
    "cancel_limit",
    "over_quota",
    "shard_unavailable",
    "storage_full",
    "overloaded",
]


class PayloadTooLarge(ServiceError):
    """One value of a request is over its own limit."""

    code, status, title = "too_large", 413, "A value is over a size limit"


class OperationExists(ServiceError):
    """The id that a caller gave stands for another operation."""

    code, status, title = "operation_exists", 409, "Another operation has this id"


class TooManyOperations(ServiceError):
    """A namespace has as many operations at work as it may."""

    code, status, retryable, title = "operation_limit", 429, True, "Too many operations are running"


def unless_overloaded(results: list[Result], level: Urgency) -> list[Result]:
    """The results of a call; one of which nothing at all could be taken for the load is refused as a whole."""
    if results and results[0].code == Overloaded.code and all(each.code == Overloaded.code for each in results):
        raise overloaded(level)
    return results
