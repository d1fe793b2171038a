"""Ports for the tests' servers: no two workers of a run are ever given the same one."""

import itertools
import os
import random

from services.local.ports import is_free

# Below what programs choose for themselves (`services.local.ports.free_port`), in a part for each worker.
_FIRST, _PER_WORKER, _WORKERS_MAX = 10_000, 1_250, 8
_TRIES_MAX = 200
_REFUSED_BY_BROWSERS = 10_080
# Of servers and processes that are stopped and started again: beside tests, where nobody takes their place.
_LASTING = range(20_000, 32_000)
_lasting: set[int] = set()

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS_MAX
# Somewhere within it, for the sake of other runs on this machine.
_offsets = itertools.count(random.randrange(_PER_WORKER))


def free_port() -> int:
    """A port that is free now, and that this process has not been given lately."""
    for offset in itertools.islice(_offsets, _TRIES_MAX):
        port = _FIRST + _worker * _PER_WORKER + offset % _PER_WORKER
        if port != _REFUSED_BY_BROWSERS and is_free(port):
            return port
    raise AssertionError(f"none of {_TRIES_MAX} ports is free")


def lasting_port() -> int:
    """A port of one's own, also while nobody listens on it: of so many that two runs hardly choose the same."""
    for port in random.sample(_LASTING, _TRIES_MAX):
        if port not in _lasting and is_free(port):
            _lasting.add(port)
            return port
    raise AssertionError(f"none of {_TRIES_MAX} ports is free")
