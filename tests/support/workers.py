"""Several workers run the tests (pytest-xdist), each with servers of its own: hooks for the suite's conftest.

A file is a unit of work, so what its tests share is made once. Files that start many processes are long, and slow
each other down: one worker runs them, beginning with the first test, while the others run the rest.
"""

import os
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Most tests wait for a server half of the time.
_WORKERS_PER_PROCESSOR = 1.5
_WORKERS_MAX = 6

_INTEGRATION = "tests/integration/"
_WORLDS = "tests/worlds/test_worlds.py"
_WITH_PROCESSES = {
    _INTEGRATION + name
    for name in (
        "dag/test_crash_points.py",
        "dag/test_streams_over_http.py",
        "failover/test_failover_under_load.py",
        "failover/test_sick_under_load.py",
        "test_benchmarks.py",
        "test_demo.py",
        "test_examples.py",
        "test_fleet.py",
        "test_kill9.py",
        "test_local_stack.py",
        "test_wheels.py",
        "workflows/test_killed_workflows.py",
    )
} | {"tests/worlds/test_processes.py"}


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as the machine carries; for one file, or a few tests, none."""
    if all(Path(argument.partition("::")[0]).is_file() for argument in config.args):
        return 0
    return min(round(len(os.sched_getaffinity(0)) * _WORKERS_PER_PROCESSOR), _WORKERS_MAX)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what takes longest."""
    items.sort(key=lambda item: _unit_of(item.nodeid) != _INTEGRATION)


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


def _unit_of(nodeid: str) -> str:
    """Of random worlds each part: workers share them."""
    file = nodeid.partition("::")[0]
    if file == _WORLDS:
        return nodeid
    return _INTEGRATION if file in _WITH_PROCESSES else file
