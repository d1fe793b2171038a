"""Errors of the queue service beyond the shared ones, and the codes of refused elements."""

from __future__ import annotations

from typing import Literal

from shared.errors import ServiceError

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
