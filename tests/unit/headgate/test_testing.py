"""Jobs for tests of handlers: they carry what the test gives, and reach nothing."""

import pytest

from headgate import Dag, HeadgateError, Job, Node
from headgate.testing import job


def test_a_handler_is_called_with_what_the_test_gives() -> None:
    def handler(job: Job) -> int:
        return len(job.payload.split()) + sum(job.inputs.values()) + job.attempt

    assert handler(job("count", "to be", inputs={"a": 10}, attempt=2)) == 14
    assert job().dag is None
    assert job(node="n").dag is not None


async def test_children_of_a_node_are_there_to_be_looked_at() -> None:
    tested = job(node="scan")
    await tested.expand([Node("a", "t")])
    dag = Dag()
    dag.node("c", "t", after=[dag.node("b", "t")])
    added = await tested.expand(dag)
    assert [node.key for node in tested.expanded] == ["a", "b", "c"]
    assert [each.key for each in added] == ["b", "c"]
    with pytest.raises(ValueError, match="belongs to no DAG"):
        await job().expand([])


async def test_nothing_else_is_sent_anywhere() -> None:
    with pytest.raises(HeadgateError, match="give it a client"):
        await job().client.topics()
    with pytest.raises(HeadgateError, match="give it a client"):
        job().blocking_client.topics()
