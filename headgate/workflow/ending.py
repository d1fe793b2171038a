"""How a run's code has ended."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from headgate._error_text import is_of, name_of
from headgate.workflow.commands import Command, canonical
from headgate.workflow.context import ContinueAsNew
from headgate.workflow.errors import Nondeterministic, Refused
from headgate.workflow.lines import last_line, raised_at, text_of


def check_ended_task(error: SystemExit | KeyboardInterrupt) -> None:
    """Returns where it is the code's own and has ended its task; raises a Ctrl-C again, which Python tells to the
    main thread alone."""
    if is_of(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error


def end_of(function: Callable[..., Any], main: "asyncio.Task[Any]", told: int) -> Command:
    """The end that the code has come to at event `told`.

    Raises:
        Nondeterministic: it asked for what no workflow may do.
    """
    place = function.__code__, function.__code__.co_firstlineno
    if main.cancelled():
        return Command("end", "", canonical({"state": "cancelled"}), told, place)
    error = main.exception()
    if error is None:
        try:
            text = canonical({"state": "succeeded", "output": main.result()}, "what the workflow returned")
            return Command("end", "", text, told, place)
        except TypeError as unfit:
            error = unfit
    if is_of(error, ContinueAsNew):
        return Command("end", "", error.input, told, place)
    if is_of(error, Refused):
        raise Nondeterministic(f"{error} ({last_line(error)})") from error
    text = canonical({"state": "failed", "error": text_of(error)})
    # Only the kind is compared: its text may hold lines and addresses.
    return Command("end", "", text, told, raised_at(error) or place, f"failed {name_of(error)}")
