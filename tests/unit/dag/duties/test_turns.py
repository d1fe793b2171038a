"""Turns: no tenant and no DAG waits for another's long work to end."""

from collections import Counter

from services.dag.duties.turns import Turns
from services.dag.store.duties import Waiting


def test_a_tenant_with_one_dag_is_not_behind_a_tenant_with_many() -> None:
    turns = Turns()
    waiting = [Waiting(no, "many") for no in range(100)] + [Waiting(1_000, "one")]
    for _ in range(5):
        assert 1_000 in turns.pick(waiting, 2, 0.0)


def test_tenants_come_by_turns_where_there_are_more_than_a_step_takes() -> None:
    turns = Turns()
    waiting = [Waiting(no, f"tenant {no}") for no in range(30)]
    picked = [no for _ in range(3) for no in turns.pick(waiting, 10, 0.0)]
    assert sorted(picked) == list(range(30))


def test_the_dags_of_a_tenant_come_by_turns() -> None:
    turns = Turns()
    waiting = [Waiting(no, "a") for no in range(12)]
    counts = Counter(no for _ in range(6) for no in turns.pick(waiting, 8, 0.0))
    assert set(counts.values()) == {4}


def test_one_that_failed_waits_longer_each_time_and_no_longer_than_a_bound() -> None:
    turns = Turns()
    waiting = [Waiting(1, "a"), Waiting(2, "a")]
    now_s, pauses = 0.0, []
    for _ in range(8):
        assert 1 in turns.pick(waiting, 8, now_s)
        turns.failed(1, now_s)
        begun_s = now_s
        while turns.pick(waiting, 8, now_s) == [2]:
            now_s += 1.0
        pauses.append(now_s - begun_s)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    turns.succeeded(1, 0.0)
    turns.failed(1, now_s)
    assert turns.pick(waiting, 8, now_s + 1.0) == [1, 2]


def test_nothing_is_remembered_of_what_has_no_work_left() -> None:
    turns = Turns()
    turns.pick([Waiting(no, f"tenant {no}") for no in range(100)], 100, 0.0)
    turns.failed(7, 0.0)
    assert turns.pick([], 8, 0.0) == []
    assert not turns._tenants
    assert not turns._dags
    assert not turns._failed
