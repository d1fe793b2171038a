"""What can be seen of a workflow's text that will not replay: a look before the first test.

It reads the functions that are decorated with `.workflow(...)` or take a `Workflow`, and those of the same file
that they call. What is given to `wf.run` may do as it likes.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_CLOCK: Final = "reads the clock; take wf.now()"
_CHANCE: Final = "draws chance that differs on replay; take wf.random or wf.uuid()"
_OUTSIDE: Final = "reaches outside; do that in a step, await wf.run(...), or in a task"
_THREAD: Final = "starts what the workflow's loop does not run; do that in a step, await wf.run(...)"
_SET: Final = "goes through a set, whose order differs by process; take sorted(...), or a list"

# By what a dotted name begins with; the longest that fits decides, None allows.
_NAMES: Final[dict[str, str | None]] = {
    "time.": _CLOCK,
    "time.sleep": "holds the worker; await wf.sleep(...)",
    "time.strftime": None,
    "time.strptime": None,
    "datetime.datetime.now": _CLOCK,
    "datetime.datetime.utcnow": _CLOCK,
    "datetime.datetime.today": _CLOCK,
    "datetime.date.today": _CLOCK,
    "random.": _CHANCE,
    "random.Random": None,
    "numpy.random.": _CHANCE,
    "secrets.": _CHANCE,
    "uuid.uuid1": _CHANCE,
    "uuid.uuid4": _CHANCE,
    "os.": _OUTSIDE,
    "os.path.": None,
    "os.urandom": _CHANCE,
    "os.fspath": None,
    "open": _OUTSIDE,
    "input": _OUTSIDE,
    "io.open": _OUTSIDE,
    "socket.": _OUTSIDE,
    "urllib.request.": _OUTSIDE,
    "requests.": _OUTSIDE,
    "httpx.": _OUTSIDE,
    "aiohttp.": _OUTSIDE,
    "shutil.": _OUTSIDE,
    "tempfile.": _OUTSIDE,
    "subprocess.": _THREAD,
    "threading.": _THREAD,
    "multiprocessing.": _THREAD,
    "concurrent.futures.": _THREAD,
    "asyncio.run": _THREAD,
    "asyncio.to_thread": _THREAD,
    "asyncio.run_coroutine_threadsafe": _THREAD,
    "asyncio.create_subprocess_": _THREAD,
    "asyncio.open_connection": _OUTSIDE,
    "asyncio.start_server": _OUTSIDE,
    "asyncio.wait_for": "differs by Python's version; write `async with asyncio.timeout(seconds)`",
    "asyncio.as_completed": "takes coroutines in the order of addresses; take wf.as_completed([...])",
    "asyncio.all_tasks": "answers a set of this process's tasks; keep your own list",
    "id": "differs by process",
    "hash": "differs by process",
}
_METHODS: Final = {
    "read_text": _OUTSIDE,
    "read_bytes": _OUTSIDE,
    "write_text": _OUTSIDE,
    "write_bytes": _OUTSIDE,
    "run_in_executor": _THREAD,
}
_AWAITED: Final = frozenset(
    {"call", "fork", "join", "run", "dag", "child", "start", "signal", "sleep", "until", "receive", "updates_done"}
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    path: str
    line: int
    function: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.function}: {self.what}"


def lint_file(path: Path) -> list[Finding]:
    """What is found in a file.

    Raises:
        ValueError: it is not Python.
    """
    try:
        return lint(path.read_text(), str(path))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not Python: {error}") from None


def lint(text: str, path: str = "<text>") -> list[Finding]:
    """What is found in a text, by line."""
    tree = ast.parse(text)
    names = _imported(tree)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, Function)}
    todo = [function for function in functions.values() if _is_workflow(function)]
    seen: set[str] = set()
    found: set[Finding] = set()
    while todo:
        function = todo.pop()
        if function.name in seen:
            continue
        seen.add(function.name)
        for node in _own_nodes(function):
            found |= {Finding(path, node.lineno, function.name, what) for what in _faults(node, names, functions)}
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
                todo.append(functions[node.func.id])
    return sorted(found)


def workflows_in(text: str) -> list[str]:
    """The names of the workflows that a file has."""
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, Function) and _is_workflow(node)]


def _imported(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                found[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _is_workflow(function: Function) -> bool:
    decorators = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    if any(isinstance(each, ast.Attribute) and each.attr == "workflow" for each in decorators):
        return True
    first = next(iter((*function.args.posonlyargs, *function.args.args)), None)
    if first is None or first.annotation is None:
        return False
    return ast.unparse(first.annotation).strip("'\"").rpartition(".")[2] == "Workflow"


def _own_nodes(function: Function) -> Iterator[ast.expr | ast.stmt]:
    """Statements and expressions of a body, without what is given to `wf.run`."""
    todo: list[ast.AST] = list(reversed(function.body))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.expr | ast.stmt):
            yield node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "run":
            todo += [each for each in node.args if not isinstance(each, ast.Lambda)]
            continue
        todo += reversed(list(ast.iter_child_nodes(node)))


def _faults(node: ast.AST, names: dict[str, str], functions: dict[str, Function]) -> Iterator[str]:
    match node:
        case ast.Call():
            yield from _called(node, names, functions)
        case ast.Attribute() if _dotted(node, names) == "os.environ":
            yield f"os.environ {_OUTSIDE}"
        case ast.For(iter=iterated) if _is_set(iterated, names):
            yield f"for {_SET}"
        case ast.ListComp() | ast.DictComp() | ast.GeneratorExp():
            if any(_is_set(each.iter, names) for each in node.generators):
                yield f"a comprehension {_SET}"
        case ast.Starred(value=value) if _is_set(value, names):
            yield f"* {_SET}"
        case ast.Global():
            yield f"global {', '.join(node.names)} is another's in each process; keep state in the workflow"
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="wf"), attr=attr))) if attr in _AWAITED:
            yield f"wf.{attr}(...) is not awaited, so it does nothing"


def _called(node: ast.Call, names: dict[str, str], functions: dict[str, Function]) -> Iterator[str]:
    name = _dotted(node.func, names)
    if name is None:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            yield f".{node.func.attr}(...) {_METHODS[node.func.attr]}"
        return
    if name in ("list", "tuple", "enumerate", "map", "zip", "iter", "next") and any(
        _is_set(each, names) for each in node.args
    ):
        yield f"{name}(...) {_SET}"
    last = name.rpartition(".")[2]
    fitting = [
        start for start in _NAMES if name == start or (start.endswith((".", "_")) and name.startswith(start))
    ]
    what = _NAMES[max(fitting, key=len)] if fitting and name not in functions else None
    if name == "random.Random" and not node.args:
        what = _CHANCE
    if what is not None:
        yield f"{name}(...) {what}"
    elif last in _METHODS:
        yield f"{name}(...) {_METHODS[last]}"


def _dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    """The full name of what is called, as far as imports tell."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value, names)
        return None if inner is None else f"{inner}.{node.attr}"
    return None


def _is_set(node: ast.expr, names: dict[str, str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return isinstance(node, ast.Call) and _dotted(node.func, names) in ("set", "frozenset")
