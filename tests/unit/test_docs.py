"""The pages say what the code says: settings with their defaults, links that lead somewhere."""

import ast
import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from services.dag.settings import DagSettings
from services.local.stack import ROOT
from services.queue.settings import QueueSettings

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
SERVICES = {QueueSettings: "HEADGATE_QUEUE_", DagSettings: "HEADGATE_DAG_"}


@pytest.mark.parametrize("settings", SERVICES)
def test_every_setting_stands_in_operations_with_its_default(settings: type[BaseSettings]) -> None:
    missing = []
    for name, field in settings.model_fields.items():
        variable = field.validation_alias or f"{SERVICES[settings]}{name.upper()}"
        if not re.search(
            rf"^\|.*`{variable}`[^|]*\| {re.escape(_shown(field.default))} \|", OPERATIONS, re.MULTILINE
        ):
            missing.append(f"{variable} = {_shown(field.default)}")
    assert missing == []


@pytest.mark.parametrize("settings", SERVICES)
def test_every_setting_is_read_somewhere(settings: type[BaseSettings]) -> None:
    paths = [path for folder in ("services", "shared") for path in (ROOT / folder).rglob("*.py")]
    code = "\n".join(path.read_text() for path in paths)
    read = set(re.findall(r"(?:settings|bounds|self)(?=\.(\w+))", code))
    assert [name for name in settings.model_fields if name not in read] == []


def test_operations_names_no_variable_that_nothing_reads() -> None:
    known = {f"{SERVICES[settings]}{name.upper()}" for settings in SERVICES for name in settings.model_fields}
    folders = ("services", "shared", "headgate", "tests/support")
    code = "\n".join(path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    named = set(re.findall(r"\bHEADGATE_[A-Z_]+[A-Z]\b", OPERATIONS))
    assert {name for name in named if name not in known and f'"{name}"' not in code} == set()


def test_links_lead_somewhere() -> None:
    nowhere = []
    for page in PAGES:
        targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        local = [target for target in targets if not re.match(r"[a-z]+:", target)]
        nowhere += [f"{page.relative_to(ROOT)}: {each}" for each in local if not (page.parent / each).exists()]
    assert nowhere == []


def _shown(default: object) -> str:
    """A default as the table has it."""
    if default in (None, ""):
        return "none"
    return str(int(default) if isinstance(default, float) and default.is_integer() else default)


@pytest.mark.parametrize(("letter", "count"), [("Q", 21), ("D", 17), ("R", 41), ("F", 45), ("B", 71), ("W", 33)])
def test_every_test_that_the_tables_name_is_there(letter: str, count: int) -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    rows = [row for row in page.splitlines() if re.match(rf"\| {letter}\d+[-, {letter}\d]* \|", row)]
    numbers: list[int] = []
    for row in rows:
        found = list(map(int, re.findall(r"\d+", row.split("|")[1])))
        numbers += range(found[0], found[1] + 1) if " - " in row.split("|")[1] else found
    assert sorted(set(numbers)) == list(range(1, count + 1))
    missing = []
    for row in rows:
        files = [ROOT / "tests" / name for name in re.findall(r"`([a-z0-9_/]+\.py)`", row)]
        files = [
            path if path.exists() else ROOT / "tests" / "integration" / path.relative_to(ROOT / "tests")
            for path in files
        ]
        code = "".join(path.read_text() for path in files if path.exists())
        missing += [path.name for path in files if not path.exists()]
        missing += [name for name in re.findall(r"`(test_\w+)\*?`", row) if f"def {name}" not in code]
        assert files or "no test: " in row
    assert missing == []


def test_every_crash_point_is_died_at() -> None:
    """Some test names each place where a process may be told to kill itself."""
    folders = ("services", "shared", "shards")
    code = "\n".join(path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    points = re.findall(r'crash_point\(f?"(\w+)', code)
    assert len(points) > 20
    assert [point for point in points if f'"{point}' not in tests] == []


def test_the_walks_lead_through_the_code() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    walks = text[text.index("## Three walks") : text.index("## Who imports whom")]
    places = re.findall(r"`([\w/]+\.(?:py|sql))(?::([\w.]+))?`", walks)
    assert len(places) > 20
    lost = []
    for file, names in places:
        if file.endswith(".sql"):
            lost += [] if (ROOT / file).exists() else [file]
            continue
        within: list[ast.stmt] = ast.parse((ROOT / file).read_text()).body
        for name in names.split("."):
            kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            found = [node for node in within if isinstance(node, kinds) and node.name == name]
            if not found:
                lost.append(f"{file}:{names}")
                break
            within = found[0].body
    assert lost == []


def test_the_index_has_every_decision() -> None:
    folder = ROOT / "docs" / "adr"
    listed = re.findall(r"^\| \d+ \| \[[^]]+\]\(([\w.-]+)\)", (folder / "README.md").read_text(), re.MULTILINE)
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))


PARITY = sorted(path for path in (ROOT / "docs" / "parity").glob("*.md") if path.stem != "workflows")


@pytest.mark.parametrize("page", PARITY, ids=lambda page: page.stem)
def test_each_feature_of_a_parity_page_is_shown_by_a_test(page: Path) -> None:
    text = page.read_text()
    rows = [row for row in text.splitlines() if row.startswith("| ") and not row.startswith("| feature |")]
    assert rows and "\n## Missing\n" in text
    for row in rows:
        named = re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", row)
        assert named, f"no test shows {row}"
        for name, target in named:
            assert f"def {name}(" in (page.parent / target).read_text(), f"{target} has no {name}"


def test_each_system_has_its_parity_page() -> None:
    index = (ROOT / "docs" / "parity" / "workflows.md").read_text()
    assert re.findall(r"\]\(([a-z-]+)\.md\)", index) == [
        "cws", "swf", "cadence", "temporal", "durable-functions", "step-functions",
    ]  # fmt: skip
