"""Every example runs as the reader would run it, and the README shows the very code that ran."""

import asyncio
import graphlib
import json
import os
import re
import subprocess
import sys

import pytest

from examples import build_order
from examples.data import derive
from services.local.stack import ROOT, Stack

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")
PRINTS = {
    "quickstart": "succeeded 10",
    "build_order": "succeeded: 589 of 589 packages built",
    "video_upload": "succeeded: 62 nodes",
    "album": "failed: 9 pictures; then delete upload, drop scratch space",
    "fan_out": "succeeded: the index holds 20190 words",
    "unified": "succeeded: published, since ada approved",
}

PACKAGES = """\
Package: app
Installed-Size: 10
Pre-Depends: base (>= 1.0)
Depends: missing | mta, left:any, right (= 2)
Description: an application
 Depends: not-a-field

Package: left
Depends: right

Package: right
Installed-Size: 3
Depends: left, right, nowhere

Package: post-b
Provides: mta (= 1), other

Package: post-a
Provides: mta

Package: base

Package: unrelated
Depends: app
"""


@pytest.fixture
def begun(name: str, request: pytest.FixtureRequest) -> None:
    """The first that a reader runs begins as the reader's does."""
    if name == "quickstart":
        request.getfixturevalue("new_interpreters")


@pytest.mark.drawn(3)
@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("name", EXAMPLES)
async def test_example_runs_to_its_end(name: str, stack: Stack) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"examples.{name}",
        cwd=ROOT,
        env={**clean_environment(), "HEADGATE_NAMESPACE": f"example-{name}", **urls_of(stack)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(240):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()
    assert PRINTS[name] in output.decode()


def test_readme_shows_the_quickstart_as_it_runs() -> None:
    """All but the docstring."""
    code = (ROOT / "examples" / "quickstart.py").read_text().split('"""\n\n', maxsplit=1)[1]
    for page in ("README.md", "docs/quickstart.md"):
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
        assert code in blocks, f"{page} and examples/quickstart.py have come apart"


def test_shipped_graph_is_a_dag_that_a_package_of_its_name_ends() -> None:
    graph = build_order.load()
    keys = [node["key"] for node in graph["nodes"]]
    below: dict[str, set[str]] = {key: set() for key in keys}
    for dependency, dependent in graph["edges"]:
        below[dependent].add(dependency)
    assert len(keys) == len(below) and all(others <= below.keys() for others in below.values())
    assert list(graphlib.TopologicalSorter(below).static_order())[-1] == "digikam"
    assert graph["note"].startswith("digikam: Derived by examples/data/derive.py")


def test_derived_graph_is_the_closure_with_its_cycles_condensed() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "examples.data.derive", "app"],
        cwd=ROOT,
        input=PACKAGES,
        capture_output=True,
        text=True,
        check=True,
    )
    graph = json.loads(answer.stdout)
    assert {node["key"]: node["installed_kib"] for node in graph["nodes"]} == {
        "base": 0,
        "post-a": 0,
        "left, right": 3,
        "app": 10,
    }
    assert graph["edges"] == [["base", "app"], ["left, right", "app"], ["post-a", "app"]]


def test_key_of_a_large_cycle_stays_within_the_limit() -> None:
    names = [f"package-{number:03d}" for number in range(40)]
    assert derive.key_of(names) == "package-000 and 39 more"


def urls_of(stack: Stack) -> dict[str, str]:
    return {"HEADGATE_QUEUE_URL": stack.queue_url, "HEADGATE_DAG_URL": stack.dag_url}


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
