"""One look wakes the duties of a shard: nothing left to do is passed over, nobody is woken for nothing."""

from typing import Any

import pytest

from services.dag.duties.duty_poll import DutyPoll
from services.dag.duties.sweeper import TALLY_ROWS_MIN
from tests.support.dag_world import DagWorld

NO = 999 << 22
DAG = "INSERT INTO dag (id, namespace, open, held, on_failure, deadline_at) SELECT gen_random_uuid(), 'x', true, "
OUTBOX = f"INSERT INTO outbox SELECT {NO}, 1, 'revive', gen_random_uuid(), NULL, shard_now(), shard_now() + "
EXTERNAL = "INSERT INTO external (dag_no, node_key, name, declared, deadline_at) SELECT 999, 'k', 'x', true, "
TIMER = f"INSERT INTO timer SELECT {NO}, 1, shard_now(), shard_now() + "
SLOT = """INSERT INTO schedule (namespace, id, spec, action, plan, overlap, catchup_s, jitter_s, paused, look_at)
SELECT 'x', 's', '', '', '', 'skip', 10, 0, false, shard_now() + """
WAITING = "INSERT INTO waiting_slot (schedule_no, kind, at, overlap) SELECT 9, 'slot', shard_now(), 'skip'"
TALLY = "INSERT INTO tally (state, dags, succeeded, failed, skipped, cancelled) SELECT 'failed', 0, 0, 0, 0, 0 "
LEFT = {
    "an overdue row": (OUTBOX + "interval '-1 s'", {"outbox"}),
    "a row that is not due": (OUTBOX + "interval '1 h'", set()),
    "edges to flip": (f"INSERT INTO spread VALUES ({NO}, 1)", {"walks"}),
    "a walk over a DAG": ("INSERT INTO scan VALUES (999, 'cancel', 0)", {"walks"}),
    "a retry": ("INSERT INTO reopening VALUES (999, 'named', '{}', '{}', false, '{}', 0, 0)", {"walks"}),
    "a stopped add": (f"INSERT INTO adding VALUES ({NO}, {NO}, shard_now() - interval '1 h')", {"sweep"}),
    "an add under way": (f"INSERT INTO adding VALUES ({NO}, {NO})", set()),
    "a deadline of a DAG": (DAG + "false, 'continue', shard_now() - interval '1 s'", {"sweep"}),
    "one to come": (DAG + "false, 'continue', shard_now() + interval '1 h'", set()),
    "a deadline of an external": (EXTERNAL + "shard_now() - interval '1 s'", {"sweep"}),
    "one of an external to come": (EXTERNAL + "shard_now() + interval '1 h'", set()),
    "a timer that is due": (TIMER + "interval '-1 s'", {"timers"}),
    "one that is soon": (TIMER + "interval '1 s'", {"timers"}),
    "one that is not": (TIMER + "interval '1 h'", set()),
    "a slot that is due": (SLOT + "interval '-1 s'", {"slots"}),
    "one that is not yet": (SLOT + "interval '1 h'", set()),
    "a slot that waits": (WAITING, {"slots"}),
    "totals to fold": (TALLY + f"FROM generate_series(1, {TALLY_ROWS_MIN})", {"sweep"}),
    "few totals": (TALLY + f"FROM generate_series(2, {TALLY_ROWS_MIN})", set()),
}


class Duty:
    """Stands for a loop."""

    def __init__(self) -> None:
        self.was_kicked = False

    def kick(self) -> None:
        self.was_kicked = True


@pytest.mark.parametrize(("sql", "woken"), LEFT.values(), ids=LEFT)
async def test_what_is_left_to_do_wakes_whose_duty_it_is(world: DagWorld, sql: str, woken: set[str]) -> None:
    duties: dict[str, Any] = {name: Duty() for name in ("outbox", "walks", "sweep", "timers", "slots")}
    connection = await world.connect()
    try:
        await connection.execute("TRUNCATE tally")
        await connection.execute(sql)
        await DutyPoll(world.duties.context, world.shard, duties).step()
    finally:
        await connection.execute("TRUNCATE outbox, spread, scan, reopening, adding, external, tally")
        await connection.execute("DELETE FROM dag")
        await connection.close()
    assert {name for name, duty in duties.items() if duty.was_kicked} == woken


async def test_a_look_wakes_the_loops_of_its_shard(world: DagWorld) -> None:
    """By name: a duty that the look does not know would wait for its own pause."""
    names = [loop.name for loop in (*world.loops._others, *world.loops._walks.values())]
    for shard in world.duties.context.shards:
        assert {f"{name} {shard.number}" for name in ("duty_poll", "outbox", "sweeper", "walks")} <= set(names)
