"""The audit tells what only a person can put right, and leaves it as it is."""

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


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
async def test_a_dag_that_ended_before_its_nodes_is_found(both: Both, state: str) -> None:
    dag = await both.make({"a": [], "b": ["a"]})
    await both.sql("dag_000", "UPDATE dag SET state = $1, finished_at = shard_now()", state)
    assert "dag_ended_early" in await both.kinds()
    assert await both.mend() == 0  # what is right is for a person to say
    await both.sql("dag_000", "UPDATE dag SET state = 'running', finished_at = NULL")
    await both.run("a", "b")
    assert await both.ended(dag) == "succeeded"
    await both.healthy()


async def test_a_run_whose_dag_has_ended_without_its_code_is_found(both: Both) -> None:
    dag = await both.make({"a": []})
    await both.run("a")
    assert await both.ended(dag) == "succeeded"
    row = "SELECT no, 'default', id, 'w', 'order', 0, 'running', '' FROM dag"
    columns = "dag_no, namespace, dag_id, workflow_id, type, priority, state, secret_hash"
    await both.sql("dag_000", f"INSERT INTO run ({columns}) {row}")
    assert await both.kinds() == ["dag_ended_early"]
    await both.sql("dag_000", "DELETE FROM run")
    await both.healthy()
