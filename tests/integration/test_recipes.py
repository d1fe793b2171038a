"""The recipes run as they stand, and name every method of the SDK."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from headgate import Client, DagHandle
from services.local.stack import ROOT, Stack

PAGE = (ROOT / "docs" / "recipes.md").read_text()
RECIPES = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
SECTIONS = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)


def code_of(kind: str) -> str:
    found = re.search(rf"```python {kind}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(code, str(Path("docs/recipes.md")), "exec"), names)
    return names


def test_every_section_but_the_table_has_a_recipe() -> None:
    assert list(RECIPES) == [name for name in SECTIONS if name != "Every verb"]


@pytest.mark.parametrize("name", RECIPES)
async def test_recipe_runs(name: str, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_QUEUE_URL", stack.queue_url)
    monkeypatch.setenv("HEADGATE_DAG_URL", stack.dag_url)
    monkeypatch.setenv("HEADGATE_NAMESPACE", f"recipe-{list(RECIPES).index(name)}")
    worker = run(code_of("worker"))["worker"]
    working = asyncio.create_task(worker.run(signals=False))
    try:
        async with asyncio.timeout(60):
            await asyncio.to_thread(run, code_of("first") + RECIPES[name])
    finally:
        worker.stop()
        await working


def test_the_table_names_every_method() -> None:
    table = PAGE.partition("## Every verb")[2]
    methods = [name for kind in (Client, DagHandle) for name in vars(kind) if not name.startswith("_")]
    beside = {"close", "dag", "expand"}  # of a client: no verbs of a service; a job's expand is there too
    assert [name for name in methods if name not in beside and not re.search(rf"\b{name}\b", table)] == []
