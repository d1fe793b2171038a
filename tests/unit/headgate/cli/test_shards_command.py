"""`headgate shards --dag`: numbers in columns, not objects in cells."""

import json

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service

SHARD = {
    "shard": 1,
    "owner": "d1",
    "dags": {"running": 5, "succeeded": 7},
    "nodes": {"released": 3, "succeeded": 18},
    "ack_lag_s": 0.25,
}


def test_dag_shards_are_a_table_of_numbers(service: Service, run: Run) -> None:
    service.reply = lambda *_: {"items": [SHARD], "next_cursor": None}
    code, out, _ = run("shards", "--dag")
    head, row = (line.split() for line in out.splitlines())
    assert code == 0
    assert dict(zip(head, row, strict=True)) == {
        "SHARD": "1",
        "STATE": "healthy",
        "OWNER": "d1",
        "DAGS_RUNNING": "5",
        "NODES_BLOCKED": "0",
        "NODES_RELEASED": "3",
        "OUTBOX": "0",
        "ACK_LAG_S": "0.25",
        "RELEASE_LAG_S": "-",
    }
    [told] = json.loads(run("shards", "--dag", "-o", "json")[1])
    assert told["dags"] == SHARD["dags"] and "dags_running" not in told
