"""Habits of this code that a test can see. Where one is in the way, the code is what changes."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("headgate", "server", "services", "shared", "migrations", "shards", "audit")
EVERYTHING = (*PRODUCT, "tests", "examples", "benchmarks")

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
ROOM_MODULES_MAX = 18
BUCKET_NAMES = {"util", "utils", "common", "helper", "helpers", "misc", "manager", "managers", "crud"}

# Who reads the wall clock or sleeps for itself cannot be tested without waiting.
TIME_CALLS = {"time.time", "time.sleep", "datetime.now", "datetime.utcnow", "asyncio.sleep"}
# `pg` pauses between two tries of a conflicting transaction, for milliseconds.
MAY_TELL_TIME = (
    "shared/clock.py",
    "shared/loop.py",
    "shared/postgres/connections.py",
    "shared/admission/delay.py",
    "headgate/",
    "services/local/",
)


def python_files(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from `def` on; its docstring and the functions inside it are not counted."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    inner = {line for node in functions(function) if node is not function for line in span(node)}
    return len(set(span(function)) - inner - set(span(first) if documented else ()))


def span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@pytest.mark.parametrize("package", EVERYTHING)
def test_files_and_functions_stay_short(package: str) -> None:
    too_long = []
    for path in python_files(package):
        text = text_of(path)
        if (lines := text.count("\n")) > FILE_LINES_MAX:
            too_long.append(f"{name_of(path)}: {lines} lines")
        too_long += [
            f"{name_of(path)}:{function.lineno} {function.name}: {lines} lines"
            for function in functions(parsed(path))
            if len(span(function)) > FUNCTION_LINES_MAX
            if (lines := code_lines(function)) > FUNCTION_LINES_MAX
        ]
    assert too_long == []


def test_no_module_is_a_bucket() -> None:
    buckets = [name_of(path) for path in python_files(*EVERYTHING) if path.stem.strip("_") in BUCKET_NAMES]
    assert buckets == []


def test_time_is_told_in_one_place() -> None:
    found = []
    for path in python_files(*PRODUCT):
        if not name_of(path).startswith(MAY_TELL_TIME):
            found += [
                f"{name_of(path)}:{node.lineno} {called}"
                for node in ast.walk(parsed(path))
                if isinstance(node, ast.Call) and (called := ast.unparse(node.func)) in TIME_CALLS
            ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    modules = [path for path in python_files(*PRODUCT, "tests/support") if text_of(path).strip()]
    assert [name_of(path) for path in modules if ast.get_docstring(parsed(path)) is None] == []


def test_public_names_of_the_services_say_what_they_do() -> None:
    silent = []
    for path in python_files("services", "shared", "migrations", "shards"):
        # A revision's functions are alembic's; an error's name and code are its explanation.
        if "versions" not in path.parts and path.name != "errors.py":
            silent += [
                f"{name_of(path)}:{node.lineno} {node.name}"
                for node in parsed(path).body
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                if not node.name.startswith("_") and ast.get_docstring(node) is None
            ]
    assert silent == []


@pytest.mark.parametrize("service", ["queue", "dag"])
def test_every_statement_is_used_and_names_no_schema(service: str) -> None:
    used = {word for path in python_files(f"services/{service}") for word in re.findall(r"\w+", text_of(path))}
    blocks: list[str] = []
    for path in sorted((ROOT / "services" / service / "store" / "sql").glob("*.sql")):
        text = path.read_text()
        assert text.count("\n") <= FILE_LINES_MAX, name_of(path)
        assert not re.search(r"\b(queue|dag)_(\d{3}|%)", text), name_of(path)
        blocks += re.findall(r"^-- name: (\w+)", text, re.MULTILINE)
    assert blocks
    assert len(blocks) == len(set(blocks))
    assert [block for block in blocks if block not in used] == []


def test_a_todo_names_what_it_waits_for() -> None:
    loose = [
        f"{name_of(path)}:{number}"
        for path in python_files(*EVERYTHING)
        if path != Path(__file__)
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if re.search(r"#.*\b(TODO|FIXME|XXX)\b(?!\(#\d+\))", line)
    ]
    assert loose == []


# `headgate` names its public modules; what `headgate.wire` imports is all that it has.
ROOMS = {path.parent for path in python_files("services", "shared", "headgate")} - {
    ROOT / "headgate",
    ROOT / "headgate/wire",
}


@pytest.mark.parametrize("room", sorted(ROOMS), ids=name_of)
def test_a_room_names_its_modules(room: Path) -> None:
    says = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    inside = {path.stem for path in room.glob("*.py")} | {path.parent.name for path in room.glob("*/__init__.py")}
    silent = {"__init__", "__main__", "app", "settings", "model", "errors"}
    assert {name for name in inside - silent if not re.search(rf"\b{name}\b", says)} == set()


def test_a_room_is_no_larger_than_can_be_looked_over() -> None:
    counts = {name_of(room): sum(path.stem != "__init__" for path in room.glob("*.py")) for room in ROOMS}
    assert {name: count for name, count in counts.items() if count > ROOM_MODULES_MAX} == {}


@pytest.mark.parametrize("package", ["services/queue", "services/dag", "shared"])
def test_a_class_has_a_name_of_its_own_in_its_package(package: str) -> None:
    names = Counter(
        node.name
        for path in python_files(package)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_the_public_modules_of_the_sdk_are_those_that_its_docstring_names() -> None:
    import headgate

    found = {path.stem for path in (ROOT / "headgate").iterdir() if path.suffix == ".py" or path.is_dir()}
    public = {f"headgate.{name}" for name in found if not name.startswith("_")}
    assert public == set(re.findall(r"`(headgate\.\w+)`", str(headgate.__doc__)))
