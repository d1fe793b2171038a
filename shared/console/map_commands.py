"""Changes of the shard map from pages: `python -m shards`, run as a process beside this one.

The command is the same as an operator's: it holds the map's lock, says what it would do, and may be killed at any
moment and run again. So nothing here has to be kept: what this process knows of its commands is lost with it, and
the map is not. The audit log has who began one, and how it has ended where this process saw that. A target
server is named by a shard that lives there, so that no password goes through a page.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from shared.clock import Clock
from shared.console.audit_log import AuditLog, Begun
from shared.crash import crash_point
from shared.errors import ServiceError, Unavailable
from shared.ids import ShardNo
from shared.settings import EdgeSettings

_KEPT_MAX: Final = 20
# Processes at a time, those that only say what a command would do included: each is a program of its own.
_AT_ONCE_MAX: Final = 4
_LINES_MAX: Final = 200
_LINE_CHARS_MAX: Final = 500
_PLAN_S_MAX: Final = 20.0


class MapFixed(ServiceError):
    """The map is not for pages to change."""

    code, status, title = "map_fixed", 409, "The shard map is not changed from here"


@dataclass(slots=True)
class MapCommand:
    """One run of `python -m shards`. `planned` has only said what it would do."""

    id: str
    kind: str
    shard: ShardNo
    to: int | None
    state: str
    begun_at: datetime
    ended_at: datetime | None = None
    lines: list[str] = field(default_factory=list)


class MapCommands:
    """Runs commands on the map of one service, and remembers what the last ones said."""

    def __init__(self, service: str, settings: EdgeSettings, clock: Clock, audit_log: AuditLog) -> None:
        self._service = service
        self._audit_log = audit_log
        self._file = settings.shards_file
        self._is_on = settings.shard_commands
        self._clock = clock
        self._known: deque[MapCommand] = deque(maxlen=_KEPT_MAX)
        self._running: set[asyncio.Task[None]] = set()

    @property
    def enabled(self) -> bool:
        """Whether pages may change the map."""
        return self._is_on and self._file is not None

    async def plan(self, kind: str, shard: ShardNo, to: int | None) -> MapCommand:
        """What a command would do; nothing is changed.

        Raises:
            MapFixed
            Unavailable: a server that it has to ask does not answer in time, or too many commands are at work.
        """
        command = self._new(kind, shard, to, "planned")
        try:
            async with asyncio.timeout(_PLAN_S_MAX):
                await self._start(command, acts=False)
        except TimeoutError:
            raise Unavailable("the command has not said in time what it would do", retry_after_s=5.0) from None
        return command

    def begin(self, kind: str, shard: ShardNo, to: int | None, entry: Begun | None = None) -> MapCommand:
        """Let a command act; it goes on when this is answered. `entry` is ended with it.

        Raises:
            MapFixed
            Unavailable: too many commands are at work.
        """
        command = self._new(kind, shard, to, "running")
        self._start(command, acts=True, entry=entry)
        self._known.append(command)
        return command

    def known(self) -> list[dict[str, Any]]:
        """The last commands, newest first."""
        return [asdict(command) for command in reversed(self._known)]

    async def close(self) -> None:
        """Stop what runs; it is finished by running it again."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _new(self, kind: str, shard: ShardNo, to: int | None, state: str) -> MapCommand:
        if not self.enabled:
            variable = f"HEADGATE_{self._service.upper()}_SHARD"
            raise MapFixed(
                f"pages change a map that stands in a file ({variable}S_FILE) and where {variable}_COMMANDS=true "
                "allows it; `python -m shards` does the same"
            )
        return MapCommand(uuid.uuid4().hex, kind, shard, to, state, self._now())

    def _start(self, command: MapCommand, *, acts: bool, entry: Begun | None = None) -> asyncio.Task[None]:
        if len(self._running) >= _AT_ONCE_MAX:
            raise Unavailable(
                "other commands on the map are at work; try again when they have ended", retry_after_s=5.0
            )
        task = asyncio.create_task(self._run(command, acts=acts, entry=entry))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_s(), UTC)

    async def _run(self, command: MapCommand, *, acts: bool, entry: Begun | None) -> None:
        state = "failed"
        try:
            if not await self._code(command, acts=acts):
                state = "done" if acts else command.state
            if entry is not None:  # one that is stopped half-way leaves it, of unknown outcome
                crash_point("map_command_over")
                await self._audit_log.over(entry, failed=state == "failed")
        finally:
            command.state, command.ended_at = state, self._now()

    async def _code(self, command: MapCommand, *, acts: bool) -> int:
        try:
            return await self._said(command, acts=acts)
        except OSError as error:
            command.lines.append(f"it could not be started: {error.strerror or error}")
            return 1

    async def _said(self, command: MapCommand, *, acts: bool) -> int:
        """The exit code of a command, whose words are kept."""
        verb = {"rebalance": ["slots", "--rebalance"]}.get(command.kind, [command.kind, str(command.shard)])
        if command.to is not None:
            verb += ["--to-shard", str(command.to)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shards", "--service", self._service, "--map", str(self._file), *verb),
            *(["--yes"] if acts else []),
            # What the environment says of a map is not meant: the file is named.
            # Lines come as they are written, so that a refusal stands behind what was refused.
            env={
                **{name: value for name, value in os.environ.items() if "_SHARDS" not in name},
                "PYTHONUNBUFFERED": "1",
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                if len(command.lines) < _LINES_MAX:
                    command.lines.append(line.decode(errors="replace").rstrip()[:_LINE_CHARS_MAX])
            return await process.wait()
        except BaseException:
            with suppress(ProcessLookupError):  # it has just ended
                process.kill()
            raise
