"""Work that takes several calls, written once for both clients.

A flow is a generator: it yields calls and is sent their results (or has their errors thrown into it), so it
neither blocks nor awaits. `Client` and `AsyncClient` drive the same flows.
"""

import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from headgate._calls import verbs
from headgate._calls.elements import Item, Listing, Part, Result
from headgate._calls.verbs import Call
from headgate._ids import new_ids
from headgate.errors import FOR_NOW, Forbidden, HeadgateError, NotFound, from_refusal
from headgate.wire import BATCH_MAX, BODY_BYTES_MAX, PAGE_LIMIT_MAX, DeadGroup, ShardHealth

T = TypeVar("T")
Flow = Generator[Call[Any], Any, T]

BODY_BYTES_AIM: Final = BODY_BYTES_MAX // 2
SHARDS_KEPT_S: Final = 60.0
# How long new ids name the same shard: what is sent meanwhile shares its flushes.
SHARD_TURN_S: Final = 1.0


def one(call: Call[T]) -> Flow[T]:
    """The flow of a single call."""
    found: T = yield call
    return found


def batches(build: Callable[[Sequence[Any]], Call[list[Result]]], elements: Sequence[Any]) -> Flow[list[Result]]:
    """One result per element, from as many calls as their number and size take.

    An error of a later call carries the results of the earlier ones.
    """
    found: list[Result] = []
    for call in fitting(build, elements):
        try:
            found += yield call
        except HeadgateError as error:
            error.results = found + error.results
            raise
    return found


def only(results: list[Result]) -> Result:
    """The result of a call of one element.

    Raises:
        HeadgateError: it was refused.
    """
    (result,) = results
    if result.status == "refused":
        raise from_refusal(result.code, result.outcome)
    return result


def batches_of(build: Callable[[Sequence[Any]], Call[Any]], elements: Sequence[Any]) -> Flow[list[Any]]:
    """What `build`'s calls answer, in one list; for calls that answer no list, nothing."""
    found: list[Any] = []
    for call in fitting(build, elements):
        found += (yield call) or ()
    return found


def fitting(build: Callable[[Sequence[Any]], Call[T]], elements: Sequence[Any]) -> Iterator[Call[T]]:
    _check_list(elements)
    for start in range(0, len(elements), BATCH_MAX):
        yield from _halved(build, elements[start : start + BATCH_MAX])


def _check_list(elements: Sequence[Any]) -> None:
    """Raises TypeError for one element where a list of them belongs."""
    if isinstance(elements, str | bytes | Mapping):
        raise TypeError("give a list, also of one: [...]; `enqueue_one` takes a single item")


def _halved(build: Callable[[Sequence[Any]], Call[T]], elements: Sequence[Any]) -> Iterator[Call[T]]:
    call = build(elements)
    if len(call.body or b"") <= BODY_BYTES_AIM or len(elements) == 1:
        yield call
    else:
        middle = len(elements) // 2
        yield from _halved(build, elements[:middle])
        yield from _halved(build, elements[middle:])


def listed(build: Callable[[dict[str, Any]], Call[Part[T]]], limit: int | None = None) -> Flow[Listing[T]]:
    """All elements of a list, page by page, or the first `limit`."""
    found: Listing[T] = Listing()
    away: set[int] = set()
    cursor: str | None = None
    while limit is None or len(found) < limit:
        missing = PAGE_LIMIT_MAX if limit is None else min(PAGE_LIMIT_MAX, limit - len(found))
        page, cursor, silent = yield build({"limit": missing, "cursor": cursor})
        found += page
        away.update(silent)
        if cursor is None:
            break
    found.away = sorted(away)
    return found


def added_up(parts: Listing[DeadGroup]) -> Listing[DeadGroup]:
    """Groups of the dead, each once, most first: a list of them may hold parts of one on several pages."""
    found: dict[tuple[str, str], DeadGroup] = {}
    for part in parts:
        group = found.setdefault((part.topic, part.error), part)
        if group is not part:
            newest = max(group, part, key=lambda one: one.newest)
            found[part.topic, part.error] = newest.model_copy(
                update={
                    "count": group.count + part.count,
                    "oldest": min(group.oldest, part.oldest),
                    "managed": group.managed + part.managed,
                    "dag": newest.dag or group.dag or part.dag,
                }
            )
    added = Listing(sorted(found.values(), key=lambda group: (-group.count, group.topic, group.error)))
    added.away = parts.away
    return added


