"""`python -m services.local` as a person runs it: a process, its output, its signals."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from services.local.process import tied_to_parent
from tests.support.ports import free_port

_READY_TIMEOUT_S = 120.0
_POLL_S = 0.02
# One schema of each service is made sooner than six.
SMALL = ("--queue-shards", "1", "--dag-shards", "1")
CHILDREN = ("postgres", "valkey", "queue", "dag")


@dataclass
class Launcher:
    """One data directory and four ports, on which the stack is started, killed and started again."""

    data_dir: Path
    queue_port: int = field(default_factory=free_port)
    dag_port: int = field(default_factory=free_port)
    postgres_port: int = field(default_factory=free_port)
    redis_port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    @property
    def queue_url(self) -> str:
        """Where the queue service answers."""
        return f"http://127.0.0.1:{self.queue_port}"

    @property
    def dag_url(self) -> str:
        """Where the DAG service answers."""
        return f"http://127.0.0.1:{self.dag_port}"

    async def launch(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start the launcher, without waiting for anything."""
        ours = {
            "HEADGATE_DATA_DIR": str(self.data_dir),
            "HEADGATE_QUEUE_PORT": str(self.queue_port),
            "HEADGATE_DAG_PORT": str(self.dag_port),
            "HEADGATE_PG_PORT": str(self.postgres_port),
            "HEADGATE_REDIS_PORT": str(self.redis_port),
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        return await asyncio.create_subprocess_exec(
            *tied_to_parent(signal.SIGTERM),
            sys.executable,
            "-m",
            "services.local",
            *arguments,
            env={**inherited, **ours},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def start(self, *arguments: str) -> str:
        """Start the stack; answer what it printed when it was ready."""
        self.process = await self.launch(*arguments)
        assert self.process.stdout is not None
        printed = ""
        async with asyncio.timeout(_READY_TIMEOUT_S):
            while "Ctrl-C" not in printed:
                line = (await self.process.stdout.readline()).decode()
                assert line, await self.errors()
                printed += line
        return printed

    async def fail(self, *arguments: str) -> tuple[int, str]:
        """Start a stack that cannot run; answer its exit code and what it wrote to stderr."""
        process = await self.launch(*arguments)
        async with asyncio.timeout(_READY_TIMEOUT_S):
            _, errors = await process.communicate()
        assert process.returncode is not None
        return process.returncode, errors.decode()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the launcher and wait for it; answer its exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(_READY_TIMEOUT_S):
            return await self.process.wait()

    async def errors(self) -> str:
        """What the launcher wrote to stderr, once it has ended."""
        assert self.process is not None and self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    def pid(self, child: str) -> int:
        """The pid of one of the launcher's children; 0 when it has none."""
        try:
            return int((self.data_dir / "run" / f"{child}.pid").read_text().split()[0])
        except (OSError, IndexError):
            return 0

    def pids(self) -> list[int]:
        """The pids of all four children."""
        return [self.pid(child) for child in CHILDREN]

    async def until_gone(self, pids: list[int]) -> None:
        """Wait until none of the processes runs."""
        async with asyncio.timeout(_READY_TIMEOUT_S):
            while any(is_running(pid) for pid in pids):
                await asyncio.sleep(_POLL_S)

    async def until_answered(self, method: str, url: str, body: object = None) -> httpx.Response:
        """Send a request again until it is answered with success."""
        async with asyncio.timeout(_READY_TIMEOUT_S), httpx.AsyncClient(timeout=5.0) as client:
            while True:
                try:
                    answer = await client.request(method, url, json=body)
                    if answer.is_success:
                        return answer
                except httpx.TransportError:
                    pass
                await asyncio.sleep(_POLL_S)


def is_running(pid: int) -> bool:
    """Whether the process is there and not a zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self").exists()
    except ProcessLookupError:
        return False
