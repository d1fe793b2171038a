"""What a run of whole rooms draws: the same in each of its workers, and everything in time."""

import ast
from pathlib import Path

from tests.support.seeds import drawn, resting, slow_tests

ROOT = Path(__file__).resolve().parents[2]

FORMS = [f"tests/a.py::test_it[{name}]" for name in ("worker", "queue", "dag", "postgres")]


def test_workers_draw_the_same_whatever_order_they_collect_in() -> None:
    assert drawn(FORMS, 2, 7) == drawn(FORMS[::-1], 2, 7)
    assert all(len(drawn(FORMS, count, 7)) == min(count, 4) for count in range(1, 7))


def test_each_form_comes_in_its_turn() -> None:
    assert set().union(*(drawn(FORMS, 1, seed) for seed in range(40))) == set(FORMS)


def test_each_slow_test_is_there() -> None:
    found = set()
    for file in {test.partition("::")[0] for test in slow_tests()}:
        tree = ast.parse((ROOT / file).read_text())
        made = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        found.update(f"{file}::{name}" for name in made)
    assert not set(slow_tests()) - found, f"not there any more: {sorted(set(slow_tests()) - found)}"


def test_of_five_slow_tests_that_take_about_as_long_one_runs_and_each_in_its_turn() -> None:
    slow = [f"tests/a.py::test_{number}" for number in range(12)]
    ran = [set(slow) - resting(slow, seed) for seed in range(40)]
    assert {tuple(sorted(slow.index(test) // 5 for test in each)) for each in ran} == {(0, 1, 2)}
    assert set().union(*ran) == set(slow)
