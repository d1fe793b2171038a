"""Items that have ids by their callers, and nothing rarer, are taken in by a short statement as by the general."""

from collections.abc import Sequence
from typing import Any

import pytest

from services.queue.model import NewRow, RareKind
from services.queue.store import enqueue as enqueue_store
from services.queue.store.shard_store import Store
from shared.postgres.sql import Statement
from tests.support.queue_host import Api, QueueHost

HOUR_MS = 3_600_000


async def given(api: Api, shard: int) -> Sequence[NewRow]:
    """Rows of two topics: new ones, the ids of a living and of an acked one again, one too old, one ahead."""
    living = await api.enqueue_one("there", id=api.new_id(shard))
    acked = await api.enqueue_one("gone", id=api.new_id(shard))
    assert await api.ack(await api.dequeue_one("gone")) == ["acked"]
    mail = RareKind((api.namespace, "mail"), None, 0, 30.0, True, None)
    calls = RareKind((api.namespace, "calls"), None, 3, 60.0, True, None)
    now_ms = int((await api.host.stores[shard].time()).timestamp() * 1000)

    def row(item_id: str, kind: RareKind, payload: str, at_ms: int = now_ms) -> NewRow:
        return NewRow(item_id, kind, at_ms, payload, None, False)

    return [
        row(api.new_id(shard), mail, '"a"'),
        row(api.new_id(shard), calls, "null"),
        row(living, mail, '"living"'),
        row(acked, calls, '"acked"'),
        row(api.new_id(shard), mail, '"old"', now_ms - 1_000 * HOUR_MS),
        row(api.new_id(shard), mail, '"ahead"', now_ms + HOUR_MS),
        row(api.new_id(shard), mail, '{"b":1}'),
    ]


async def written(api: Api) -> list[dict[str, Any]]:
    """What is stored of the namespace's items but their ids, names' numbers and the time itself."""
    rows = await api.host.rows(
        "SELECT topic.name, "
        "to_jsonb(item) - ARRAY['id', 'namespace_id', 'topic_id', 'enqueued_at', 'deliver_at'] AS item, "
        "item.deliver_at = item.enqueued_at AS is_due, ready.deliver_at = item.deliver_at AS stands, "
        "ready.priority = item.priority AND ready.topic_id = item.topic_id AS is_in_line "
        "FROM item JOIN topic USING (topic_id) LEFT JOIN ready ON ready.id = item.id "
        "WHERE item.namespace_id = (SELECT namespace_id FROM namespace WHERE name = $1) ORDER BY item.payload",
        api.namespace,
    )
    return [dict(row) for row in rows]


async def counted(api: Api) -> list[dict[str, Any]]:
    """What the changes of the namespace's counts come to, by topic."""
    rows = await api.host.rows(
        "SELECT topic.name, sum(ready) AS ready, sum(delayed) AS delayed, sum(leased) AS leased, "
        "sum(disabled) AS disabled, sum(bytes) AS bytes FROM stat_delta JOIN topic "
        "USING (topic_id) WHERE topic.namespace_id = (SELECT namespace_id FROM namespace WHERE name = $1) "
        "GROUP BY topic.name ORDER BY topic.name",
        api.namespace,
    )
    return [dict(row) for row in rows]


def asked_of(store: Store, patched: pytest.MonkeyPatch) -> list[str]:
    """The statements that the store's pool is asked from now on."""
    asked: list[str] = []
    original = store.pool.row

    async def row(statement: Statement, **values: Any) -> Any:
        asked.append(statement.name)
        return await original(statement, **values)

    patched.setattr(store.pool, "row", row)
    return asked


async def test_the_short_statement_writes_what_the_general_one_does(
    own_host: QueueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, store = next(iter(own_host.stores.items()))
    found = []
    for statement in ("enqueue_named", "enqueue"):
        api = Api(own_host, statement)
        rows = await given(api, shard)
        with monkeypatch.context() as patched:
            if statement == "enqueue":
                patched.setattr(enqueue_store, "are_plainly_named", lambda _: False)
            asked = asked_of(store, patched)
            flushed = await store.enqueue(rows)
        assert asked == [statement]
        assert flushed.taken is not None
        places = [at for at, one in enumerate(rows) if one.id in flushed.taken]
        found.append((places, len(flushed.taken), await written(api), await counted(api)))
    assert found[0] == found[1]
    assert found[0][:2] == ([0, 1, 6], 3)
