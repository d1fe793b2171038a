"""Updates: signals whose senders wait for what code answers.

A handler has the signals of its name, each in a task of its own, in their order. What it returns or raises is the
answer: a record, like whatever else code asks for. What nobody handles, and somebody receives, is answered then.
"""

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from typing import Any, Final, Literal

from headgate._error_text import name_of, said_by
from headgate.workflow.commands import Place, canonical
from headgate.workflow.errors import Refused
from headgate.workflow.lines import raised_at, text_of
from headgate.workflow.loop import WorkflowLoop
from headgate.workflow.mailbox import Told

Handler = Callable[[Any], Any]
Validator = Callable[[Any], Any]
# What a command holds, and what of it is compared where that is not all.
Text = tuple[str, str | None]

_REJECTED_CHARS_MAX: Final = 1_000


def answered(told: Told, state: Literal["done", "failed", "rejected"], **outcome: Any) -> Text:
    """An answer, as its command says it.

    Raises:
        TypeError: it has no JSON form.
    """
    said = {"id": told.id, "state": state, **{name: value for name, value in outcome.items() if value is not None}}
    return canonical(said, "what the handler returned"), None


class Updates:
    """A run's handlers. `refused` is what a handler did that a workflow may not."""

    def __init__(self, loop: WorkflowLoop, answer: Callable[[Told, str, str | None, Place], None]) -> None:
        self.refused: Refused | None = None
        self._loop = loop
        self._answer = answer
        self._handlers: dict[str, tuple[Handler, Validator | None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, name: str, handler: Handler, validator: Validator | None) -> None:
        """Raises ValueError where the name has a handler."""
        if name in self._handlers:
            raise ValueError(f"updates of the name {name!r} have a handler already")
        self._handlers[name] = handler, validator

    def handles(self, name: str) -> bool:
        return name in self._handlers

    def begin(self, told: Told) -> None:
        """Its handler runs, in what is left of this event."""
        self._tasks = [task for task in self._tasks if not task.done()]
        # As the run's first task: whatever context it is told in differs by process.
        self._tasks.append(
            self._loop.create_task(self._handle(told), name=told.key, context=contextvars.Context())
        )

    async def done(self) -> None:
        """Until no handler runs."""
        while tasks := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(tasks)

    async def _handle(self, told: Told) -> None:
        handler, validator = self._handlers[told.name]
        place: Place = None
        try:
            refusal = _refusal(told, validator)
            if refusal is None:
                output = handler(told.data)
                text, compared = answered(
                    told, "done", output=await output if inspect.isawaitable(output) else output
                )
            else:
                text, compared = refusal
        except Refused as error:
            self.refused = error
            return
        except BaseException as error:
            if self._loop.stopped:
                raise  # by which the handler of a run that goes on elsewhere is closed
            text, _ = answered(told, "failed", error=text_of(error))
            # Only the kind is compared: its text may hold lines and addresses.
            compared, place = f"failed {name_of(error)}", raised_at(error)
        self._answer(told, text, compared, place)


def _refusal(told: Told, validator: Validator | None) -> Text | None:
    """What the validator says against it."""
    if validator is None:
        return None
    try:
        validator(told.data)
    except Refused:
        raise
    except BaseException as error:
        why = said_by(error)[:_REJECTED_CHARS_MAX]
        return answered(told, "rejected", error=why)[0], f"rejected {name_of(error)}"
    return None
