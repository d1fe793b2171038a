"""Many calls as one: what is ready of a function with `batch=` is gathered, and handed to it as one list.

Each job waits for the call that its elements are in. A call that raises fails all of its jobs; a list of
results, as long as the list of elements, gives each job its own, and an exception in it fails that job alone.
A call all of whose jobs are cancelled is cancelled, too; while one of them is not it goes on.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgate._app.failures import Raised, ended_by, text_of
from headgate._app.typed import shown
from headgate._error_text import is_of
from headgate._worker.job import Job
from headgate.errors import Fail, Retry

if TYPE_CHECKING:
    from headgate._app.function import JobFunction
    from headgate._app.running import Runner


@dataclass(slots=True, eq=False)
class _Waiting:
    job: Job
    elements: list[Any]
    result: asyncio.Future[Any]
    tries: bool
    # The call that it is in, and those that are in it with it.
    call: asyncio.Task[None] | None = None
    together: "list[_Waiting]" = field(default_factory=list)


class Batches:
    """The jobs of one function, gathered. One call at a time for each of its slots."""

    def __init__(self, runner: "Runner", function: "JobFunction[..., Any, ..., Any]") -> None:
        self._runner = runner
        self._function = function
        assert function.settings.batch is not None
        self._size = function.settings.batch
        self._wait_s = function.settings.batch_wait_s
        self._free = asyncio.Semaphore(function.settings.slots)
        self._waiting: list[_Waiting] = []
        self._gathering: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def result(self, job: Job, arguments: Mapping[str, Any], *, one: bool, tries: bool) -> Any:
        """The result of one job: of its only element, or a list."""
        ((name, elements),) = arguments.items()
        waiting = _Waiting(job, list(elements), asyncio.get_running_loop().create_future(), tries)
        self._waiting.append(waiting)
        if self._gathering is None or self._gathering.done():
            self._gathering = asyncio.create_task(self._gather(name))
        try:
            found = await waiting.result
        except asyncio.CancelledError:
            if waiting.call is not None and all(each.result.cancelled() for each in waiting.together):
                waiting.call.cancel()
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        return found[0] if one and found is not None else found

    async def _gather(self, name: str) -> None:
        while self._waiting:
            if sum(len(waiting.elements) for waiting in self._waiting) < self._size:
                await asyncio.sleep(self._wait_s)
            await self._free.acquire()
            taken = self._taken()
            if not taken:
                self._free.release()
                continue
            call = asyncio.create_task(self._call(name, taken))
            for waiting in taken:
                waiting.call, waiting.together = call, taken
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    def _taken(self) -> list[_Waiting]:
        """The first jobs whose elements fill one call; one with more than a call takes has its own."""
        taken: list[_Waiting] = []
        count = 0
        while self._waiting and (not taken or count + len(self._waiting[0].elements) <= self._size):
            taken.append(self._waiting.pop(0))
            count += len(taken[-1].elements)
        return taken

    async def _call(self, name: str, taken: list[_Waiting]) -> None:
        elements = [element for waiting in taken for element in waiting.elements]
        try:
            found = await self._runner.called(
                taken[0].job, self._function, self._function.function, {name: elements}, tries=True
            )
            self._tell(taken, found, len(elements))
        except BaseException as error:
            # Who waits still was not cancelled: the function has cancelled itself.
            for waiting in taken:
                _fail(waiting, error if is_of(error, Retry, Fail) else ended_by(error, tries=waiting.tries))
        finally:
            self._free.release()

    def _tell(self, taken: list[_Waiting], found: Any, count: int) -> None:
        if found is None:
            for waiting in taken:
                if not waiting.result.done():
                    waiting.result.set_result(None)
            return
        if not isinstance(found, (list, tuple)) or len(found) != count:
            text = text_of(
                TypeError(
                    f"{self._function.name} was called with {count} elements and returned {shown(found)[:80]}: "
                    "with batch= it returns None, or a list with a result for each of them"
                )
            )
            raise Fail(text)
        start = 0
        for waiting in taken:
            own = list(found[start : start + len(waiting.elements)])
            start += len(waiting.elements)
            failure = next((one for one in own if is_of(one, Exception)), None)
            if failure is not None:
                _fail(waiting, failure if is_of(failure, Retry) else ended_by(failure, tries=waiting.tries))
            elif not waiting.result.done():
                waiting.result.set_result(own)


def _fail(waiting: _Waiting, error: BaseException) -> None:
    if waiting.result.done():
        return
    if is_of(error, Raised) and not waiting.tries:
        error = Fail(str(error))
    waiting.result.set_exception(error)
