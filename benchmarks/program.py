"""Programs of the benchmark in processes of their own: an argument says what to do, they answer a line of JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import PeerFailed

ROOT = Path(__file__).parents[1]


async def run_program(module: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a program answers.

    Raises:
        PeerFailed: it has ended otherwise.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, json.dumps(asked), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise PeerFailed(f"{module} ended with {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found
