"""What a statement is told of calls that wait (offers), and what it says that it has leased to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from services.queue.model import Key, Offer, TopicId
from services.queue.store.dequeue_encoding import Handed, HandedLease


class _News(NamedTuple):
    """A row of the type `told`: an item that became ready, up to `is_ready` where it was not leased at once; or,
    without a topic, a DAG that has ended (`is_revived`) or a run that has news."""

    topic_id: TopicId | None
    priority: int | None
    deliver_at: datetime | None
    id: str
    is_revived: bool | None
    is_ready: bool | None
    token: str | None = None
    lease_until: datetime | None = None
    payload: str | None = None
    metadata: str | None = None
    inputs: str | None = None
    headers: str | None = None
    attempt: int | None = None
    enqueued_at: datetime | None = None
    at_most_once: bool | None = None
    dag: str | None = None


_decode = msgspec.json.Decoder(list[_News]).decode


def news_of(text: str | None) -> Iterable[Any]:
    """Rows of the type `told`, which the database gave as JSON text."""
    return () if text is None else _decode(text)


def handed_of(text: str | None) -> list[Handed]:
    """The same, where each of them is leased."""
    return [
        (Key(priority, at, item_id), HandedLease(topic_id, token, *lease))
        for topic_id, priority, at, item_id, _, _, token, *lease in news_of(text)
    ]


def offered(offers: Sequence[Offer], bytes_max: int) -> dict[str, object]:
    """Offers as arguments. All of them together are given so many bytes at most."""
    topic_ids, tokens, lease_ss, maxima, workers = zip(*offers, strict=True) if offers else ((), (), (), (), ())
    return {
        "offer_topic_ids": topic_ids,
        "offer_tokens": tokens,
        "offer_lease_ss": lease_ss,
        "offer_maxima": maxima,
        "offer_workers": workers,
        "offer_bytes_max": bytes_max // max(len(offers), 1),
    }
