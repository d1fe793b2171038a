"""The data directory: one launcher at a time, and what it remembers between runs."""

import fcntl
import json
import os
import secrets
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from services.local.errors import LocalError
from services.local.process import stop_leftover

SHARDS_MAX: Final = 4096


class DataDir:
    """A directory that this launcher holds alone.

    postgres/     the cluster
    run/          logs and pid files
    layout.json   how many shards it was made with
    dag.token     the dag service's secret, readable by its owner only
    lock          held by the launcher; the kernel lets go of it however the launcher ends
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.postgres = self.path / "postgres"
        self.run = self.path / "run"
        self._lock_fd: int | None = None

    def acquire(self) -> None:
        """Take the directory; raise LocalError when another launcher has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LocalError(f"data directory {self.path}: {error.strerror}; set HEADGATE_DATA_DIR") from error
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(lock_fd, 20).decode(errors="replace").strip()
            os.close(lock_fd)
            raise LocalError(
                f"data directory {self.path} is in use by process {holder or '?'}: "
                "stop it, or set HEADGATE_DATA_DIR to another directory"
            ) from error
        self._lock_fd = lock_fd
        os.ftruncate(lock_fd, 0)
        os.write(lock_fd, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let go of the directory."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    async def stop_leftovers(self) -> None:
        """Stop what a killed launcher left running here, services before servers."""
        for pid_path in sorted(self.run.glob("*.pid"), key=lambda path: path.stem in ("postgres", "valkey")):
            await stop_leftover(
                pid_path, stop_signal=signal.SIGINT if pid_path.stem == "postgres" else signal.SIGTERM
            )

    def forget(self) -> None:
        """Delete what a stack keeps here, and nothing else."""
        for directory in (self.run, self.postgres):
            shutil.rmtree(directory, ignore_errors=True)
        for name in ("layout.json", "dag.token"):
            (self.path / name).unlink(missing_ok=True)

    def layout(self, wanted: dict[str, int | None], defaults: dict[str, int]) -> dict[str, int]:
        """How many shards of each service there are; the first call decides it for good.

        Raises LocalError when the directory has another number than the one wanted: keys and items would be looked
        for on the wrong shards.
        """
        path = self.path / "layout.json"
        if not path.exists():
            counts = {service: wanted[service] or defaults[service] for service in defaults}
            _write_atomically(path, json.dumps(counts) + "\n", mode=0o644)
            return counts
        found = _counts(path, defaults)
        for service, count in wanted.items():
            if count is not None and count != found[service]:
                raise LocalError(
                    f"{self.path} has {found[service]} {service} shards, not {count}: "
                    f"start with --fresh to delete its data, or set HEADGATE_DATA_DIR to another directory"
                )
        return found

    def dag_token(self) -> str:
        """The dag service's secret; made once."""
        path = self.path / "dag.token"
        if not path.exists():
            _write_atomically(path, secrets.token_urlsafe(32), mode=0o600)
        token = path.read_text(errors="replace").strip()
        if not (token.isascii() and token.isprintable() and token):
            raise LocalError(f"{path} holds no token: delete it, and a new one is made")
        return token


def _counts(path: Path, services: Iterable[str]) -> dict[str, int]:
    """What `layout.json` says. A damaged one is never guessed: items would be looked for on the wrong shards."""
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError):
        found = None
    counts = found if isinstance(found, dict) else {}
    numbers = [counts.get(service) for service in services]
    if not all(isinstance(number, int) and 1 <= number <= SHARDS_MAX for number in numbers):
        example = ", ".join(f'"{service}": N' for service in services)
        raise LocalError(
            f"{path} is damaged: write {{{example}}} into it, with the numbers of shards that its data has, "
            "or start with --fresh to delete the data"
        )
    return counts


def _write_atomically(path: Path, text: str, *, mode: int) -> None:
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    file_descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(file_descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
