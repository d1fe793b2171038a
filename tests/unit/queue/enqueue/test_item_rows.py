"""Rows of an enqueue flush: what many items have in common is worked out once, and said of no other."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from services.queue.enqueue.item_rows import new_rows
from services.queue.model import NewItem
from shared.ids import new_ids, time_ms_of

FIELDS: dict[str, Any] = {
    "topic": "other",
    "priority": 1,
    "lease_s": 5.0,
    "max_attempts": 3,
    "disabled": True,
    "ack_topic": "_dag:acks/000",
    "ack_context": msgspec.Raw(b'{"node":"a"}'),
    "metadata": msgspec.Raw(b'{"m":1}'),
    "delay_s": 5.0,
    "fairness_key": "lane",
}


class Store:
    """Knows each name by a number."""

    def __init__(self) -> None:
        self.has_lanes = False
        self.names = self

    def known(self, namespace: str, topic: str) -> Any:
        return SimpleNamespace(namespace_id=len(namespace), topic_id=sum(topic.encode()))


@pytest.mark.parametrize("is_dag_service", [True, False])
def test_items_of_a_call_are_what_they_are_alone(is_dag_service: bool) -> None:
    caller: Any = SimpleNamespace(is_dag_service=is_dag_service)
    changes: list[tuple[str, ...]] = [(), *((name,) for name in FIELDS), *product(FIELDS, repeat=2)]
    ids = new_ids(0, 2 * len(changes))
    items = []
    for n, item_id in enumerate(ids):
        more = {name: FIELDS[name] for name in changes[n // 2]}
        given = {"topic": "t", "id": item_id if n % 2 else None, "payload": msgspec.Raw(b"%d" % n)} | more
        items.append((NewItem(**given), item_id))
    store: Any = Store()

    together = new_rows(store, "ns", items, caller)

    assert store.has_lanes
    assert together == [row for one in items for row in new_rows(Store(), "ns", [one], caller)]  # type: ignore[arg-type]
    assert [row.id for row in together] == ids
    assert [row.payload for row in together] == [str(n) for n in range(len(ids))]
    assert [row.time_ms for row in together] == [time_ms_of(item_id) * (n % 2) for n, item_id in enumerate(ids)]
    waiting = {"disabled", "delay_s", "fairness_key"}
    assert [row.waits for row in together] == [not waiting.isdisjoint(changes[n // 2]) for n in range(len(ids))]
    assert len({row.kind for row in together}) > len(FIELDS)


def test_simple_items_wait_for_no_lane() -> None:
    store: Any = Store()
    caller: Any = SimpleNamespace(is_dag_service=True)
    new_rows(store, "ns", [(NewItem("t"), item_id) for item_id in new_ids(0, 2)], caller)
    assert not store.has_lanes
