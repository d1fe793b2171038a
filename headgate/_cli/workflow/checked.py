"""Which code `headgate workflow check` replays a run on: one function, or all of a module."""

from collections.abc import Callable, Mapping
from typing import Any

from headgate._app.app import App
from headgate._cli.workflow.code import function_named, module_named
from headgate._worker.worker import Worker
from headgate.errors import NotFound

Function = Callable[..., Any]


class Code:
    """The workflows to check. `types` are those whose open runs are read."""

    def __init__(self, named: str, function: str | None) -> None:
        """`named` is a type that `function` is the code of, or, without one, a module.

        Raises:
            Invalid, NotFound: there is no such function or module, or it has no workflow.
        """
        self._one = None if function is None else function_named(function)
        self._by_name = {} if function is not None else registered(named)
        self.types = (
            [named] if function is not None else sorted({name.partition("@")[0] for name in self._by_name})
        )

    def of(self, history: Mapping[str, Any]) -> Function | None:
        """What would run the run that has this history; None if it is for none of these workflows."""
        if self._one is not None:
            return self._one
        first: dict[str, Any] = next(iter(history["events"]), {})
        data = first.get("data") or {}
        pinned = "" if data.get("version") is None else f"@{data['version']}"
        return self._by_name.get(f"{data.get('type')}{pinned}")


def registered(module: str) -> dict[str, Function]:
    """The workflows of all workers and apps that a module has, by type, and as `type@version`.

    Raises:
        NotFound: there is no such module, or it has none.
    """
    found: dict[str, Function] = {}
    for each in vars(module_named(module)).values():
        worker = each.worker() if isinstance(each, App) else each
        if isinstance(worker, Worker):
            found |= worker.deciders.workflows
    if not found:
        raise NotFound(f"{module} has no worker and no app with a workflow; say of which type: TYPE {module}:NAME")
    return found
