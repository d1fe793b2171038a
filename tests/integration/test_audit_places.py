"""The audit tells what it finds in two places at once, and leaves it as it is."""

import pytest

from tests.integration.test_audit import Both, both, running

__all__ = ["both", "running"]


@pytest.mark.parametrize(
    ("damage", "undo"),
    [
        (
            "INSERT INTO lease (token, expires_at, namespace_id, topic_id, ids)"
            " SELECT gen_random_uuid(), expires_at + interval '1 s', namespace_id, topic_id, ids FROM lease",
            "DELETE FROM lease WHERE expires_at > (SELECT min(expires_at) FROM lease)",
        ),
        (
            "INSERT INTO ready SELECT topic_id, priority, deliver_at, id FROM item;"
            " INSERT INTO stat_delta SELECT topic_id, 1, 0, 0, 0, 0 FROM item",
            "DELETE FROM ready; INSERT INTO stat_delta SELECT topic_id, -1, 0, 0, 0, 0 FROM item",
        ),
    ],
    ids=["leased twice", "leased and ready"],
)
async def test_q18_an_item_that_two_consumers_could_have_is_told(both: Both, damage: str, undo: str) -> None:
    await both.sql("queue_000", "DELETE FROM lease")
    await both.client.enqueue([{"topic": "held", "payload": 1}])
    [item] = await both.client.dequeue({"held": 1}, wait_s=10, lease_s=600)
    await both.healthy()
    await both.shards["queue_000"].connection.execute(damage)
    assert await both.kinds() == ["item_twice"]
    assert await both.mend() == 0
    await both.shards["queue_000"].connection.execute(undo)
    await both.client.ack([{"id": item.id, "lease_token": item.lease_token}])
    await both.healthy()
