"""What is set for namespaces and topics (quotas, pauses, minimum shares, limits) is the same on every shard.

A call that sets something tells every shard. One that is added later was not there to be told, one that was away
missed it, and one whose server was set back has lost it. So each shard is brought what is newest on any: when it
joins, before anything of it is handed out; when this process begins; when its server was replaced or is back; and
every `CHECK_S` besides. The newest is found by a time that its call gave it for all shards, later than any of them
had: where the servers' clocks differ, nothing is ordered wrongly. Bringing is a compare-and-set on that time, so
any number of processes may do it while others set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from services.queue.store import topics as rows
from services.queue.store.shard_store import Store, living
from services.queue.store.topics import GivenSettings, GivenToTopic
from shared.admission.breaker import State
from shared.errors import ShardUnavailable, Unavailable
from shared.ids import ShardNo
from shared.log import log
from shared.loop import Waker

CHECK_S = 15.0
# A shard that was not brought everything yet is tried again so soon.
AGAIN_S = 0.5


class Given(NamedTuple):
    """One setting: what of (namespace, topic) it is, since when, and how. Greater ones of one place stand."""

    place: tuple[str, str, str]
    set_at: datetime
    value: Any


Page = tuple[list[Given], int | None]
Read = Callable[[Store, int], Awaitable[Page]]


class Agreement:
    """Sets for all shards, and brings to each what it has missed; `settled` is told of one that has everything."""

    def __init__(self, stores: Mapping[ShardNo, Store], page_max: int, settled: Callable[[ShardNo], None]) -> None:
        self._stores = stores
        self._page_max = page_max
        self._settled = settled
        self._told: set[ShardNo] = set()
        self._new: set[ShardNo] = set()
        self.waker = Waker()
        for store in stores.values():
            self._follow(store)

    def join(self, store: Store) -> None:
        """There is one more shard, which has everything to be brought."""
        self._new.add(store.number)
        self._follow(store)

    def _follow(self, store: Store) -> None:
        store.shard.history.listeners.append(partial(self._missed, store.number))
        store.shard.breaker.listeners.append(partial(self._moved, store.number))
        self._missed(store.number)

    def pause_s(self) -> float:
        """How long until the next step."""
        return CHECK_S if self._told.issuperset(store.number for store in self._here()) else AGAIN_S

    # -- setting ------------------------------------------------------------------------------------------

    async def set_namespace(self, namespace: str, settings: str) -> None:
        """Give a namespace its settings, on every shard.

        Raises:
            Unavailable: some shards did not answer; they are brought it when they do, where any other has it.
        """
        await self._set("settings", namespace, "", settings)

    async def pause(self, namespace: str, topic: str, paused: bool) -> None:
        """Pause a topic, or go on; as `set_namespace`."""
        await self._set("paused", namespace, topic, paused)

    async def set_min_share(self, namespace: str, topic: str, min_share: str) -> None:
        """Give a topic minimum shares, as JSON; an empty text takes them away; as `set_namespace`."""
        await self._set("min_share", namespace, topic, min_share)

    async def set_limits(self, namespace: str, topic: str, limits: str) -> None:
        """Give a topic limits, as JSON; an empty text takes them away; as `set_namespace`."""
        await self._set("limits", namespace, topic, limits)

    async def _set(self, kind: str, namespace: str, topic: str, value: Any) -> None:
        stores = self._here()
        times = await asyncio.gather(
            *(rows.time_to_give(store.pool, namespace, topic) for store in stores),
            return_exceptions=True,
        )
        found = [answer for answer in times if not isinstance(answer, BaseException)]
        if found:
            given = Given((kind, namespace, topic), max(found), value)
            told = list(await asyncio.gather(*(_give(store, [given]) for store in stores), return_exceptions=True))
        else:
            told = [answer for answer in times if isinstance(answer, BaseException)]
        failed = [answer for answer in told if isinstance(answer, BaseException)]
        for error in sorted(failed, key=lambda error: getattr(error, "outcome", "") != "unknown"):
            if not isinstance(error, Unavailable) or len(failed) == len(stores):
                raise error
        if failed:
            missed = [store.number for store, answer in zip(stores, told, strict=True) if answer in failed]
            for number in missed:
                self._missed(number)
            detail = f"shards {missed} did not answer; the others have it, and bring it to these when they do"
            raise ShardUnavailable(detail, outcome="unknown", retry_after_s=1.0)

    # -- bringing -----------------------------------------------------------------------------------------

    async def step(self) -> int:
        """Bring every shard that answers what is newest on any of them; 0, since nothing is left."""
        well = {store.number: store for store in self._here()}
        missing = well.keys() - self._told
        for read in (self._settings_of, self._topics_of):
            await self._bring(read, well)
        if self._new.issuperset(well):
            return 0  # nobody answers who would know what was set
        for number in missing & well.keys():
            self._told.add(number)
            self._new.discard(number)
            self._settled(number)
        return 0

    async def _bring(self, read: Read, well: dict[ShardNo, Store]) -> None:
        """Page by page; who does not answer is taken out of `well`."""
        after = dict.fromkeys(well, 0)
        while after:
            pages: dict[ShardNo, Page] = await _of_those_well(
                well, {number: read(well[number], place) for number, place in after.items()}
            )
            known = {number: {given.place: given for given in page} for number, (page, _) in pages.items()}
            newest: dict[tuple[str, str, str], Given] = {}
            for given in (given for page, _ in pages.values() for given in page):
                newest[given.place] = max(given, newest.get(given.place, given))
            wanted = {
                number: [given for place, given in newest.items() if known.get(number, {}).get(place) != given]
                for number in well
            }
            await _of_those_well(
                well, {number: _give(well[number], given) for number, given in wanted.items() if given}
            )
            after = {number: end for number, (_, end) in pages.items() if end is not None and number in well}

    async def _settings_of(self, store: Store, after: int) -> Page:
        page = await rows.given_settings(store.pool, after, self._page_max)
        return [Given(("settings", row.namespace, ""), row.set_at, row.settings) for row in page], self._end(page)

    async def _topics_of(self, store: Store, after: int) -> Page:
        page = await rows.given_to_topics(store.pool, after, self._page_max)
        found: list[Given] = []
        for row in page:
            if row.paused_at is not None:
                found.append(Given(("paused", row.namespace, row.topic), row.paused_at, row.paused))
            if row.min_share_at is not None:
                found.append(Given(("min_share", row.namespace, row.topic), row.min_share_at, row.min_share))
            if row.limits_at is not None:
                found.append(Given(("limits", row.namespace, row.topic), row.limits_at, row.limits))
        return found, self._end(page)

    def _end(self, page: Sequence[GivenSettings | GivenToTopic]) -> int | None:
        return page[-1].number if len(page) == self._page_max else None

    def _here(self) -> list[Store]:
        """The shards that the map names."""
        return living(self._stores)

    def _moved(self, number: ShardNo, state: State) -> None:
        if state == "open":
            self._missed(number)

    def _missed(self, number: ShardNo) -> None:
        self._told.discard(number)
        self.waker.kick()


async def _of_those_well(
    well: dict[ShardNo, Store], asked: Mapping[ShardNo, Awaitable[Any]]
) -> dict[ShardNo, Any]:
    """The answers; who gave none is taken out of `well`."""
    answers = await asyncio.gather(*asked.values(), return_exceptions=True)
    found = {}
    for number, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Unavailable):
            log.warning("a shard cannot be told what is set now", shard=number, detail=answer.detail)
            del well[number]
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[number] = answer
    return found


async def _give(store: Store, given: Iterable[Given]) -> None:
    """See to it that nothing older than this stands on a shard."""
    kinds: dict[str, list[Given]] = {}
    for each in given:
        kinds.setdefault(each.place[0], []).append(each)
    for kind, part in kinds.items():
        namespaces = [each.place[1] for each in part]
        set_ats = [each.set_at for each in part]
        values = [each.value for each in part]
        if kind == "settings":
            await rows.give_settings(store.pool, namespaces, values, set_ats)
            continue
        await store.names.make_namespaces(namespaces)
        topics = [each.place[2] for each in part]
        if kind == "paused":
            await rows.give_pauses(store.pool, namespaces, topics, values, set_ats)
        elif kind == "limits":
            await rows.give_limits(store.pool, namespaces, topics, values, set_ats)
        else:
            await rows.give_shares(store.pool, namespaces, topics, values, set_ats)
