"""Keys of ready items, kept ahead in order: never claimed items, and never the truth.

A `Buffer` holds one topic's keys over all shards in one heap, so merging shards is reading the heap. For each
shard it knows a bound below which every key that the shard has is in the heap; the best key may be served
only while it lies under every bound, else that shard is peeked again from its bound on. Scans therefore never
walk over what was served before, however many dead rows lie there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TypeAlias

from services.queue.model import Key

Bound: TypeAlias = tuple[int, datetime, str]

_EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_FIRST_ID = "00000000-0000-0000-0000-000000000000"

START: Bound = (-(2**31), _EARLIEST, _FIRST_ID)
END: Bound = (2**31, _LATEST, "")


class Buffer:
    """The keys of one topic that this process knows to be ready."""

    def __init__(self, shards: Iterable[int], *, keys_max: int) -> None:
        self._heap: list[Key] = []
        self._known: set[str] = set()
        self._bounds: dict[int, Bound] = dict.fromkeys(shards, START)
        self._peeking: dict[int, Bound] = {}
        self._keys_max = keys_max

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Key]:
        """All keys, in no order."""
        return iter(self._heap)

    def push(self, shard: int, keys: Iterable[Key]) -> None:
        """Take in keys of a shard that have become ready; those known already are passed over.

        A key beyond the shard's bound will be found by a later peek, unless one is on its way: its snapshot
        may be older than the key.
        """
        self._add(keys, END if shard in self._peeking else self._bounds[shard])
        self._shrink()

    def peeking(self, shard: int, after: Bound) -> None:
        """A peek of this shard, of the keys after a bound, is on its way."""
        self._peeking[shard] = after

    def peeked(self, shard: int, keys: list[Key], *, limit: int) -> None:
        """Take in what a peek of one shard found; fewer than `limit` means it has no more."""
        self._add(keys, END)
        after = self._peeking.pop(shard)
        # What was forgotten while the peek was on its way lies before what it found: the bound stays there.
        if self._bounds[shard] >= after:
            self._bounds[shard] = END if len(keys) < limit else keys[-1]
        if len(self._heap) > limit * (len(self._bounds) + 1):
            self._drop_beyond_bounds()
        self._shrink()

    def late(self) -> list[int]:
        """The shards of which a peek is on its way."""
        return list(self._peeking)

    def pass_over(self, shard: int) -> None:
        """A peek of this shard takes too long: serve the others' keys until it ends."""
        self._bounds[shard] = END

    def rewind(self) -> None:
        """Forget every bound: the next keys are looked for from the head again, after peeks on their way too."""
        self._bounds = dict.fromkeys(self._bounds, START)
        self._peeking = dict.fromkeys(self._peeking, END)

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()
        self._known.clear()
        self.rewind()

    def behind(self, count: int) -> list[tuple[int, Bound]]:
        """The shards to peek, and from where, before `count` keys can be served in order."""
        if self._holds(count, self._bound()):
            return []
        limit = heapq.nsmallest(count, self._heap)[-1] if len(self._heap) >= count else END
        return [(shard, bound) for shard, bound in self._bounds.items() if bound < limit]

    def take(self, count: int, limit: Bound = END) -> list[Key]:
        """The best keys up to `limit`, in order, as far as every shard is known."""
        bound = min(self._bound(), limit)
        keys: list[Key] = []
        while self._heap and len(keys) < count and self._heap[0] <= bound:
            keys.append(heapq.heappop(self._heap))
        return keys

    def head(self) -> Key | None:
        """The key that `take` would give next."""
        return self._heap[0] if self._heap and self._heap[0] <= self._bound() else None

    def is_dry(self) -> bool:
        """Whether no shard has a key left, as far as this process can know."""
        return not self._heap and self._bound() is END

    def settled(self, keys: Iterable[Key]) -> None:
        """Keys taken before are claimed or gone: from now on their ids would be news."""
        self._known.difference_update(key.id for key in keys)

    def _bound(self) -> Bound:
        return min(self._bounds.values(), default=END)

    def _add(self, keys: Iterable[Key], bound: Bound) -> None:
        for key in keys:
            if key.id not in self._known and key < bound:
                self._known.add(key.id)
                heapq.heappush(self._heap, key)

    def _holds(self, count: int, bound: Bound) -> bool:
        """Whether `count` keys lie within a bound; looks only at that part of the heap."""
        if bound is END:
            return True
        found, places = 0, [0]
        while places:
            place = places.pop()
            if place < len(self._heap) and self._heap[place] <= bound:
                found += 1
                if found >= count:
                    return True
                places += (2 * place + 1, 2 * place + 2)
        return False

    def _drop_beyond_bounds(self) -> None:
        """Let go of keys told while peeks were on their way: a later peek will find them."""
        kept = [key for key in self._heap if key <= self._bounds[int(key.id[-3:], 16)]]
        self._known.difference_update({key.id for key in self._heap}.difference(key.id for key in kept))
        heapq.heapify(kept)
        self._heap = kept

    def _shrink(self) -> None:
        if len(self._heap) <= self._keys_max:
            return
        kept = self._keys_max // 2
        ordered = sorted(self._heap)
        self._heap, dropped = ordered[:kept], ordered[kept:]
        self._known.difference_update(key.id for key in dropped)
        # Up to the last key kept nothing is missing of any shard; from there they are peeked again.
        edge = self._heap[-1]
        for shard in {int(key.id[-3:], 16) for key in dropped}:
            self._bounds[shard] = min(self._bounds[shard], edge)
