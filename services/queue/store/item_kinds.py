"""The items of an enqueue flush by kinds: what many have in common is said once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, cast

from services.queue.model import SEPARATOR, Kind, NewRow, RareKind
from services.queue.store.names import Pair, TopicRef

_NO_TOPIC = (None, None)


def pairs_of(rows: Sequence[NewRow]) -> set[Pair]:
    """The topics that rows name."""
    kinds = {row.kind for row in rows}
    return {kind.topic for kind in kinds} | {kind.ack_topic for kind in kinds if kind.ack_topic is not None}


def columns(rows: Sequence[NewRow], refs: Mapping[Pair, TopicRef]) -> dict[str, object]:
    """The arguments of `enqueue` that rows are given as: of kinds, an element each, and of their items in turn.
    `refs` has their topics."""
    members: dict[tuple[RareKind, bool], list[NewRow]] = {}
    for row in rows:
        members.setdefault((row.kind, row.ack_context is None), []).append(row)
    kinds = [kind for kind, _ in members]
    acks = [kind.ack_topic or _NO_TOPIC for kind in kinds]
    ordered = list(chain.from_iterable(members.values()))
    return {
        "namespaces": [kind.topic[0] for kind in kinds],
        "topics": [kind.topic[1] for kind in kinds],
        "topic_ids": [refs[kind.topic].topic_id for kind in kinds],
        "ack_namespaces": [namespace for namespace, _ in acks],
        "ack_topics": [topic for _, topic in acks],
        "ack_topic_ids": [None if kind.ack_topic is None else refs[kind.ack_topic].topic_id for kind in kinds],
        "priorities": [kind.priority for kind in kinds],
        "lease_ss": [kind.lease_s for kind in kinds],
        "nameds": [kind.named for kind in kinds],
        "extras": [kind.extra for kind in kinds],
        "lasts": list(accumulate(map(len, members.values()))),
        "payloads": [SEPARATOR.join([row.payload for row in part]) for part in members.values()],
        "ack_contexts": [_joined([row.ack_context for row in part]) for part in members.values()],
        "ids": [row.id for row in ordered],
        "times_ms": [row.time_ms for row in ordered],
    }


def plain_columns(
    groups: Sequence[tuple[Kind, Sequence[str], str]], refs: Mapping[Pair, TopicRef]
) -> dict[str, Any]:
    """The arguments of `enqueue_plain` for groups of plain items: (kind, ids, payloads joined)."""
    kinds, ids, payloads = zip(*groups, strict=True)
    namespaces, topics, priorities, lease_ss = zip(*kinds, strict=True)
    return {
        "namespaces": namespaces,
        "topics": topics,
        "topic_ids": [refs[pair].topic_id for pair in zip(namespaces, topics, strict=True)],
        "priorities": priorities,
        "lease_ss": lease_ss,
        "lasts": list(accumulate(map(len, ids))),
        "payloads": payloads,
        "ids": ids[0] if len(ids) == 1 else list(chain.from_iterable(ids)),
    }


def _joined(texts: Sequence[str | None]) -> str | None:
    """One text of all, or None where there are none."""
    return None if texts[0] is None else SEPARATOR.join(cast("Sequence[str]", texts))
