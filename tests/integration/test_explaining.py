"""A node's life as both services tell it together, over HTTP."""

import asyncio

from headgate import AsyncClient
from tests.support.apps import Service


async def test_a_retry_takes_away_the_dead_item_that_it_supersedes(
    queue_service: Service, dag_service: Service
) -> None:
    async with AsyncClient(queue_url=queue_service.url, dag_url=dag_service.url) as client:
        made = await client.create_dag({"key": "mended", "nodes": [{"key": "a", "topic": "mended"}]})
        handle = client.dag(made.id)
        [leased] = await client.dequeue({"mended": 1}, wait_s=10)
        await client.nack([{"id": leased.id, "lease_token": leased.lease_token, "final": True, "error": "boom"}])
        assert (await handle.wait(20)).state == "failed"
        [group] = await client.dead("mended")
        assert (group.count, group.managed) == (1, 1)
        assert group.dag is not None and (group.dag.id, group.dag.node) == (made.id, "a")
        await handle.retry()
        [again] = await client.dequeue({"mended": 1}, wait_s=10)
        await client.ack([again.ack()])
        assert (await handle.wait(20)).state == "succeeded"
        async with asyncio.timeout(30):
            while await client.dead("mended"):
                await asyncio.sleep(0.05)


async def test_a_node_that_fails_twice_tells_of_each_delivery(
    queue_service: Service, dag_service: Service
) -> None:
    async with AsyncClient(queue_url=queue_service.url, dag_url=dag_service.url) as client:
        made = await client.create_dag(
            {
                "key": "told",
                "nodes": [
                    {"key": "a", "topic": "told", "max_attempts": 2},
                    {"key": "b", "topic": "told", "upstream": ["a"]},
                    {"key": "c", "topic": "told", "external": ["x"]},
                ],
            }
        )
        handle = client.dag(made.id)
        [leased] = await client.dequeue({"told": 1}, wait_s=10)
        frontier = await handle.frontier()
        assert {node.key: node.standing for node in frontier.items} == {"a": "running", "c": "kept"}
        [running] = [node for node in frontier.items if node.key == "a"]
        assert running.attempt == 1 and running.lease_expires_at is not None
        assert frontier.longest_chain is not None and frontier.longest_chain.keys == ["a", "b"]
        for error in ("no room", "gave up"):
            nack = {"id": leased.id, "lease_token": leased.lease_token, "error": error}
            await client.nack([nack])  # type: ignore[list-item]
            if error == "no room":
                [leased] = await client.dequeue({"told": 1}, wait_s=10)
        await handle.resolve("c", "x")
        [last] = await client.dequeue({"told": 1}, wait_s=10)
        await client.ack([last.ack()])
        assert (await handle.wait(20)).state == "failed"
        told = (await handle.timeline("a")).attempts
        assert [(a.attempt, a.outcome, a.error) for a in told] == [
            (1, "failed", "no room"),
            (2, "dead", "gave up"),
        ]
        assert all(
            a.started_at is not None and a.ended_at is not None and a.started_at <= a.ended_at for a in told
        )
        assert [(a.attempt, a.outcome) for a in (await handle.timeline("c")).attempts] == [(1, "acked")]
