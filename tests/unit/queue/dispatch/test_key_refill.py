"""When a process looks at the shards, how deep, and what becomes of what it finds; shards that are lists, a clock
that stands."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from services.queue.dispatch import key_refill
from services.queue.dispatch.direct_handoff import LOOK_KEYS_MIN, LOOKS_A_POLL, Line, Terms
from services.queue.dispatch.key_budget import KeptKeys
from services.queue.dispatch.key_refill import LOOKS_MAX, STALE_POLLS, Looking
from services.queue.keys.key_buffer import START
from services.queue.keys.key_cache import Heads
from services.queue.keys.scan_floor import MARGIN
from services.queue.model import EARLIEST, Key, KeyLook
from services.queue.settings import QueueSettings
from services.queue.store.names import TopicRef
from shared.errors import ShardUnavailable
from shared.postgres.history import Edition, History
from tests.support.clocks import ManualClock

BEGIN = EARLIEST.replace(year=2026)
NEVER_S = 0.0


class Shard:
    """Stands for a store, its names and its breaker: one topic's keys, which looks read while it is `open`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pool: Any = None
        self.names = self.shard = self
        self.history = History(number)
        self.topic_id = 7
        self.keys: list[Key] = []
        self.open = asyncio.Event()
        self.open.set()
        self.is_away = self.knows_nothing = False
        self.looks: list[tuple[KeyLook, int]] = []
        self.statements = self.finds = 0

    async def find_all(self, pairs: list[tuple[str, str]]) -> list[TopicRef | None]:
        self.finds += 1
        return [None if self.knows_nothing else TopicRef(1, self.topic_id) for _ in pairs]

    async def peek(self, look: Any, limit: int) -> list[Key] | None:
        [found] = await self.peek_many([(look, limit)])
        return found

    async def peek_many(self, looks: list[tuple[Any, int]]) -> list[list[Key] | None]:
        self.looks += looks
        self.statements += 1
        snapshot = sorted(self.keys)
        await self.open.wait()
        if self.is_away:
            raise ShardUnavailable("away")
        return [
            [key for key in snapshot if key > look.after][:limit] if look.topic_id == self.topic_id else None
            for look, limit in looks
        ]


