"""Lists by name over all shards, a page at a time.

Each shard gives its part of a page: rows behind a name, in order of names, as far as it has looked. What lies
behind the place to which every shard has looked is left to the next page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from shared.clock import turn

T = TypeVar("T")


class Part(NamedTuple, Generic[T]):
    """Rows of one shard by name, all that there are up to the name `horizon` (None: to the end)."""

    rows: Mapping[str, T]
    horizon: str | None


async def merge(parts: Sequence[Part[T]]) -> tuple[dict[str, list[T]], str | None]:
    """The rows of each name, in order of names, and the name up to which that is all (None: to the end)."""
    horizon = min((part.horizon for part in parts if part.horizon is not None), default=None)
    found: dict[str, list[T]] = {}
    for part in parts:
        for name, row in part.rows.items():
            if horizon is None or name <= horizon:
                found.setdefault(name, []).append(row)
        await turn()
    return dict(sorted(found.items())), horizon


def cut(names: Sequence[str], limit: int, horizon: str | None) -> tuple[Sequence[str], str | None]:
    """The first `limit` of names that are all up to `horizon`, and behind which name the next page begins."""
    if len(names) > limit:
        return names[:limit], names[limit - 1]
    return names, horizon
