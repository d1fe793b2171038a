"""Real shell commands: what they write, what they leave behind, and how they are ended."""

import asyncio
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from headgate._cli.dag.shell import TAIL_CHARS_MAX, Shell

END_S = 20.0


def is_running(pid: int) -> bool:
    """Whether a process is there and no mere record of one that nobody has asked about."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> None:
    ends_at = time.monotonic() + END_S
    while is_running(pid):
        assert time.monotonic() < ends_at, "it runs still"
        time.sleep(0.005)


async def written(path: Path) -> int:
    """The number that a command has written into a file by now."""
    async with asyncio.timeout(END_S):
        while not (path.exists() and path.read_text().endswith("\n")):
            await asyncio.sleep(0.005)
    return int(path.read_text())


async def test_a_command_ends_with_its_code_and_what_it_wrote() -> None:
    shell = Shell()
    assert await shell.run("echo $GREETING; echo oops >&2; exit 3", {"GREETING": "hello"}) == (3, "hello\noops\n")
    assert await shell.run("cat", {}) == (0, ""), "there is nothing to read"


async def test_of_much_output_the_end_is_kept_and_no_more() -> None:
    """600 MB of a command that talks were 600 MB of this process."""
    tracemalloc.start()
    ended = await Shell().run("head -c 60000000 /dev/zero | tr '\\0' x; echo the end", {})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ended.code == 0
    assert ended.tail.endswith("xxxthe end\n") and len(ended.tail) == TAIL_CHARS_MAX
    assert most < 4_000_000


async def test_a_child_in_the_background_does_not_hold_the_command_and_ends_with_the_run() -> None:
    shell = Shell()
    async with asyncio.timeout(END_S):
        ended = await shell.run("sleep 600 & echo $!", {})
        pid = int(ended.tail)
        assert is_running(pid), "what was started on purpose serves the commands that follow"
        assert (await shell.run("echo more", {})).tail == "more\n"
        await shell.close()
    gone(pid)


async def test_a_child_in_the_background_may_go_on_writing(tmp_path: Path) -> None:
    """A pipe that nobody reads would stop it, one that is closed would end it."""
    shell, done = Shell(), tmp_path / "done"
    script = f"(sleep 0.05; head -c 3000000 /dev/zero; echo 1 > {done}) & echo first"
    assert (await shell.run(script, {})).tail == "first\n"
    await written(done)
    await shell.close()


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_cancelled_command_ends_with_all_its_children(tmp_path: Path, stubborn: bool) -> None:
    child, trap = tmp_path / "child", "trap '' TERM;" if stubborn else ""
    running = asyncio.create_task(
        Shell(grace_s=0.2 if stubborn else END_S).run(f"{trap} sleep 600 & echo $! > {child}; wait; sleep 600", {})
    )
    pid = await written(child)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, END_S)
    gone(pid)


async def test_a_second_cancel_does_not_wait(tmp_path: Path) -> None:
    child = tmp_path / "child"
    running = asyncio.create_task(
        Shell(grace_s=3_600).run(f"trap '' TERM; sleep 600 & echo $! > {child}; wait", {})
    )
    pid = await written(child)
    running.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, END_S)
    gone(pid)


async def test_nothing_stays_open() -> None:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    shell = Shell()
    await asyncio.gather(*(shell.run("sleep 600 & echo x", {}) for _ in range(3)))
    await shell.close()
    assert set(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
