"""What the bodies of both services are made of: limits, states, field types, lists and problems."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

BATCH_MAX: Final = 1_000
PAGE_LIMIT_DEFAULT: Final = 100
PAGE_LIMIT_MAX: Final = 1_000
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
PAYLOAD_BYTES_MAX: Final = 64 * 1024
OUTPUT_BYTES_MAX: Final = 64 * 1024
METADATA_BYTES_MAX: Final = 1024
ACK_CONTEXT_BYTES_MAX: Final = 1024
HEADERS_BYTES_MAX: Final = 1024
INPUTS_BYTES_MAX: Final = 256 * 1024
ERROR_CHARS_MAX: Final = 8 * 1024
LOG_TEXT_CHARS_MAX: Final = 8 * 1024
LOG_AGE_S_MAX: Final = 3_600
# Of node keys, DAGs' own keys, idempotency keys and affinities; of names, workers and fairness keys.
KEY_BYTES_MAX: Final = 1_024
NAME_BYTES_MAX: Final = 200
JSON_DEPTH_MAX: Final = 32
WAIT_S_MAX: Final = 30
LEASE_S_DEFAULT: Final = 60
LEASE_S_MAX: Final = 43_200
DELAY_S_MAX: Final = 30 * 86_400
THROTTLE_S_MAX: Final = 3_600
# Every full gate of a key is asked for all that it has let through.
KEY_CONCURRENCY_MAX: Final = 100
TTL_S_MAX: Final = 3_650 * 86_400
LIFT_MAX: Final = 1_000_000
SHARES_MAX: Final = 8
SHARES_SUM_MAX: Final = 0.9
INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1

Delivery = Literal["at_least_once", "at_most_once"]
Outcome = Literal["none", "unknown"]
ItemState = Literal["ready", "delayed", "leased", "disabled", "dead"]
ItemOutcome = Literal["acked", "dead", "expired", "cancelled"]
EnqueueStatus = Literal["enqueued", "duplicate", "cancelled", "refused"]
AckStatus = Literal["acked", "already_acked", "lease_lost", "cancelled", "not_found", "refused"]
NackStatus = Literal["requeued", "dead", "lease_lost", "cancelled", "not_found", "refused"]
ExtendStatus = Literal["extended", "lease_lost", "cancelled", "not_found", "refused"]
ReviveStatus = Literal["revived", "already_enabled", "finished", "cancelled", "managed", "not_found", "refused"]
CancelStatus = Literal["cancelled", "already_cancelled", "finished", "managed", "not_found", "refused"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogStatus = Literal["written", "full", "lease_lost", "cancelled", "not_found", "refused"]
LookStatus = Literal["found", "not_found", "refused"]
NodeCancelStatus = Literal["cancelled", "cancelling", "already_cancelled", "finished"]
ResolveStatus = Literal["resolved", "already_resolved"]
ShardState = Literal["healthy", "degraded", "open", "draining", "unowned"]
Trigger = Literal["all_succeeded", "all_done", "any_succeeded", "any_failed", "none_failed"]
RunOn = Literal["always", "succeeded", "failed", "cancelled", "unsuccessful"]
OnFailure = Literal["continue", "cancel"]
DagState = Literal["running", "succeeded", "failed", "cancelling", "cancelled"]
NodeState = Literal["blocked", "released", "succeeded", "failed", "skipped", "cancelled"]
StandingKind = Literal[
    "sending", "queued", "delayed", "running", "ending", "unknown", "kept", "releasing", "cancelling"
]
ObstacleKind = Literal["external", "hold", "pause", "retry", "close"]
AttemptOutcome = Literal[
    "running", "acked", "failed", "lease_expired", "timed_out", "dead", "expired", "cancelled"
]
EventKind = Literal["dag", "node"]
BlockKind = Literal["node", "external", "hold", "pause", "retry", "end"]

_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ][0-2]\d:[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:[Zz]|[+-][0-2]\d:[0-5]\d)", re.ASCII
)


def encoded_bytes(value: object) -> int:
    """How many bytes `value` takes as compact UTF-8 JSON: the measure of every size limit."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def unclean(text: str) -> str | None:
    """Why `text` cannot be kept (a NUL, a lone surrogate), or None."""
    if "\x00" in text:
        return "NUL characters are not allowed"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "lone surrogates are not allowed"
    return None


def _whole_json(value: Any) -> Any:
    """Any JSON, opaque to the services: only halves of characters are refused."""
    return _check_strings(value, lambda text: unclean(text.replace("\x00", "")))


def _clean_json(value: Any) -> Any:
    return _check_strings(value, unclean)


