"""Plants mutations in copies of the tree and runs their tests, all on one Postgres and one Valkey."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from services.local.stack import ROOT
from tests.mutations.model import Mutation
from tests.support.servers import postgres, valkey

# A test that cannot end is no test: what nothing sees within this time counts as missed.
TIME_S_MAX = 240
_PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-n",
    "0",
    "-x",
    "--no-header",
    "--tb=no",
    "-rfE",
    "-p",
    "no:cacheprovider",
)
_PASSED, _FAILED = 0, 1


@dataclass(frozen=True)
class Outcome:
    """`seen_by`: the first test that failed, None where none did; `how` is what it said, or why none did."""

    mutation: Mutation
    seen_by: str | None
    how: str
    took_s: float


async def run(mutations: Iterable[Mutation], jobs: int, tell: Callable[[Outcome], None]) -> list[Outcome]:
    """Try each mutation, `jobs` at a time; `tell` hears of each as it ends."""
    with tempfile.TemporaryDirectory(prefix="headgate-mutations-") as directory:
        async with postgres() as dsn, valkey() as redis_url:
            servers = {"HEADGATE_TEST_POSTGRES_DSN": dsn, "HEADGATE_TEST_REDIS_URL": redis_url}
            trees: asyncio.Queue[Path] = asyncio.Queue()
            for number in range(jobs):
                trees.put_nowait(copy_of_the_tree(Path(directory) / str(number)))

            async def attempt(mutation: Mutation) -> Outcome:
                tree = await trees.get()
                try:
                    outcome = await _attempt(mutation, tree, servers)
                finally:
                    trees.put_nowait(tree)
                tell(outcome)
                return outcome

            return await asyncio.gather(*map(attempt, mutations))


def copy_of_the_tree(tree: Path) -> Path:
    """The files that git knows, as they are now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


async def _attempt(mutation: Mutation, tree: Path, servers: Mapping[str, str]) -> Outcome:
    before = mutation.plant(tree)
    began_s = time.monotonic()
    try:
        code, output = await _pytest(mutation.tests, tree, servers)
    except TimeoutError:
        return Outcome(mutation, None, f"no test failed within {TIME_S_MAX} s", time.monotonic() - began_s)
    finally:
        (tree / mutation.path).write_text(before)
    took_s = time.monotonic() - began_s
    test, how = _told(output)
    if code == _FAILED and test is not None:
        return Outcome(mutation, test, how, took_s)
    return Outcome(mutation, None, "all passed" if code == _PASSED else output.strip()[-500:], took_s)


def _told(output: str) -> tuple[str | None, str]:
    """The test that failed, and what it said. What could not even begin says nothing of the guard; what a fixture
    asserts when a test has ended does."""
    for line in output.splitlines():
        kind, _, told = line.partition(" ")
        test, _, how = told.partition(" - ")
        if kind == "FAILED" or (kind == "ERROR" and how.startswith("AssertionError")):
            return test.removeprefix("tests/"), how
    return None, ""


async def _pytest(tests: Iterable[str], tree: Path, servers: Mapping[str, str]) -> tuple[int, str]:
    """The exit code of pytest, and what it said.

    Raises:
        TimeoutError: it was killed, with all that it had started.
    """
    process = await asyncio.create_subprocess_exec(
        *_PYTEST,
        *(f"tests/{test}" for test in tests),
        cwd=tree,
        env={
            **os.environ,
            "PYTHONPATH": str(tree),
            "COLUMNS": "200",
            **servers,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), TIME_S_MAX)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return process.returncode or 0, output.decode()
