"""Shell commands, each in a process group of its own, and what they leave behind.

Of a command's output the end is kept, however much there is. A command is over when its shell is; children that it
left in the background go on until `close`, and what they write is read and dropped.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from typing import Final, NamedTuple

TAIL_CHARS_MAX: Final = 2_000
TAIL_BYTES_MAX: Final = 4 * TAIL_CHARS_MAX
CHUNK_BYTES: Final = 64 * 1024
# What a pipe of the system may hold.
PIPE_BYTES_MAX: Final = 1024 * 1024
GRACE_S: Final = 5.0
_LOOK_S: Final = 0.05


class Ended(NamedTuple):
    """How a command ended, and the end of what it wrote."""

    code: int
    tail: str


class _Output:
    """The reading end of what a group of processes writes to."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._tail = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reading, self._read)
        self._is_open = True

    def take(self) -> str:
        """The end of what was written until now; what comes later is dropped."""
        for _ in range(PIPE_BYTES_MAX // CHUNK_BYTES):
            if not self._read():
                break
        text = self._tail.decode(errors="replace")[-TAIL_CHARS_MAX:]
        self._tail.clear()
        return text

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._reading)
            os.close(self._reading)

    def _read(self) -> bool:
        """Take in one chunk; whether there was one."""
        if not self._is_open:
            return False
        try:
            chunk = os.read(self._reading, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
            return False
        self._tail += chunk
        del self._tail[:-TAIL_BYTES_MAX]
        return True


class Shell:
    """Runs commands. `close` ends what they have left running."""

    def __init__(self, *, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._left: dict[int, _Output] = {}

    async def run(self, command: str, variables: Mapping[str, str]) -> Ended:
        """Run a command to its end. When this is cancelled, so is it: SIGTERM, after some time SIGKILL."""
        output = _Output()
        try:
            process = await asyncio.create_subprocess_shell(
                command,
                env={**os.environ, **variables},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.writing,
                stderr=output.writing,
                start_new_session=True,
            )
        except BaseException:
            output.close()
            raise
        finally:
            os.close(output.writing)
        try:
            code = await process.wait()
        except BaseException:
            await self._end({process.pid: output}, process)
            raise
        tail = output.take()
        if _is_there(process.pid):
            self._left[process.pid] = output
        else:
            output.close()
        return Ended(code, tail)

    async def close(self) -> None:
        """End what commands have left in the background."""
        left, self._left = self._left, {}
        await self._end(left)

    async def _end(self, groups: dict[int, _Output], process: asyncio.subprocess.Process | None = None) -> None:
        """Ask groups of processes to end, and see to it."""
        try:
            for group in groups:
                _signal(group, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._grace_s):
                    if process is not None:
                        await process.wait()  # until then its group is there
                    while any(map(_is_there, groups)):  # noqa: ASYNC110 (nobody tells when a group has ended)
                        await asyncio.sleep(_LOOK_S)
        finally:
            for group, output in groups.items():
                _signal(group, signal.SIGKILL)
                output.close()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _is_there(group: int) -> bool:
    """Whether a process of the group runs still."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
