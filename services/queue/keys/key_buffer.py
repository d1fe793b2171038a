"""Keys of ready items, read ahead and kept in order: a cache, which claims no item.

A `Buffer` holds one topic's keys over all shards in one sorted list: what becomes ready mostly belongs at its
end, and a call takes its keys from the front at once. For each shard it knows a bound below which every key that
the shard has is in the list; the best key may be served only while it lies under every bound, else that shard is
peeked again from its bound on. Scans therefore never walk over what was served before, however many dead rows lie
there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from services.queue.model import EARLIEST, Bound, Key, id_of
from shared.ids import ShardNo

_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_FIRST_ID = "00000000-0000-0000-0000-000000000000"

START: Bound = (-(2**31), EARLIEST, _FIRST_ID)
END: Bound = (2**31, _LATEST, "")

# So many keys are put in one by one; more are sorted in together.
_SINGLY_MAX = 8


class _Peek:
    """A peek on its way: behind what it looks, and what it cannot know."""

    __slots__ = ("after", "gone", "told")

    def __init__(self, after: Bound) -> None:
        self.after = after
        self.told: list[Key] = []
        self.gone: set[Key] = set()


class Buffer:
    """The keys of one topic that this process knows to be ready."""

    __slots__ = ("_bounds", "_keys", "_keys_max", "_known", "_least", "_peeking", "_was_dry")

    def __init__(self, shards: Iterable[ShardNo], *, keys_max: int) -> None:
        self._keys: list[Key] = []
        self._known: set[str] = set()
        self._bounds: dict[ShardNo, Bound] = dict.fromkeys(shards, START)
        self._least: Bound | None = None  # of the bounds; None: to be looked for, one has moved
        self._peeking: dict[ShardNo, _Peek] = {}
        self._was_dry = False  # and nothing was met since, though it is being looked for afresh
        self._keys_max = keys_max

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        """All keys, in order."""
        return iter(self._keys)

    @property
    def shards(self) -> int:
        """How many it is over."""
        return len(self._bounds)

    def covers(self, shard: ShardNo) -> bool:
        """Whether it is over this shard too."""
        return shard in self._bounds

    def push(self, shard: ShardNo, keys: Iterable[Key]) -> None:
        """Take in keys of a shard that have become ready; those known already are passed over.

        A key beyond the shard's bound will be found by a later peek, unless one is on its way: its snapshot
        may be older than the key.
        """
        self._was_dry = False
        peek = self._peeking.get(shard)
        if peek is not None:
            keys = list(keys)
            peek.told += keys
        self._add(keys, self._bounds[shard])
        self._shrink()

    def put_back(self, shard: ShardNo, keys: Sequence[Key]) -> None:
        """Keys taken before are not claimed after all; those that were found anew since are there."""
        keys = [key for key in keys if not self._has(key)]
        self._known.difference_update(map(id_of, keys))
        self.push(shard, keys)

    def peeking(self, shard: ShardNo, after: Bound) -> None:
        """A peek of this shard, of the keys after a bound, is on its way."""
        self._peeking[shard] = _Peek(after)

    def peeked(self, shard: ShardNo, keys: list[Key], *, limit: int) -> None:
        """Take in what a peek of one shard found; fewer than `limit` means it has no more.

        What was taken and settled while it was on its way may have been there for it still.
        """
        peek = self._peeking.pop(shard)
        self._was_dry = self._was_dry and not keys
        # What was forgotten while the peek was on its way lies before what it found: the bound stays there.
        if self._bounds[shard] >= peek.after:
            self._move(shard, END if len(keys) < limit else keys[-1])
        self._add(_without(peek.gone, keys), END)
        self._add(_without(peek.gone, peek.told), self._bounds[shard])
        self._shrink()

    def late(self) -> list[ShardNo]:
        """The shards of which a peek is on its way."""
        return list(self._peeking)

    def pass_over(self, shard: ShardNo) -> None:
        """A peek of this shard takes too long: serve the others' keys until it ends."""
        self._move(shard, END)

    def rewind(self) -> None:
        """Forget every bound: the next keys are looked for from the head again, after peeks on their way too."""
        self._was_dry = self.seems_dry
        self._bounds, self._least = dict.fromkeys(self._bounds, START), None
        for peek in self._peeking.values():
            peek.after = END

    def again(self) -> list[tuple[ShardNo, Bound]]:
        """Where to peek to know every shard anew from its head, while what is known may go on being served."""
        return [(shard, START) for shard in self._bounds]

    def unknown(self, shard: ShardNo) -> None:
        """There is more on this shard than its last look, or one on its way, can have seen."""
        self._move(shard, START)
        if shard in self._peeking:
            self._peeking[shard].after = END

    def reread(self, shard: ShardNo) -> None:
        """What is known of this shard is gone, or what a peek on its way will find: look from its head again."""
        self.unknown(shard)
        self._forget(shard)

    def skip(self, shard: ShardNo) -> None:
        """Serve the others' keys, as if this shard had none, until it is looked at again."""
        self.pass_over(shard)
        self._forget(shard)

    def let_go(self, shard: ShardNo) -> None:
        """Forget the keys of one shard if a peek from its head is on its way: what that finds is there instead."""
        if self._peeking[shard].after == START:
            self._forget(shard)

    def _forget(self, shard: ShardNo) -> None:
        if not self._keys:
            return
        tail = f"{shard:03x}"
        self._known.difference_update([key.id for key in self._keys if key.id.endswith(tail)])
        self._keys = [key for key in self._keys if not key.id.endswith(tail)]

    def clear(self) -> None:
        """Forget everything."""
        self._keys.clear()
        self._known.clear()
        self.rewind()
        self._was_dry = False

    def behind(self, count: int) -> list[tuple[ShardNo, Bound]]:
        """The shards to peek, and from where, before `count` keys can be served in order."""
        if self._holds(count, self._bound()):
            return []
        limit = self._keys[count - 1] if len(self._keys) >= count else END
        return [(shard, bound) for shard, bound in self._bounds.items() if bound < limit]

    def take(self, count: int, limit: Bound = END) -> list[Key]:
        """The best keys up to `limit`, in order, as far as every shard is known."""
        bound = min(self._bound(), limit)
        end = min(count, len(self._keys))
        if bound is not END:
            end = bisect_right(self._keys, bound, hi=end)
        keys = self._keys[:end]
        del self._keys[:end]
        return keys

    def head(self) -> Key | None:
        """The key that `take` would give next."""
        return self._keys[0] if self._keys and self._keys[0] <= self._bound() else None

    def is_dry(self) -> bool:
        """Whether no shard has a key left, as far as this process can know."""
        return not self._keys and self._bound() is END

    @property
    def seems_dry(self) -> bool:
        """Whether it is dry, or was when all was last known and nothing has been met since."""
        return self._was_dry or self.is_dry()

    def settled(self, keys: Sequence[Key]) -> None:
        """Keys taken before are claimed or gone: from now on their ids would be news."""
        self._known.difference_update(map(id_of, keys))
        for key in keys if self._peeking else ():
            peek = self._peeking.get(ShardNo(int(key.id[-3:], 16)))
            if peek is not None:
                peek.gone.add(key)

    def _move(self, shard: ShardNo, bound: Bound) -> None:
        self._bounds[shard], self._least = bound, None

    def _bound(self) -> Bound:
        if self._least is None:
            self._least = min(self._bounds.values(), default=END)
        return self._least

    def _add(self, keys: Iterable[Key], bound: Bound) -> None:
        near = list(keys) if bound is END else [key for key in keys if key < bound]
        fresh = dict(zip(map(id_of, near), near, strict=True))
        if not self._known.isdisjoint(fresh):
            fresh = {item_id: key for item_id, key in fresh.items() if item_id not in self._known}
        self._known.update(fresh)
        if len(fresh) <= _SINGLY_MAX:
            for key in fresh.values():
                insort(self._keys, key)
        else:
            added = sorted(fresh.values())
            behind = bisect_right(self._keys, added[0])
            later = self._keys[behind:]
            self._keys[behind:] = sorted(added + later) if later else added

    def _has(self, key: Key) -> bool:
        place = bisect_left(self._keys, key)
        return place < len(self._keys) and self._keys[place] == key

    def _holds(self, count: int, bound: Bound) -> bool:
        """Whether `count` keys lie within a bound."""
        return bound is END or (len(self._keys) >= count and self._keys[count - 1] <= bound)

    def _shrink(self) -> None:
        if len(self._keys) <= self._keys_max:
            return
        kept = self._keys_max // 2
        self._keys, dropped = self._keys[:kept], self._keys[kept:]
        self._known.difference_update(key.id for key in dropped)
        # Up to the last key kept nothing is missing of any shard; from there they are peeked again.
        edge = self._keys[-1]
        for shard in {ShardNo(int(key.id[-3:], 16)) for key in dropped}:
            self._move(shard, min(self._bounds[shard], edge))


def _without(gone: set[Key], keys: list[Key]) -> list[Key]:
    return [key for key in keys if key not in gone] if gone else keys