class Shards:
    """The shards that new ids may name, in turn: one for a while, so that what is sent meanwhile stays together
    and in order, and shares flushes. The first is chosen at random, so that processes are on different ones.

    Known for a minute at a time. A host that hides its shards leaves the making of ids to the service.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: list[int] = []
        self._stale_at = 0.0
        self._turn = random.randrange(4_096)  # noqa: S311 (spreads load)
        self._turn_ends_at = 0.0

    def forget(self) -> None:
        self._stale_at = self._turn_ends_at = 0.0

    def pick(self) -> Flow[int | None]:
        """The shard for the next call, or None where shards are hidden."""
        now_s = self._clock()
        if now_s >= self._turn_ends_at:
            self._turn, self._turn_ends_at = self._turn + 1, now_s + SHARD_TURN_S
        if now_s >= self._stale_at:
            yield from self._learn()
        return self._known[self._turn % len(self._known)] if self._known else None

    def _learn(self) -> Flow[None]:
        try:
            self._known = _writable((yield from listed(_shards_page)))
        except (Forbidden, NotFound):
            self._known = []
        except HeadgateError:
            if not self._known:
                raise
        self._stale_at = self._clock() + SHARDS_KEPT_S


def _shards_page(query: dict[str, Any]) -> Call[Part[ShardHealth]]:
    return verbs.call(verbs.SHARDS, verbs.page_of(ShardHealth), query=query)


def _writable(shards: Sequence[ShardHealth]) -> list[int]:
    """The shards worth naming: the well ones, else those without an owner, else any."""
    for states in (("healthy", "degraded"), ("unowned",)):
        found = [shard.shard for shard in shards if shard.state in states]
        if found:
            return found
    return [shard.shard for shard in shards]


def enqueue(ns: str, items: Sequence[Item], shards: Shards, *, make_ids: bool = True) -> Flow[list[Result]]:
    """Enqueue any number of items, each with an id, so that a call sent again adds nothing.

    Items with an `affinity` are left as they are: an id would take them from its shard.
    """
    _check_list(items)
    found: list[Result] = []
    for start in range(0, len(items), BATCH_MAX):
        chunk = items[start : start + BATCH_MAX]
        try:
            found += yield from _enqueue_chunk(ns, chunk, shards, make_ids)
        except HeadgateError as error:
            shards.forget()
            error.results = found + error.results
            raise
    return found


def _enqueue_chunk(ns: str, items: Sequence[Item], shards: Shards, make_ids: bool) -> Flow[list[Result]]:
    nameless = [position for position, item in enumerate(items) if _nameless(item)] if make_ids else []
    sent = yield from _with_ids(items, nameless, shards)
    # These had better go to another shard than wait for theirs.
    movable = {str(sent[position]["id"]) for position in nameless if "id" in sent[position]}
    found = yield from batches(lambda part: verbs.enqueue(ns, part, movable), sent)
    refused = [position for position in nameless if _elsewhere(found[position])]
    if refused:
        shards.forget()
        again = yield from _with_ids(items, refused, shards)
        results = yield from batches(lambda part: verbs.enqueue(ns, part), [again[at] for at in refused])
        for position, result in zip(refused, results, strict=True):
            found[position] = result
    return found


def begin(ns: str, body: dict[str, Any], model: type[verbs.M], shards: Shards) -> Flow[verbs.M]:
    """Begin an operation, under an id of its own where it changes anything: it may be sent again then."""
    shard = None if body["dry_run"] else (yield from shards.pick())
    if shard is not None:
        body = {**body, "id": new_ids(shard, 1)[0]}
    safe = body["dry_run"] or shard is not None
    found: verbs.M = yield verbs.call(verbs.OPERATION_BEGIN, model.model_validate, body=body, ns=ns, safe=safe)
    return found


def _with_ids(items: Sequence[Item], nameless: Sequence[int], shards: Shards) -> Flow[list[Mapping[str, Any]]]:
    sent: list[Mapping[str, Any]] = list(items)
    shard = (yield from shards.pick()) if nameless else None
    if shard is not None:
        for position, item_id in zip(nameless, new_ids(shard, len(nameless)), strict=True):
            sent[position] = {**items[position], "id": item_id}
    return sent


def _nameless(item: Item) -> bool:
    get = item.get
    return get("id") is None and get("idempotency_key") is None and get("affinity") is None


def _elsewhere(result: Result) -> bool:
    """Whether an item refused under our own id may have better luck on another shard."""
    return result.status == "refused" and result.outcome == "none" and result.code in FOR_NOW
