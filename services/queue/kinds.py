"""The items of an enqueue flush by kinds: what many have in common is said once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, cast

from services.queue.model import SEPARATOR, NewRow, RareKind

# What the items of a kind have in common, as the statement names it.
_KIND = ("namespace_ids", "topic_ids", "priorities", "lease_ss", "nameds", "extras")


def columns(rows: Sequence[NewRow]) -> dict[str, Any]:
    """The arguments of `enqueue` that rows are given as: of kinds, an element each, and of their items in turn."""
    kinds: dict[tuple[RareKind, bool], list[NewRow]] = {}
    for row in rows:
        kinds.setdefault((row.kind, row.ack_context is None), []).append(row)
    common: Any = list(zip(*(kind for kind, _ in kinds), strict=True)) or [[] for _ in _KIND]
    members = kinds.values()
    ordered = list(chain.from_iterable(members))
    return dict(zip(_KIND, common, strict=True)) | {
        "lasts": list(accumulate(map(len, members))),
        "payloads": [SEPARATOR.join([row.payload for row in part]) for part in members],
        "ack_contexts": [_joined([row.ack_context for row in part]) for part in members],
        "ids": [row.id for row in ordered],
        "times_ms": [row.time_ms for row in ordered],
    }


def _joined(texts: Sequence[str | None]) -> str | None:
    """One text of all, or None where there are none."""
    return None if texts[0] is None else SEPARATOR.join(cast("Sequence[str]", texts))