def _check_strings(value: Any, check: Callable[[str], str | None]) -> Any:
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            if problem := check(part):
                raise ValueError(problem)
        elif isinstance(part, dict):
            stack.extend(part)
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)
    return value


def clean_text(text: str) -> str:
    """Text that can be kept.

    Raises:
        ValueError: it cannot.
    """
    if problem := unclean(text):
        raise ValueError(problem)
    return text


def _is_control(char: str) -> bool:
    return char < " " or "\x7f" <= char <= "\x9f"


def key(text: str) -> str:
    """A key: 1 to `KEY_BYTES_MAX` bytes of UTF-8, no control characters."""
    return _short(text, KEY_BYTES_MAX)


def label(text: str) -> str:
    """A name: 1 to `NAME_BYTES_MAX` bytes of UTF-8, no control characters."""
    return _short(text, NAME_BYTES_MAX)


def _short(text: str, bytes_max: int) -> str:
    if not 1 <= len(text.encode()) <= bytes_max:
        raise ValueError(f"must be 1 to {bytes_max} bytes of UTF-8")
    if not text.isprintable() and any(map(_is_control, text)):
        raise ValueError("control characters are not allowed")
    return text


def _short_schema(bytes_max: int) -> WithJsonSchema:
    told = f"1 to {bytes_max} bytes of UTF-8, no control characters"
    return WithJsonSchema({"type": "string", "minLength": 1, "maxLength": bytes_max, "description": told})


def _moment(value: object) -> object:
    """RFC 3339 text or a datetime, with a zone, at most `DELAY_S_MAX` ahead; the past means now."""
    return _time_within(value, DELAY_S_MAX)


def _instant(value: object) -> object:
    """The same, at most `TTL_S_MAX` ahead."""
    return _time_within(value, TTL_S_MAX)


def _time_within(value: object, ahead_s_max: float) -> datetime:
    if isinstance(value, str):
        if not _RFC3339.fullmatch(value):
            raise ValueError("must be an RFC 3339 time with a zone, like 2030-01-31T12:00:00Z")
        value = datetime.fromisoformat(value.upper())
    if not isinstance(value, datetime):
        raise ValueError("must be an RFC 3339 time, as text")
    if value.tzinfo is None:
        raise ValueError("must carry a time zone")
    try:
        value = value.astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of range") from None
    if value - datetime.now(UTC) > timedelta(seconds=ahead_s_max):
        raise ValueError(f"is more than {ahead_s_max} s ahead")
    return value


# All of [A-Za-z0-9._-]{1,64} but "." and "..", which clients and proxies take out of a path.
NAMESPACE_PATTERN: Final = (
    r"^(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}|\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}|\.\.[A-Za-z0-9._-]{1,62})$"
)
# Names that stand in a path as they are: of values and schedules.
PATH_NAME_PATTERN: Final = (
    r"^(?:[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,127}|\.[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,126}|\.\.[A-Za-z0-9._:-]{1,126})$"
)
PATH_NAME_WORDS: Final = "must be 1 to 128 letters, digits and . _ : -, and not . or .. alone"
TOPIC_PATTERN: Final = r"^[A-Za-z0-9._/-]{1,128}$"

