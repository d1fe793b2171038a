"""Work of one large call, beside the event loop.

A step that goes through all that a large call brings would keep the loop, and every other call, for as long. Such
a step is Python over small parts, so in a thread it lets the loop go on every few milliseconds. There is one such
thread: with more of them the loop would wait for each in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-calls")


async def beside(is_large: bool, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What `work` returns or raises; where there `is_large` work to do it goes on while others do. It must not
    touch what others change meanwhile."""
    if not is_large:
        return work(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_thread, partial(work, *args, **kwargs))
