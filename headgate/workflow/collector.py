"""The garbage collector of the process, while histories are replayed."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """What waits in a run is no garbage. A long history makes so much of it that the collector, which looks at all
    of it whenever it has grown by a quarter, would take a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
