"""The buffer of keys: whatever is pushed, peeked and taken, keys come out in order and none is lost."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.queue.keys.key_buffer import Buffer
from services.queue.model import Bound, Key

SHARDS = (0, 1, 2)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class BufferMachine(RuleBasedStateMachine):
    """Shards are sets of keys; peeks take time; hints may be lost or come twice; others claim too."""

    def __init__(self) -> None:
        super().__init__()
        self.shards: dict[int, set[Key]] = {shard: set() for shard in SHARDS}
        self.peeks: dict[int, list[Key]] = {}
        self.settled: dict[int, set[Key]] = {}  # while a peek was on its way: it tells nothing of them
        self.untold: set[Key] = set()
        self.taken: list[Key] = []
        self.made = 0

    @initialize(keys_max=st.sampled_from([4, 9, 1000]), limit=st.integers(1, 4))
    def begin(self, keys_max: int, limit: int) -> None:
        self.buffer = Buffer(SHARDS, keys_max=keys_max)
        self.limit = limit
        self.small = keys_max < 1000

    def key(self, shard: int, priority: int, minute: int) -> Key:
        self.made += 1
        return Key(
            priority, BEGIN + timedelta(minutes=minute), f"00000000-0000-7000-8000-{self.made:09x}{shard:03x}"
        )

    @rule(
        shard=st.sampled_from(SHARDS),
        places=st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 5)), min_size=1, max_size=4),
        told=st.sampled_from(["told", "twice", "untold"]),
    )
    def arrive(self, shard: int, places: list[tuple[int, int]], told: str) -> None:
        keys = [self.key(shard, *place) for place in places]
        self.shards[shard].update(keys)
        if told == "untold":
            self.untold.update(keys)
            return
        for _ in range(1 + (told == "twice")):
            self.buffer.push(shard, keys)

    @precondition(lambda self: len(self.peeks) < len(SHARDS))
    @rule(count=st.integers(1, 5), pick=st.integers(0, 2))
    def peek_begins(self, count: int, pick: int) -> None:
        self.peek(self.buffer.behind(count), pick)

    @precondition(lambda self: len(self.peeks) < len(SHARDS))
    @rule(pick=st.integers(0, 2))
    def poll_begins(self, pick: int) -> None:
        """A look from the head, while what is known is served."""
        self.peek(self.buffer.again(), pick)

    def peek(self, wanted: list[tuple[int, Bound]], pick: int) -> None:
        behind = [(shard, bound) for shard, bound in wanted if shard not in self.peeks]
        if behind:
            shard, bound = behind[pick % len(behind)]
            self.buffer.peeking(shard, bound)
            self.peeks[shard] = sorted(key for key in self.shards[shard] if key > bound)[: self.limit]
            self.settled[shard] = set()

    @precondition(lambda self: self.peeks)
    @rule(pick=st.integers(0, 2))
    def peek_ends(self, pick: int) -> None:
        shard = sorted(self.peeks)[pick % len(self.peeks)]
        keys = self.peeks.pop(shard)
        self.buffer.peeked(shard, keys, limit=self.limit)
        self.untold.difference_update(set(keys) - self.settled[shard])

    @rule(count=st.integers(1, 6))
    def take(self, count: int) -> None:
        keys = self.buffer.take(count)
        assert keys == sorted(keys)
        assert len(keys) <= count
        here = {key for keys in self.shards.values() for key in keys}
        real = [key for key in keys if key in here]
        if real and not self.peeks:
            left = here - set(keys) - self.untold - set(self.taken)
            passed_over = [key for key in left if key < max(real)]
            assert passed_over == []
        self.taken += keys

    @precondition(lambda self: self.taken)
    @rule(claimed=st.booleans(), count=st.integers(1, 6))
    def claim(self, claimed: bool, count: int) -> None:
        """What was taken is claimed; or the claim failed and the keys stay in the shard, to be met again."""
        keys, self.taken = self.taken[:count], self.taken[count:]
        self.buffer.settled(keys)
        for shard in self.peeks:
            self.settled[shard].update(keys)
        for key in keys:
            if claimed:
                self.shards[int(key.id[-3:], 16)].discard(key)
            elif key in self.shards[int(key.id[-3:], 16)]:
                self.untold.add(key)
        self.untold.difference_update(keys if claimed else ())

    @rule(shard=st.sampled_from(SHARDS))
    def another_host_claims(self, shard: int) -> None:
        for key in sorted(self.shards[shard])[:2]:
            self.shards[shard].discard(key)
            self.untold.discard(key)

    @rule()
    def rewind(self) -> None:
        self.buffer.rewind()

    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.taken.clear()

    @invariant()
    def is_bounded(self) -> None:
        if hasattr(self, "buffer") and self.small:
            assert len(self.buffer) <= 9 + 4

    def teardown(self) -> None:
        """From a rewind on, everything that the shards hold comes out, in order."""
        if not hasattr(self, "buffer"):
            return
        for shard in list(self.peeks):
            self.buffer.peeked(shard, self.peeks.pop(shard), limit=self.limit)
        self.buffer.settled(self.taken)
        self.buffer.rewind()
        expected = sorted(key for keys in self.shards.values() for key in keys)
        found: list[Key] = []
        for _ in range(10_000):
            for shard, bound in self.buffer.behind(3):
                self.buffer.peeking(shard, bound)
                page = sorted(key for key in self.shards[shard] if key > bound)[: self.limit]
                self.buffer.peeked(shard, page, limit=self.limit)
            keys = self.buffer.take(3)
            self.buffer.settled(keys)
            for key in keys:
                if key in self.shards[int(key.id[-3:], 16)]:
                    self.shards[int(key.id[-3:], 16)].discard(key)
                    found.append(key)
            if not keys and not self.buffer.behind(3):
                break
        assert found == expected


TestBuffer: Any = BufferMachine.TestCase
TestBuffer.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
