"""Errors as classes with data; rendered once, as problem+json, by `shared.http.edge`.

ServiceError
├── BadRequest            400   not JSON, too deep, wrong framing
│   └── TokenInUrl              a token where logs and histories keep it
├── Unauthorized          401
├── Forbidden             403
│   ├── UnknownHost             asked for by a name that is not the service's
│   └── CrossSite               another site's page would change something
├── NotFound              404   absent, or another tenant's
├── TooLarge              413
├── UnsupportedMedia      415
├── Invalid               422   wrong shape, type, range, name or unknown field
├── OverQuota             429   a namespace has as much as it may have
└── Unavailable           503   a shard, or something this service needs, did not answer
    ├── ShardUnavailable
    │   └── StorageFull
    ├── ShuttingDown
    └── Overloaded
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

Outcome = Literal["none", "unknown"]


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault of a request: a JSON pointer (RFC 6901) into the body and what is wrong there."""

    pointer: str
    detail: str


class ServiceError(Exception):
    """Base of all errors that a caller is meant to see.

    `code` is stable snake_case; `outcome` says whether the call may have taken effect; `retryable` says
    whether sending the same call again can help.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    title: ClassVar[str] = "Internal error"

    def __init__(
        self,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        outcome: Outcome = "none",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)
        self.outcome: Outcome = outcome
        self.retry_after_s = retry_after_s


class BadRequest(ServiceError):
    code, status, title = "bad_request", 400, "The request could not be read"


class NotJson(BadRequest):
    code = "not_json"


class TooDeep(BadRequest):
    code = "too_deep"


class TokenInUrl(BadRequest):
    code, title = "token_in_url", "A token does not belong into an address"


class Unauthorized(ServiceError):
    code, status, title = "unauthorized", 401, "The token is not known"


class Forbidden(ServiceError):
    code, status, title = "forbidden", 403, "The token does not allow this"


class UnknownHost(Forbidden):
    code, title = "unknown_host", "The service is not known by this name"


class CrossSite(Forbidden):
    code, title = "cross_site", "Another site's page may not do this"


class NotFound(ServiceError):
    code, status, title = "not_found", 404, "There is no such object"


class TooLarge(ServiceError):
    code, status, title = "too_large", 413, "The request is over a size limit"


class UnsupportedMedia(ServiceError):
    code, status, title = "unsupported_media_type", 415, "The body's type or encoding is not supported"


class Invalid(ServiceError):
    code, status, title = "invalid", 422, "The request is not valid"


class OverQuota(ServiceError):
    code, status, retryable, title = "over_quota", 429, True, "The namespace is over a quota"


class Unavailable(ServiceError):
    code, status, retryable, title = "unavailable", 503, True, "The service cannot answer now"


class ShardUnavailable(Unavailable):
    code = "shard_unavailable"


class StorageFull(ShardUnavailable):
    code, title = "storage_full", "A shard has no room for more"


class ShuttingDown(Unavailable):
    code = "shutting_down"


class Overloaded(Unavailable):
    code = "overloaded"


@contextmanager
def something_done() -> Iterator[None]:
    """What fails inside fails after something was done: the call's outcome is unknown."""
    try:
        yield
    except ServiceError as error:
        error.outcome = "unknown"
        raise


def pointer_to(*parts: str) -> str:
    """A JSON pointer (RFC 6901) to a place in a body."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def invalid(pointer: str, detail: str) -> Invalid:
    """An `Invalid` with one field at fault."""
    return Invalid(detail, errors=[FieldError(pointer, detail)])