class Process:
    """The lines of a process with two shards, both its own unless told otherwise."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.settings = QueueSettings(poll_s=1.0)
        self.shards = [Shard(0), Shard(1)]
        self.lines: dict[tuple[str, str], Line] = {}
        self.tasks: list[asyncio.Future[None]] = []
        self.kept = KeptKeys(self.settings.kept_keys_max)
        self.resting: set[int] = set()
        self.looking = Looking(
            self.lines,
            self.kept,
            self.settings,
            self.clock,
            met=self._met,
            lost=self._lost,
            keep=self._keep,
            rests=self.resting.__contains__,
        )
        for shard in self.shards:
            self.looking.join(shard)  # type: ignore[arg-type]
        self.line = self.add_line("t")

    def add_line(self, topic: str) -> Line:
        heads = Heads([0, 1], lambda _: True, self.clock, keys_max=self.settings.buffer_keys_max, late_s=1.0)
        line = self.lines["ns", topic] = Line("ns", topic, heads)
        line.used_s = self.clock.now_s
        return line

    def fill(self, shard: int, count: int) -> list[Key]:
        begun = len(self.shards[shard].keys)
        keys = [
            Key(0, BEGIN + timedelta(seconds=begun + n), f"00000000-0000-7000-8000-{begun + n:09x}{shard:03x}")
            for n in range(count)
        ]
        self.shards[shard].keys += keys
        return keys

    async def take(self, count: int, *, wait_s: float = NEVER_S) -> list[Key]:
        """What a call does; what it takes is gone."""
        self.line.used_s = self.clock.now_s
        filling = self.looking.supply(self.line, count, self.clock.now_s + wait_s)
        if filling is not None:
            await filling
        keys = self.line.take(count)
        for key in keys:
            self.shards[int(key.id[-3:], 16)].keys.remove(key)
        self.looking.look_ahead(self.line, len(keys))
        self.line.buffer.settled(keys)
        return keys

    async def looked(self) -> None:
        """Until no look is on its way."""
        while self.tasks:
            await self.tasks.pop()

    def asked(self) -> int:
        """How many looks there were since the last time."""
        count = sum(len(shard.looks) for shard in self.shards)
        for shard in self.shards:
            shard.looks.clear()
        return count

    def hold(self, *numbers: int) -> None:
        for number in numbers:
            self.shards[number].open.clear()

    def let_go(self) -> None:
        for shard in self.shards:
            shard.open.set()

    def _met(self, line: Line, shard: int, topic_id: int) -> None:
        line.topic_ids[shard] = topic_id

    def _lost(self, line: Line, shard: int) -> None:
        line.topic_ids.pop(shard, None)

    def _keep(self, work: Awaitable[None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    gc.freeze()  # what others have left is not looked through
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unseen.append(context))
    made = Process()
    yield made
    made.let_go()
    await made.looked()
    gc.collect()
    assert unseen == [], "a look that fails says so, and no more"


async def is_held_up(call: Coroutine[Any, Any, Any]) -> bool:
    task = asyncio.create_task(call)
    for _ in range(20):
        await asyncio.sleep(0)
    held = not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return held


async def test_between_two_polls_a_drained_topic_is_not_looked_at(process: Process) -> None:
    await process.take(1)
    assert process.asked() == 2
    process.clock.advance(0.99)
    assert await process.take(1) == []
    assert process.asked() == 0


async def test_a_poll_that_is_due_finds_what_nobody_told_of(process: Process) -> None:
    await process.take(1)
    process.fill(1, 1)
    process.clock.advance(1.0)
    assert len(await process.take(1)) == 1


async def test_a_call_that_can_wait_does_so_while_the_poll_looks(process: Process) -> None:
    await process.take(1)
    process.clock.advance(1.0)
    process.asked()
    [key] = process.fill(0, 1)
    process.hold(0, 1)
    assert await process.take(1, wait_s=5) == []
    place = process.line.wait()
    assert await process.take(1, wait_s=5) == [], "and none begins a second poll"
    assert not place.done()
    process.let_go()
    await process.looked()
    assert place.done(), "what the poll found is told to who waits"
    assert process.asked() == 2
    assert process.line.take(1) == [key]


async def test_a_call_that_cannot_wait_is_held_up_by_the_poll(process: Process) -> None:
    """Its answer would be that there is nothing."""
    await process.take(1)
    process.clock.advance(1.0)
    process.hold(0, 1)
    assert await is_held_up(process.take(1))


async def test_keys_at_hand_are_served_during_a_poll_but_not_for_long(process: Process) -> None:
    keys = process.fill(0, 4)
    assert await process.take(1) == keys[:1]
    process.clock.advance(STALE_POLLS - 0.01)
    process.hold(0, 1)
    assert await process.take(1) == keys[1:2]
    process.let_go()
    await process.looked()
    process.clock.advance(STALE_POLLS)
    process.hold(0, 1)
    assert await is_held_up(process.take(1))


@pytest.mark.parametrize("wait_s", [NEVER_S, 5.0])
async def test_keys_that_are_fewer_than_wanted_wait_for_the_poll(process: Process, wait_s: float) -> None:
    """Also where the call could wait: it is answered at once by whatever there is, so that is looked for first."""
    process.fill(0, 2)
    await process.take(1)
    process.clock.advance(1.0)
    process.hold(0, 1)
    assert await is_held_up(process.take(2, wait_s=wait_s))


async def test_a_call_for_nothing_looks_at_nothing(process: Process) -> None:
    assert process.looking.supply(process.line, 0, process.clock.now_s) is None
    assert process.asked() == 0


async def test_a_deep_backlog_is_read_on_from_where_the_last_look_ended(process: Process) -> None:
    keys = process.fill(0, 5 * LOOK_KEYS_MIN)
    got: list[Key] = []
    while len(got) < len(keys):
        part = await process.take(LOOK_KEYS_MIN)
        await process.looked()
        got += part
        assert part
    assert got == keys
    read = [look.after for look, _ in process.shards[0].looks]
    assert read.count(START) == 1, "the head once"


async def test_a_look_is_as_deep_as_the_call_needs(process: Process) -> None:
    process.fill(0, 1000)
    await process.take(300)
    assert {limit for shard in process.shards for _, limit in shard.looks} == {600}


async def test_the_next_look_begins_before_a_call_has_to_wait_for_it(process: Process) -> None:
    keys = process.fill(0, 4 * LOOK_KEYS_MIN)
    got = await process.take(1)
    process.asked()
    while not process.tasks:
        got += await process.take(1)
    assert len(got) >= LOOK_KEYS_MIN // 2, "not earlier than half a look is left"
    assert len(got) < LOOK_KEYS_MIN
    assert len(process.tasks) == 1
    process.hold(0, 1)
    while len(got) < LOOK_KEYS_MIN:
        got += await process.take(1)
    process.let_go()
    await process.looked()
    assert process.asked() == 1, "of the one shard that has more, once"
    assert got == keys[: len(got)]


async def test_a_look_reads_a_part_of_what_the_topic_used_since_the_last_poll(process: Process) -> None:
    def deepest() -> int:
        return max(limit for _, limit in process.shards[0].looks)

    process.fill(0, 3000)
    for _ in range(20):
        await process.take(100)
        await process.looked()
    process.clock.advance(STALE_POLLS)
    process.asked()
    await process.take(1)
    assert deepest() == 2000 // LOOKS_A_POLL
    process.clock.advance(STALE_POLLS)
    process.asked()
    await process.take(1)
    assert deepest() == LOOK_KEYS_MIN, "it has become calm"


async def test_a_poll_does_not_queue_up_behind_a_look_under_way(process: Process) -> None:
    process.fill(0, 4 * LOOK_KEYS_MIN)
    while not process.tasks:
        await process.take(1)
    process.hold(0, 1)
    await asyncio.sleep(0)
    process.clock.advance(1.0)
    begun = len(process.tasks)
    for _ in range(3):
        await process.take(1)
    assert len(process.tasks) == begun


async def test_calls_of_one_topic_share_a_look(process: Process) -> None:
    process.fill(0, 9)
    process.hold(0, 1)
    calls = [asyncio.create_task(process.take(1)) for _ in range(5)]
    await asyncio.sleep(0)
    process.let_go()
    assert len({key for call in calls for key in await call}) == 5
    assert process.asked() == 2


async def test_a_slow_shard_is_passed_over_and_its_keys_come_later(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    [slow], [quick] = process.fill(0, 1), process.fill(1, 1)
    monkeypatch.setattr(key_refill, "PEEK_S_MAX", 0.01)
    process.hold(0)
    assert await process.take(2) == [quick]
    place = process.line.wait()
    process.clock.advance(STALE_POLLS)
    process.asked()
    assert await process.take(2) == []
    assert [len(shard.looks) for shard in process.shards] == [0, 1], "no second look overtakes the slow one"
    process.let_go()
    await asyncio.gather(*process.line.late.values())
    assert place.done()
    assert process.line.late == {}
    assert process.line.take(2) == [slow]


async def test_a_shard_that_rests_is_not_looked_at_and_its_keys_come_later(process: Process) -> None:
    [sick], [sound] = process.fill(0, 1), process.fill(1, 1)
    process.resting.add(0)
    assert await process.take(2) == [sound]
    assert [len(shard.looks) for shard in process.shards] == [0, 1]
    process.resting.clear()
    process.clock.advance(STALE_POLLS)
    assert await process.take(2) == [sick]


async def test_a_call_that_is_cut_off_leaves_its_look_to_who_comes_next(process: Process) -> None:
    process.fill(0, 1)
    process.hold(0, 1)
    assert await is_held_up(process.take(1))
    assert set(process.line.late) == {0, 1}
    assert not process.line.filling.locked()
    place = process.line.wait()
    late = list(process.line.late.values())
    process.let_go()
    await asyncio.gather(*late)
    assert place.done()


async def test_a_shard_that_is_away_costs_only_itself(process: Process) -> None:
    process.fill(0, 1)
    [key] = process.fill(1, 1)
    process.shards[0].is_away = True
    assert await process.take(2) == [key]
    process.shards[0].is_away = False
    process.clock.advance(STALE_POLLS)
    assert len(await process.take(2)) == 1


async def test_a_topic_is_named_once_and_asked_for_until_it_is_there(process: Process) -> None:
    process.shards[0].knows_nothing = True
    await process.take(1)
    assert len(process.shards[0].looks) == 0
    process.shards[0].knows_nothing = False
    [key] = process.fill(0, 1)
    process.clock.advance(STALE_POLLS)
    assert await process.take(1) == [key]
    process.clock.advance(STALE_POLLS)
    await process.take(1)
    assert [shard.finds for shard in process.shards] == [2, 1]


async def test_a_number_that_is_the_topics_no_more_is_found_anew(process: Process) -> None:
    """The topic was deleted, and another of its name made."""
    await process.take(1)
    process.shards[0].topic_id = 8
    keys = process.fill(0, 1)
    for _ in range(2):
        process.clock.advance(STALE_POLLS)
        got = await process.take(1)
    assert got == keys


async def test_a_head_is_looked_at_from_where_the_last_one_began(process: Process) -> None:
    process.fill(0, 2)
    await process.take(1)
    process.clock.advance(STALE_POLLS)
    process.asked()
    await process.take(1)
    [((*_, after, start), _)] = process.shards[0].looks
    assert after == START
    assert start[1] == BEGIN - MARGIN, "of the first that was found"


async def test_what_looks_bring_counts_for_the_keys_that_are_kept(process: Process) -> None:
    process.fill(0, 8)
    await process.take(1)
    assert process.kept._gained == 8


async def test_lines_in_use_are_looked_at_together(process: Process) -> None:
    others = [process.add_line(f"t{n}") for n in range(3)]
    for line in [process.line, *others]:
        await process.looking.fill(line, 1)
    process.clock.advance(STALE_POLLS)
    for line in others[1:]:
        line.wait(Terms("token", None, 1, None))
    others[0].used_s = process.clock.now_s - 100
    process.asked()
    for shard in process.shards:
        shard.statements = 0
    await process.take(1)
    await process.looked()
    assert process.asked() == 2 * 3, "all but the one that nobody has wanted for long"
    assert [shard.statements for shard in process.shards] == [1, 1]


async def test_lines_are_not_joined_twice_within_half_a_poll(process: Process) -> None:
    other = process.add_line("u")
    other.wait(Terms("token", None, 1, None))
    await process.take(1)
    await process.looked()
    other.refreshed_s = float("-inf")
    process.asked()
    await process.looking.fill(process.add_line("v"), 1)
    await process.looked()
    assert process.asked() == 2, "the new one's own"


async def test_one_statement_takes_a_bounded_number_of_looks(process: Process) -> None:
    for n in range(LOOKS_MAX + 1):
        process.add_line(f"t{n}").wait(Terms("token", None, 1, None))
    await process.take(1)
    await process.looked()
    assert process.asked() == 2 * (LOOKS_MAX + 2)
    assert all(shard.statements >= 2 for shard in process.shards)


async def test_a_topics_number_that_another_history_gave_is_not_kept(process: Process) -> None:
    """The server was replaced while its answer was on the way."""
    shard = process.shards[0]
    found = shard.find_all

    async def replaced(pairs: list[tuple[str, str]]) -> list[TopicRef | None]:
        answer = await found(pairs)
        shard.history.edition = Edition()
        return answer

    process.looking._finds[0]._flush = replaced  # type: ignore[method-assign]
    with pytest.raises(ShardUnavailable):
        await process.looking.topic_id(process.line, 0)
    assert process.line.topic_ids == {}
