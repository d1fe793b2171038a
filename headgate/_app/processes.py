"""`headgate worker module:app`: what it names, and the files that it is made of."""

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from headgate._app.app import App
from headgate._worker.worker import Worker

_SKIPPED: Final = {".git", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache"}


def loaded(target: str) -> App | Worker:
    """What `module:name` names; the module is looked for in the working directory first.

    Raises:
        ValueError: there is no such module or name, or it is neither an app nor a worker.
    """
    module_name, _, name = target.partition(":")
    if not module_name:
        raise ValueError(f"{target!r} names no module; say module:app, as in `headgate worker media:app`")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"there is no module {module_name!r} in {here}, nor is one installed") from None
    found: Any = module
    for part in (name or "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App | Worker):
        apps = [key for key, value in vars(module).items() if isinstance(value, App | Worker)]
        hint = f"; {module_name} has {', '.join(apps)}" if apps else ""
        raise ValueError(f"{target!r} is neither an App nor a Worker{hint}")
    return found


def chosen(target: str, options: Mapping[str, Any], namespace: str | None) -> App | Worker:
    """What the target names, for these options of the command.

    Raises:
        ValueError: it takes no such options, has no such functions, or is of another namespace.
    """
    found = loaded(target)
    if namespace is not None and found.namespace != namespace:
        raise ValueError(
            f"{target} is of namespace {found.namespace!r}, by its code; leave out `-n {namespace}`, or the name "
            "of the namespace in the code"
        )
    if isinstance(found, App):
        found.check_names(options.get("only"))
    elif options:
        raise ValueError(
            f"{target} is a Worker, which has its own options; --only, --drain and --lease are for an App"
        )
    return found


def run_here(target: str, options: Mapping[str, Any], namespace: str | None = None) -> None:
    """Work in this process until a signal."""
    found = chosen(target, options, namespace)
    worker = found.worker(**options) if isinstance(found, App) else found
    worker.main()


def sources(folder: Path) -> dict[Path, int]:
    """The Python files below a folder, and when each was changed."""
    found: dict[Path, int] = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        for path in _python(root, files):
            try:
                found[path] = path.stat().st_mtime_ns
            except OSError:
                continue  # it has just gone
    return found


def _python(root: str, files: Iterable[str]) -> list[Path]:
    return [Path(root) / name for name in files if name.endswith(".py")]
