"""What a process cannot start without is said in a line."""

from collections.abc import Callable
from typing import Any

import pytest

from services.dag.app import create_app as create_dags
from services.dag.settings import DagSettings
from services.queue.app import create_app as create_queue
from services.queue.settings import QueueSettings
from shared.errors import ShardUnavailable
from shared.http.serve import starting_in_a_line

NOWHERE = "postgresql://postgres@127.0.0.1:1/none#1"


@pytest.mark.parametrize("service", ["queue", "dag"])
async def test_shards_that_went_away_while_it_started_are_a_line_and_no_traceback(service: str) -> None:
    made: dict[str, Callable[[], Any]] = {
        "queue": lambda: create_queue(QueueSettings(shards=NOWHERE)),
        "dag": lambda: create_dags(DagSettings(shards=NOWHERE)),
    }
    app = starting_in_a_line(made[service]())
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    with pytest.raises(ShardUnavailable):
        await app({"type": "lifespan", "state": {}}, receive, send)
    assert told == [{"type": "lifespan.startup.failed", "message": "it cannot start: no shard can be reached"}]
