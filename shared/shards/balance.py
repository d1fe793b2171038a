"""Which process should own which shard: even loads, few moves, and the same answer at every process.

Every member gets floor(shards / members) shards, or one more. Whoever has more keeps as many as it may, and
what is free or too much goes to members that have too few, chosen by rendezvous hashing (Thaler and
Ravishankar, 1998), so that processes which look at the same facts agree without talking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from shared.ids import ShardNo


def assign(owners: Mapping[ShardNo, str | None], members: Collection[str]) -> dict[ShardNo, str]:
    """The owner each shard should have, given who has it now (None: nobody).

    Without members nobody should own anything. A shard that stays where it is costs nothing, and no answer that
    is as even moves fewer.
    """
    if not members:
        return {}
    held = {member: [n for n, owner in owners.items() if owner == member] for member in sorted(members)}
    floor, more = divmod(len(owners), len(held))
    rooms = {}
    # Those that have most may have one more: then it need not move.
    for i, member in enumerate(sorted(held, key=lambda member: (-len(held[member]), member))):
        rooms[member] = floor + (i < more)
    plan: dict[ShardNo, str] = {}
    for member, numbers in held.items():
        kept = sorted(numbers, key=lambda n: _score(n, member), reverse=True)[: rooms[member]]
        rooms[member] -= len(kept)
        plan.update(dict.fromkeys(kept, member))
    for number in sorted(owners.keys() - plan.keys()):
        chosen = max((m for m, room in rooms.items() if room), key=lambda m: _score(number, m))
        rooms[chosen] -= 1
        plan[number] = chosen
    return plan


def _score(number: ShardNo, member: str) -> bytes:
    return hashlib.blake2b(f"{number} {member}".encode(), digest_size=8).digest()