NamespaceName = Annotated[str, StringConstraints(pattern=NAMESPACE_PATTERN)]
Topic = Annotated[str, StringConstraints(pattern=TOPIC_PATTERN)]
ACK_TOPIC_PATTERN: Final = rf"^(?:{NAMESPACE_PATTERN[1:-1]}:)?{TOPIC_PATTERN[1:]}"
# Patterns stand in the OpenAPI documents, so they are such as ECMA-262 has: no flags inside.
UUID_PATTERN: Final = r"^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
ID_PATTERN: Final = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"
_SHOULD: Final = re.compile(r"^[A-Z]\w+ should (?=be|have|match)")
_PATTERNS: Final = {
    NAMESPACE_PATTERN: "must be 1 to 64 letters, digits and . _ -, and not . or .. alone",
    PATH_NAME_PATTERN: PATH_NAME_WORDS,
    TOPIC_PATTERN: "must be 1 to 128 letters, digits and . _ / -",
    ACK_TOPIC_PATTERN: "must be a topic, or namespace:topic",
    UUID_PATTERN: "must be a UUID",
    ID_PATTERN: "must be a UUIDv7 whose last 12 bits name a shard; leave it out and one is made",
}
AckTopic = Annotated[str, StringConstraints(pattern=ACK_TOPIC_PATTERN)]
ItemId = Annotated[str, StringConstraints(pattern=ID_PATTERN, to_lower=True)]
OpaqueId = str  # a malformed one is not_found, or lease_lost: an answer, no error
Key = Annotated[str, AfterValidator(key), _short_schema(KEY_BYTES_MAX)]
Label = Annotated[str, AfterValidator(label), _short_schema(NAME_BYTES_MAX)]
ErrorText = Annotated[str, StringConstraints(max_length=ERROR_CHARS_MAX), AfterValidator(clean_text)]
LogText = Annotated[str, StringConstraints(max_length=LOG_TEXT_CHARS_MAX), AfterValidator(clean_text)]
Json = Annotated[Any, AfterValidator(_whole_json)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_clean_json)]
Headers = Annotated[dict[str, str], Field(max_length=32), AfterValidator(_clean_json)]
Moment = Annotated[datetime, BeforeValidator(_moment), WithJsonSchema({"type": "string", "format": "date-time"})]
Instant = Annotated[datetime, BeforeValidator(_instant), WithJsonSchema({"type": "string", "format": "date-time"})]
LeaseS = Annotated[float, Field(ge=1, le=LEASE_S_MAX)]
TimeoutS = Annotated[float, Field(ge=0.1, le=TTL_S_MAX)]
DelayS = Annotated[float, Field(ge=0, le=DELAY_S_MAX)]
ThrottleS = Annotated[float, Field(ge=0, le=THROTTLE_S_MAX)]
TtlS = Annotated[float, Field(gt=0, le=TTL_S_MAX)]
Priority = Annotated[int, Field(ge=INT32_MIN, le=INT32_MAX)]
Lift = Annotated[int, Field(ge=0, le=LIFT_MAX)]
Attempts = Annotated[int, Field(ge=0, le=INT32_MAX)]
Quota = Annotated[int, Field(ge=0, le=INT32_MAX)]
ByteQuota = Annotated[int, Field(ge=0, le=2**53)]
Count = Annotated[int, Field(ge=1, le=BATCH_MAX)]

T = TypeVar("T")
Batch = Annotated[list[T], Field(min_length=1, max_length=BATCH_MAX)]
# Beside what a call is about: an empty one means none.
MaybeNone = Annotated[list[T], Field(max_length=BATCH_MAX)]


class Request(BaseModel):
    """A request body: strict, and unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Response(BaseModel):
    """A response body: unknown fields are ignored, so services may add some."""

    model_config = ConfigDict(extra="ignore")


class Empty(Request):
    """The body of a call that takes none: absent, or `{}`."""


class FieldError(Response):
    """One fault in a request body. `pointer` is a JSON pointer (RFC 6901) into it."""

    pointer: str
    detail: str


class Problem(Response):
    """RFC 9457. `outcome: none` means that nothing was done and the call may be sent again."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    detail: str | None = None
    code: str
    outcome: Outcome = "none"
    errors: list[FieldError] | None = None


class Page(Response, Generic[T]):
    """A page of a list; pass `next_cursor` as `cursor` to go on, null is the end."""

    items: list[T]
    next_cursor: str | None = None


class SpreadPage(Page[T], Generic[T]):
    """A page of a list over all shards, of those that answer; there is none (503) while none of them does."""

    away: list[int] = Field(
        default_factory=list, description="shards that did not answer: what is there is missing in `items`"
    )


def pointer_of(loc: Iterable[str | int]) -> str:
    """The JSON pointer of a pydantic location."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in loc)


def field_errors(errors: Iterable[Mapping[str, Any]], *, skip: int = 0) -> list[FieldError]:
    """`ValidationError.errors()` as problem errors; `skip` drops leading parts of locations, like "body"."""
    return [
        FieldError(
            pointer=pointer_of(error["loc"][skip:]) + error.get("ctx", {}).get("pointer", ""),
            detail=_in_words(error),
        )
        for error in errors
    ]


def _in_words(error: Mapping[str, Any]) -> str:
    """What is wrong, for people: names of fields and patterns are said as the documentation says them."""
    match error["type"]:
        case "extra_forbidden":
            return "there is no such field"
        case "missing":
            return "it is missing"
        case "string_pattern_mismatch":
            return _PATTERNS.get(error["ctx"]["pattern"], f"must match {error['ctx']['pattern']}")
        case _:
            return _SHOULD.sub("must ", str(error["msg"]).removeprefix("Value error, "))


def fault(pointer: str, detail: str) -> PydanticCustomError:
    """A fault that a whole-model check found, at `pointer` below the model."""
    return PydanticCustomError("headgate", "{detail}", {"detail": detail, "pointer": pointer})


class LeasedDag(Response):
    id: str
    node: str
    generation: int
