"""A minimum share per priority: of what a topic hands out, a part goes to worse priorities while they wait.

A band is the priorities from one up to the next that has a share. Each band's keys are kept ahead by themselves,
with bounds of their own, since the best thousand keys of a topic may all be of its best priority. Whose turn it
is, is counted, not drawn by chance: each delivery adds to every band's credit its share, and a band with a credit
of one goes first. So of any N deliveries of this process, while a band has items ready, at least `share * N - 1`
are the band's.
A band without ready items gains no credit; what it gets because all better ones are empty counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from services.queue.keys.key_buffer import START
from services.queue.keys.key_cache import Heads
from services.queue.model import Bound, Key
from shared.ids import ShardNo

# (priority, share): the priorities from this one on, up to the next, and their part of all hand-outs.
Shares = tuple[tuple[int, float], ...]

_BEST = START[0]


class Bands:
    """Stands for one topic's `Heads`: one for each band."""

    def __init__(self, shares: Shares, make: Callable[[], Heads]) -> None:
        share_from = {_BEST: 0.0} | dict(shares)  # the first band is there in any case, and may have a share
        self._starts, self._shares = list(share_from), list(share_from.values())
        self._owed = [0.0] * len(self._starts)
        self._bands = [make() for _ in self._starts]

    def __len__(self) -> int:
        return sum(map(len, self._bands))

    @property
    def takes_turns(self) -> bool:
        """Whether the items are in lanes."""
        return self._bands[0].takes_turns

    @takes_turns.setter
    def takes_turns(self, value: bool) -> None:
        for band in self._bands:
            band.takes_turns = value

    def join(self, shard: ShardNo) -> None:
        """There is one more shard."""
        for band in self._bands:
            band.join(shard)

    def push(self, shard: ShardNo, keys: Iterable[Key]) -> None:
        """Take in keys that have become ready."""
        for band, part in self._parts(keys).items():
            self._bands[band].push(shard, part)

    def put_back(self, shard: ShardNo, keys: Iterable[Key]) -> None:
        """Keys taken before are not claimed after all."""
        for band, part in self._parts(keys).items():
            self._bands[band].put_back(shard, part)

    def note(self, shard: ShardNo) -> bool:
        """Keys have become ready while nobody asks; false where they are to be pushed."""
        return all(band.note(shard) for band in self._bands)

    def heed(self, count: int) -> None:
        """A call wants so many keys: what was noted is to be looked for, where own ones are too few."""
        for band in self._bands:
            band.heed(count)

    def peeking(self, shard: ShardNo, after: Bound) -> None:
        """A peek of this shard, of one band, is on its way."""
        band = self._band(after[0])
        self._bands[band].peeking(shard, START if after == self._start(band) else after)

    def peeked(self, shard: ShardNo, keys: list[Key], *, limit: int, after: Bound) -> None:
        """Take in what a peek found, as far as it is of the band."""
        band = self._band(after[0])
        mine = [key for key in keys if self._band(key.priority) == band]
        self._bands[band].peeked(shard, mine, limit=limit, after=after)

    def pass_over(self, shard: ShardNo) -> None:
        """A peek of this shard takes too long: serve the others' keys until it ends."""
        for band in self._bands:
            band.pass_over(shard)

    def reread(self, shard: ShardNo) -> None:
        """What is known of this shard is gone: look at it from its head again."""
        for band in self._bands:
            band.reread(shard)

    def skip(self, shard: ShardNo) -> None:
        """Serve the others' keys, as if this shard had none, until it is looked at again."""
        for band in self._bands:
            band.skip(shard)

    def rewind(self) -> None:
        """Look at every shard from its head again."""
        for band in self._bands:
            band.rewind()

    def again(self) -> list[tuple[ShardNo, Bound]]:
        """Where to peek to know every band of every shard anew, while what is known may go on being served."""
        return [
            (shard, self._start(number)) for number, band in enumerate(self._bands) for shard, _ in band.again()
        ]

    def clear(self) -> None:
        """Forget everything."""
        for band in self._bands:
            band.clear()

    def behind(self, count: int) -> list[tuple[ShardNo, Bound]]:
        """The shards to peek, and from where, before `count` keys can be served."""
        found: list[tuple[ShardNo, Bound]] = []
        left = count
        for number, band in enumerate(self._bands):
            due = math.ceil(self._owed[number] + self._shares[number] * count)
            found += [
                (shard, self._start(number) if bound == START else bound)
                for shard, bound in band.behind(max(left, due, 1))
            ]
            left = max(left - len(band), 0)
        return found

    def take(self, count: int) -> list[Key]:
        """The keys to serve next."""
        keys: list[Key] = []
        while len(keys) < count and (key := self._next()) is not None:
            keys.append(key)
        return keys

    def settled(self, keys: Sequence[Key]) -> None:
        """Keys taken before are claimed or gone."""
        for number, band in enumerate(self._bands):
            band.settled([key for key in keys if self._band(key.priority) == number])

    def _next(self) -> Key | None:
        owed = [owed + share for owed, share in zip(self._owed, self._shares, strict=True)]
        due = [number for number, part in enumerate(owed) if part >= 1 - 1e-9]
        for number in (*sorted(due, key=lambda number: (-owed[number], number)), *range(len(owed))):
            found: list[Key] = self._bands[number].take(1)
            if found:
                owed[number] = max(owed[number] - 1, 0.0)
                self._owed = owed
                return found[0]
            owed[number] = 0.0
        self._owed = owed
        return None

    def _parts(self, keys: Iterable[Key]) -> dict[int, list[Key]]:
        parts: dict[int, list[Key]] = {}
        for key in keys:
            parts.setdefault(self._band(key.priority), []).append(key)
        return parts

    def _band(self, priority: int) -> int:
        return max(number for number, start in enumerate(self._starts) if start <= priority or number == 0)

    def _start(self, number: int) -> Bound:
        return START if number == 0 else (self._starts[number], START[1], START[2])


def shares_of(found: Sequence[Sequence[float]]) -> Shares:
    """Shares as a topic's settings hold them."""
    return tuple((int(priority), float(share)) for priority, share in found)
