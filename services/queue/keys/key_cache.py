"""One topic's keys at one process: its own shards' in strict order, other owners' behind them.

A key of a shard that another process owns is that process' to hand out; taking it here as well makes both
claim the same rows. So it is taken here when no own key is left, or when it has waited too long beside
better chances: it is known here for `late_s`, and would go first even if it had become ready `late_s` later.
Hence the order that holds across processes: no item is passed over for one of a worse priority, or of the same
priority and `late_s` younger, for longer than `late_s` and the two looks (`poll_s`) that it takes to know it.

Nor are keys of such a shard kept that another process tells of while nobody here asks for the topic: that there
are some is remembered, and a call that its own keys are too few for looks for them.

A process that owns every shard has one buffer, and none of this costs it anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from services.queue.keys.key_buffer import END, START, Buffer
from services.queue.model import Bound, Key
from shared.clock import Clock
from shared.ids import ShardNo


class Heads:
    """A `Buffer` over own shards and one over the rest."""

    __slots__ = (
        "_clock",
        "_keys_max",
        "_known_since_s",
        "_late_s",
        "_others",
        "_own",
        "_owns",
        "_rest",
        "_shards",
        "_told",
        "takes_turns",
    )

    def __init__(
        self,
        shards: Sequence[ShardNo],
        owns: Callable[[ShardNo], bool],
        clock: Clock,
        *,
        keys_max: int,
        late_s: float,
    ) -> None:
        self._shards = shards
        self._owns = owns
        self._clock = clock
        self._keys_max = keys_max
        self._late_s = late_s
        self.takes_turns = False  # its items' places are no times then: see services.queue.duties.fairness_keys
        self._known_since_s: dict[str, float] = {}
        self._own = self._rest = _NOBODYS
        self._others: frozenset[ShardNo] = _NONE
        self._told: frozenset[ShardNo] = _NONE
        self._share_out()

    def __len__(self) -> int:
        return len(self._own) + len(self._rest)

    def join(self, shard: ShardNo) -> None:
        """There is one more shard; it is looked at from the next `rewind` on."""
        self._shards = [*self._shards, shard]

    def push(self, shard: ShardNo, keys: Iterable[Key]) -> None:
        """Take in keys that have become ready."""
        home = self._home(shard)
        if not home.covers(shard):
            return
        if shard in self._others:
            keys = list(keys)
            self._note(keys)
        home.push(shard, keys)

    def put_back(self, shard: ShardNo, keys: Sequence[Key]) -> None:
        """Keys taken before are not claimed after all."""
        home = self._home(shard)
        if home.covers(shard):
            home.put_back(shard, keys)

    def note(self, shard: ShardNo) -> bool:
        """Keys have become ready while nobody asks; false where that is not enough, and they are to be pushed."""
        if shard not in self._others:
            return False
        self._told |= {shard}
        return True

    def heed(self, count: int) -> None:
        """A call wants so many keys: where own ones are too few, what was noted is to be looked for."""
        if self._told and len(self._own) < count:
            for shard in self._told:
                self._rest.unknown(shard)
            self._told = _NONE

    def peeking(self, shard: ShardNo, after: Bound) -> None:
        """A peek of this shard is on its way."""
        if after == START and shard in self._told:
            self._told -= {shard}
        self._home(shard).peeking(shard, after)

    def peeked(self, shard: ShardNo, keys: list[Key], *, limit: int, after: Bound = START) -> None:
        """Take in what a peek found; one peek of a shard is on its way at a time, whatever it began `after`."""
        if shard not in self._others:
            self._own.peeked(shard, keys, limit=limit)
            return
        self._note(keys)
        self._rest.let_go(shard)  # its owner serves it: most of what was known here is gone
        self._rest.peeked(shard, keys, limit=limit)
        if len(self._known_since_s) > 2 * len(self._rest) + _FORGOTTEN_MIN:
            self._forget_gone()

    def pass_over(self, shard: ShardNo) -> None:
        """A peek of this shard takes too long: serve the others' keys until it ends."""
        self._home(shard).pass_over(shard)

    def reread(self, shard: ShardNo) -> None:
        """What is known of this shard is gone: look at it from its head again."""
        home = self._home(shard)
        if home.covers(shard):
            home.reread(shard)

    def skip(self, shard: ShardNo) -> None:
        """Serve the others' keys, as if this shard had none, until it is looked at again."""
        home = self._home(shard)
        if home.covers(shard):
            home.skip(shard)

    def rewind(self) -> None:
        """Look at every shard from its head again, by whose it is now."""
        if self._are_shared_out_anew():
            self._share_out()
            return
        self._own.rewind()
        if self._others:
            # When each of them was met is kept.
            self._forget_gone()
            self._rest.clear()
            self._told = _NONE

    def again(self) -> list[tuple[ShardNo, Bound]]:
        """Where to peek to know every shard anew from its head, while what is known may go on being served."""
        if self._are_shared_out_anew():
            self._share_out()
        return self._own.again() + self._rest.again()

    def clear(self) -> None:
        """Forget everything."""
        self._own.clear()
        self._rest.clear()
        self._known_since_s.clear()
        self._told = _NONE

    def behind(self, count: int) -> list[tuple[ShardNo, Bound]]:
        """The shards to peek, and from where, before `count` keys can be served."""
        if not self._others:
            return self._own.behind(count)
        # Of the rest the head is enough, as long as there are own keys.
        return self._own.behind(count) + self._rest.behind(1 if len(self._own) >= count else count)

    def take(self, count: int) -> list[Key]:
        """The keys to serve next, as far as every shard is known."""
        if not self._others:
            return self._own.take(count)
        keys: list[Key] = []
        while len(keys) < count:
            head = self._rest.head()
            limit = self._precedence(head)
            keys += self._own.take(count - len(keys), limit)
            if head is None or (limit is END and not self._own.is_dry()):
                break
            keys += self._rest.take(min(1, count - len(keys)))
        return keys

    @property
    def hands_over(self) -> bool:
        """Whether the next item to become ready is the one to be served: nothing else is in sight.

        A look on its way changes that when it finds something: until then what the last one found holds.
        """
        dry = self._own.seems_dry and (not self._others or self._rest.seems_dry)
        return dry and not self._told and not self.takes_turns

    def settled(self, keys: Sequence[Key]) -> None:
        """Keys taken before are claimed or gone."""
        self._own.settled(keys)
        if self._others:
            self._rest.settled(keys)

    def _precedence(self, head: Key | None) -> Bound:
        """Own keys up to here go before another owner's head."""
        if head is None:
            return END
        known_s = self._clock.monotonic_s() - self._known_since_s.get(head.id, float("inf"))
        if known_s < self._late_s:
            return END
        return (
            head
            if self.takes_turns
            else Key(head.priority, head.deliver_at + timedelta(seconds=self._late_s), head.id)
        )

    def _note(self, keys: Iterable[Key]) -> None:
        now_s = self._clock.monotonic_s()
        if len(self._known_since_s) > 2 * self._keys_max:
            self._forget_gone()
        for key in keys:
            self._known_since_s.setdefault(key.id, now_s)

    def _forget_gone(self) -> None:
        """Of keys in no buffer; one that was put back since, or told during a look, is known from now on."""
        now_s = self._clock.monotonic_s()
        self._known_since_s = {key.id: self._known_since_s.get(key.id, now_s) for key in self._rest}

    def _foreign(self) -> frozenset[ShardNo]:
        return frozenset(shard for shard in self._shards if not self._owns(shard)) or _NONE

    def _home(self, shard: ShardNo) -> Buffer:
        return self._rest if shard in self._others else self._own

    def _are_shared_out_anew(self) -> bool:
        met = self._own.shards + (self._rest.shards if self._others else 0)
        return self._others != self._foreign() or met < len(self._shards)

    def _share_out(self) -> None:
        late = {*self._own.late(), *self._rest.late()}
        self._others = self._foreign()
        self._own = Buffer([n for n in self._shards if n not in self._others], keys_max=self._keys_max)
        self._rest = Buffer(sorted(self._others), keys_max=self._keys_max) if self._others else _NOBODYS
        for shard in late:
            self._home(shard).peeking(shard, END)
        self._known_since_s.clear()
        self._told = _NONE


_NONE: frozenset[ShardNo] = frozenset()
# So many keys that are gone, and as many again as there are, are remembered before they are looked for.
_FORGOTTEN_MIN = 64
# Stands for the rest where there is none: nothing ever gets into it.
_NOBODYS = Buffer((), keys_max=0)
