"""Several workers run the tests (pytest-xdist), each with servers of its own: hooks for the suite's conftest.

A file is a unit of work, so what its tests share is made once. Files that start many processes are long: they are
joined to a few units, which begin with the first test, while the other workers run the rest.
"""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support.seeds import leave_out

# Most tests wait for a server half of the time.
_WORKERS_PER_PROCESSOR = 2
_WORKERS_MAX = 6

# Fixtures with processes that keep processors busy while they are idle.
_BUSY = ("sites", "stack")
_UNIT = Path(__file__).resolve().parents[1] / "unit"
_WORLDS = "tests/worlds/test_worlds.py"
# Who shares the stack is in one unit, or each worker would keep a stack running to the end.
_WITH_PROCESSES = {
    "on the shared stack": (
        "tests/integration/app/",
        "tests/integration/test_benchmarks.py",
        "tests/integration/test_examples.py",
        "tests/integration/test_kill9.py",
        "tests/integration/test_recipes.py",
        "tests/integration/workflows/",
    ),
    "faults of servers under load": (
        "tests/integration/failover/test_failover_under_load.py",
        "tests/integration/failover/test_sick_under_load.py",
    ),
    "on stacks of their own": (
        "tests/integration/bounds/test_large.py",
        "tests/integration/test_demo.py",
        "tests/integration/test_fleet.py",
        "tests/integration/test_local_stack.py",
        "tests/integration/test_upgrade.py",
        "tests/integration/test_wheels.py",
        "tests/worlds/test_processes.py",
    ),
    "services of their own": (
        "tests/integration/dag/test_crash_points.py",
        "tests/integration/dag/test_streams_over_http.py",
        "tests/integration/queue/test_operation_races.py",
    ),
}
_UNITS = {place: unit for unit, places in _WITH_PROCESSES.items() for place in places}


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as the machine carries; for one file, or a few tests, none. Unit tests wait for nobody."""
    asked = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    if all(path.is_file() for path in asked):
        return 0
    processors = len(os.sched_getaffinity(0))
    waits = not all(path.is_relative_to(_UNIT) for path in asked)
    return min(processors * _WORKERS_PER_PROCESSOR if waits else processors, _WORKERS_MAX)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not drawn, and put first what takes longest: a unit that begins last ends alone."""
    leave_out(config, items)
    items.sort(key=lambda item: (_unit_of(item.nodeid) not in _WITH_PROCESSES, _file_of(item.nodeid) != _WORLDS))


def pytest_collection() -> None:
    """Look for no garbage while tests are collected: what is made stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was collected, thousands of tests and their modules, out of later collections of garbage."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Function, nextitem: pytest.Function | None) -> Iterator[None]:
    """Stop the shared stack, and sites of benchmarks, when the next test does without them."""
    yield
    for name in _BUSY:
        if name in item.fixturenames and (nextitem is None or name not in nextitem.fixturenames):
            for made in item._fixtureinfo.name2fixturedefs[name]:
                made.finish(item._request)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Hand out units in the order of collection."""
    config.option.loadscopereorder = False
    return _Units(config, log)


class _Units(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _unit_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Give the tests of a worker that died to the others, but for the one that it died of, which has failed.

        The scheduler's own way gives units back whose tests are all done; who gets such a unit waits for ever.
        """
        left: dict[str, dict[str, bool]] = {}
        died_of = None
        for unit, tests in self.assigned_work.pop(node).items():
            for test, is_done in tests.items():
                if is_done:
                    continue
                if died_of is None:
                    died_of = test
                else:
                    left.setdefault(unit, {})[test] = False
        self.workqueue.update(left)
        for other in self.assigned_work:
            self._reschedule(other)
        return died_of

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker two tests at least: it begins one when it knows of the next, or that there is none.

        The scheduler sees to that as a run begins; who comes for a worker that died has as much to know.
        """
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)


def _unit_of(nodeid: str) -> str:
    """Of random worlds each part: workers share them."""
    file = _file_of(nodeid)
    if file == _WORLDS:
        return nodeid
    folder = file.rpartition("/")[0] + "/"
    return _UNITS.get(file) or _UNITS.get(folder, file)


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
