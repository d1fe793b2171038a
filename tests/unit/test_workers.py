"""Workers of a run, and one that dies: whatever it had left, the run ends and each test has been run."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.workers import pytest_xdist_make_scheduler

TESTS = [f"tests/unit/test_{file}.py::test_{number}" for file in "abcdefg" for number in (1, 2, 3)]


class Node:
    """A worker as the scheduler knows it. Like a real one it runs a test when it knows of what comes next."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def at_work(self) -> bool:
        return len(self.given) > 1 or (self.shutting_down and bool(self.given))


class Run:
    """A run of so many workers."""

    def __init__(self, workers: int) -> None:
        options: dict[str, Any] = {"tx": [f"{workers}*popen"]}
        config: Any = SimpleNamespace(option=SimpleNamespace(loadscopereorder=True), getvalue=options.get)
        self.scheduler: Any = pytest_xdist_make_scheduler(config, SimpleNamespace(loadscopesched=lambda *_: None))
        self.nodes: list[Node] = []
        self.ran: list[str] = []
        for number in range(workers):
            self.begin(Node(f"gw{number}"))
        self.scheduler.schedule()

    def begin(self, node: Node) -> None:
        self.nodes.append(node)
        self.scheduler.add_node(node)
        self.scheduler.add_node_collection(node, TESTS)

    def step(self, node: Node) -> None:
        """It has run a test."""
        index = node.given.pop(0)
        self.ran.append(TESTS[index])
        self.scheduler.mark_test_complete(node, index)
        self.heard()

    def dies(self, node: Node) -> None:
        """Amid a test; another comes in its place."""
        self.nodes.remove(node)
        self.ran.append(self.scheduler.remove_node(node))
        self.heard()
        self.begin(Node("another"))
        self.scheduler.schedule()
        self.heard()

    def heard(self) -> None:
        """What a run does behind each word of a worker."""
        if self.scheduler.tests_finished:
            for node in self.nodes:
                node.shutdown()

    def to_its_end(self) -> None:
        while at_work := [node for node in self.nodes if node.at_work]:
            self.step(at_work[0])


@pytest.mark.parametrize("by_other", range(10))
@pytest.mark.parametrize("by_it", range(8))
def test_whenever_a_worker_dies_the_others_and_who_comes_for_it_run_all_that_is_left(
    by_it: int, by_other: int
) -> None:
    run = Run(2)
    it, other = run.nodes
    for node in [it] * by_it + [other] * by_other:
        run.step(node)
    run.dies(it)
    run.to_its_end()
    assert sorted(run.ran) == sorted(TESTS), "each, and once"
