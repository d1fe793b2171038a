"""Ids: UUIDv7 whose last 12 bits are a shard number, as lowercase text.

    48 bits: ms | 7 | 12 bits: counter | 10 | 14 bits: counter, on | 36 bits: random | 12 bits: shard

Time comes first, then a counter of this process: ids made in one millisecond keep their order, also across
threads. The counter starts each millisecond at a random number with its top bit clear, and a clock that
steps back keeps the last time, so one process never makes an id that sorts before an earlier one. The
random part keeps two processes apart and the id unguessable.
"""

import os
import struct
import threading
import time
from collections.abc import Callable
from typing import Final

SHARDS_MAX: Final = 4_096
_COUNTER_MAX: Final = 2**26 - 1
# For an id that is made alone: bytes of noise, and how many times that many are drawn at once: to ask the system
# takes longer than all the rest.
_ONE_BYTES, _ONES = 9, 128
# Of an id's text: how wide it is with a space, where the counter goes on, and where the noise begins.
_WIDTH, _COUNTER, _NOISE = 37, 19, 24


class IdMaker:
    """Makes ids in order. `now_ms` and `entropy` are there for tests; one maker per process is the rule."""

    def __init__(
        self,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._now_ms = now_ms
        self._entropy = entropy
        self._last_ms = 0
        self._counter = 0  # of the next id
        self.unlock()

    def unlock(self) -> None:
        """Start with a fresh lock and fresh noise: the child of a fork has inherited its parent's."""
        self._lock = threading.Lock()
        self._drawn: list[int] = []

    def make(self, shard: int, count: int = 1) -> list[str]:
        """`count` ids of `shard`, in ascending order."""
        if not 0 <= shard < SHARDS_MAX:
            raise ValueError(f"shard must be 0 to {SHARDS_MAX - 1}")
        if count == 1:
            return [self._one(shard)]
        noise = self._entropy(4 + 5 * count)
        start = int.from_bytes(noise[:4]) >> 7
        now_ms = self._now_ms()
        ids: list[str] = []
        with self._lock:
            if now_ms > self._last_ms:
                self._last_ms, self._counter = now_ms, start
            while len(ids) < count:
                if self._counter > _COUNTER_MAX:
                    self._last_ms, self._counter = self._last_ms + 1, start
                ids += self._run(count - len(ids), noise[4 + 5 * len(ids) :], shard)
        return ids

    def _one(self, shard: int) -> str:
        """As a batch of one, at a third of its cost."""
        now_ms = self._now_ms()
        with self._lock:
            if not self._drawn:
                drawn = self._entropy(_ONE_BYTES * _ONES)
                places = range(len(drawn) - _ONE_BYTES, -1, -_ONE_BYTES)
                self._drawn = [int.from_bytes(drawn[place : place + _ONE_BYTES]) for place in places]
            noise = self._drawn.pop()
            if now_ms > self._last_ms:
                self._last_ms, self._counter = now_ms, noise >> 47
            elif self._counter > _COUNTER_MAX:
                self._last_ms, self._counter = self._last_ms + 1, noise >> 47
            time_ms, counter = self._last_ms, self._counter
            self._counter += 1
        high, low, rest = (
            0x7000 | counter >> 14,
            0x8000 | counter & 0x3FFF,
            (noise >> 4 & 0xFFFFFFFFF) << 12 | shard,
        )
        # By `%`, which costs a third of what so many format specs do.
        return "%08x-%04x-%04x-%04x-%012x" % (time_ms >> 16, time_ms & 0xFFFF, high, low, rest)  # noqa: UP031

    def _run(self, count: int, noise: bytes, shard: int) -> list[str]:
        """Up to `count` ids, as far as only the low bits of the counter change."""
        high, low = self._counter >> 14, self._counter & 0x3FFF
        count = min(count, 0x4000 - low)
        self._counter += count
        time_hex = f"{self._last_ms:012x}"
        head, tail = f"{time_hex[:8]}-{time_hex[8:]}-7{high:03x}-", f"{shard:03x}"
        first = 0x8000 | low
        text = bytearray(f"{head}0000-000000000{tail} " * count, "ascii")
        # One place of all ids at a time: of two bytes of counter, and of five of noise all but the last digit.
        counters = struct.pack(f">{count}H", *range(first, first + count)).hex().encode()
        for place in range(4):
            text[_COUNTER + place :: _WIDTH] = counters[place::4]
        digits = noise[: 5 * count].hex().encode()
        for place in range(9):
            text[_NOISE + place :: _WIDTH] = digits[place::10]
        return text.decode().split()


_maker = IdMaker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_maker.unlock)


def new_id(shard: int) -> str:
    """A new id of `shard`, after every id that this process made before."""
    return _maker.make(shard)[0]


def new_ids(shard: int, count: int) -> list[str]:
    """`count` new ids of `shard`, in order."""
    return _maker.make(shard, count)


def shard_of(item_id: str) -> int:
    """The shard number in an id."""
    return int(item_id[-3:], 16)


def place_of(item_id: str) -> int:
    """The shard number in what may be no id; -1 where there is none."""
    try:
        return shard_of(item_id) if len(item_id) == _WIDTH - 1 else -1
    except ValueError:
        return -1


def time_ms_of(item_id: str) -> int:
    """When an id was made by its maker's clock, in ms since the epoch."""
    return int(item_id[:8] + item_id[9:13], 16)
