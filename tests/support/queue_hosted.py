"""The real queue, in this process and on a clock that tests move, as the DAG service sees it."""

import json
from collections.abc import Sequence
from typing import Any

from services.dag.queue_client import Answer, Attempt, Completion, Standing
from tests.support.queue_host import Api, QueueHost


class HostedQueue:
    """Implements `services.dag.queue_client.Queue`; `taken` counts completions."""

    def __init__(self, host: QueueHost) -> None:
        self._host = host
        self.taken = 0

    def api(self, namespace: str) -> Api:
        """The queue's verbs, with the DAG service's rights."""
        return Api(self._host).as_dag_service(namespace)

    async def enqueue(self, namespace: str, items: Sequence[str]) -> list[Answer]:
        return _answers(await self.api(namespace).results("enqueue", {"items": list(map(json.loads, items))}))

    async def revive(self, namespace: str, items: Sequence[tuple[str, str | None]]) -> list[Answer]:
        bodies = [{"id": i} if given is None else {"id": i, "inputs": json.loads(given)} for i, given in items]
        return _answers(await self.api(namespace).results("revive", {"items": bodies}))

    async def cancel(self, namespace: str, item_ids: Sequence[str]) -> list[Answer]:
        return _answers(await self.api(namespace).results("cancel", {"ids": list(item_ids)}))

    async def take(self, topic: str, count: int, *, wait_s: float, lease_s: float) -> list[Completion]:
        leased = await self.api("_dag").dequeue(topic, count, lease_s=lease_s)
        self.taken += len(leased)
        return [Completion(i["id"], i["lease_token"], i["attempt"], i["payload"]) for i in leased]

    async def done(self, completions: Sequence[Completion]) -> None:
        items = [{"id": c.id, "lease_token": c.token} for c in completions]
        await self.api("_dag").results("ack", {"items": items})

    async def put_back(
        self, completions: Sequence[Completion], *, delay_s: float, error: str, final: bool
    ) -> None:
        raise AssertionError(f"a completion could not be applied: {error}")

    async def standings(self, namespace: str, item_ids: Sequence[str]) -> dict[str, Standing]:
        return {}

    async def attempts(self, namespace: str, item_id: str) -> list[Attempt]:
        return []

    async def shards(self) -> list[int]:
        return list(self._host.stores)

    async def close(self) -> None:
        return None


def _answers(results: list[dict[str, Any]]) -> list[Answer]:
    return [Answer(result["status"], result.get("code")) for result in results]
