"""Child processes: their ends, what they said, and those that an earlier launcher has left."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.local import process
from services.local.errors import LocalError
from services.local.process import Child, Command, run_to_end, stop_leftover, telling_log_line

WAITS = "import signal, time; print('ready', flush=True); time.sleep(600)"
STUBBORN = WAITS.replace("; print", "; signal.signal(signal.SIGTERM, signal.SIG_IGN); print")


def child(tmp_path: Path, code: str, **more: float) -> Child:
    command = Command("helper", [sys.executable, "-c", code], **more)  # type: ignore[arg-type]
    return Child(command, log_path=tmp_path / "helper.log", pid_path=tmp_path / "helper.pid")


async def until_ready(made: Child) -> None:
    async with asyncio.timeout(20):
        while "ready" not in (made.log_path.read_text() if made.log_path.exists() else ""):
            await asyncio.sleep(0.01)


async def test_a_child_that_does_not_heed_its_end_is_killed(tmp_path: Path) -> None:
    made = child(tmp_path, STUBBORN, stop_timeout_s=0.05)
    with pytest.raises(LocalError, match="helper has not been started"):
        made.pid  # noqa: B018
    made.spawn()
    await until_ready(made)
    assert made.running and made.obituary() == "helper is running: ready"
    await made.stop()
    assert made.returncode == -signal.SIGKILL and made.obituary() == "helper was killed by SIGKILL"
    assert not made.pid_path.exists()


@pytest.mark.parametrize("timeout_s", [0.05, 20.0])
async def test_what_an_earlier_launcher_left_is_asked_to_end_and_then_killed(
    tmp_path: Path, timeout_s: float
) -> None:
    code = STUBBORN if timeout_s < 1 else WAITS
    left = child(tmp_path, code)
    left.spawn()
    await until_ready(left)
    ends = asyncio.create_task(left.wait())
    await stop_leftover(left.pid_path, stop_signal=signal.SIGTERM, timeout_s=timeout_s)
    assert await ends == (-signal.SIGKILL if timeout_s < 1 else -signal.SIGTERM)
    assert not left.pid_path.exists()


async def test_a_leftover_that_cannot_be_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_path = tmp_path / "pid"
    process._write_pid_file(pid_path, os.getpid())
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: sent.append(number))
    with pytest.raises(LocalError, match=f"process {os.getpid()} of an earlier run does not end"):
        await stop_leftover(pid_path, stop_signal=signal.SIGTERM, timeout_s=0)
    assert sent == [signal.SIGTERM, signal.SIGCONT, signal.SIGKILL, signal.SIGCONT]


@pytest.mark.parametrize("text", ["", "no number 5", "{pid}", "{pid} 1", "{dead}", "{dead} {started}"])
async def test_a_process_that_only_has_the_number_of_a_leftover_is_let_be(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["true"]) as dead:
        pass
    monkeypatch.setattr(os, "kill", lambda *sent: pytest.fail(f"it was sent {sent}"))
    started = process._started_at(os.getpid())
    (tmp_path / "pid").write_text(text.format(pid=os.getpid(), dead=dead.pid, started=started))
    await stop_leftover(tmp_path / "pid", stop_signal=signal.SIGTERM, timeout_s=0)
    assert not (tmp_path / "pid").exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")
def test_one_that_has_ended_and_that_nobody_has_waited_for_is_gone() -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{ended.pid}/stat").exists() and process._started_at(ended.pid) == ""


@pytest.mark.skipif(shutil.which("ps") is None, reason="there is no ps here")
def test_where_proc_is_not_the_system_says_when_a_process_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.setattr(process, "Path", lambda name: Path("/nowhere" + name))
    here = process._started_at(os.getpid())
    assert here and here == process._started_at(os.getpid())
    with subprocess.Popen(["true"]) as dead:
        pass
    assert process._started_at(dead.pid) == ""


def test_the_line_of_a_log_that_tells_most(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert telling_log_line(log) == ""
    log.write_text("an old ERROR\n")
    start = log.stat().st_size
    assert telling_log_line(log, offset_bytes=start) == ""
    log.write_text("an old ERROR\nFATAL: no room\nbye\n\n")
    assert telling_log_line(log, offset_bytes=start) == "FATAL: no room"
    log.write_text("begins\nends\n \n")
    assert telling_log_line(log) == "ends"


def test_a_long_log_begins_anew_and_the_last_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LOG_BYTES_MAX", 3)
    made = child(tmp_path, "print('new')")
    made.log_path.write_text("long")
    made.spawn()
    assert asyncio.run(made.wait()) == 0
    assert (made.log_path.read_text(), made.log_path.with_suffix(".log.1").read_text()) == ("new\n", "long")


async def test_a_short_command_is_given_its_input_and_its_failure_is_told() -> None:
    shell = ["/bin/sh", "-c"]
    await run_to_end([*shell, 'read line; test "$line" = told'], input_text="told\n")
    with pytest.raises(LocalError, match=r"^sh ended with exit code 3: ValueError: no$"):
        await run_to_end([*shell, "echo begins; echo ValueError: no; echo ends; exit 3"])
    with pytest.raises(LocalError, match="sh was killed by SIGTERM: no output"):
        await run_to_end([*shell, "kill $$"])


async def test_a_short_command_that_nobody_waits_for_any_more_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[str]] = []
    piped = process._piped
    monkeypatch.setattr(process, "_piped", lambda *given: started.append(piped(*given)) or started[0])
    waiting = asyncio.create_task(run_to_end(["sleep", "600"]))
    async with asyncio.timeout(20):
        while not started:
            await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert started[0].wait(20) == -signal.SIGKILL


async def test_without_a_program_that_ties_children_they_are_started_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.shutil, "which", lambda _name: None)
    made = child(tmp_path, "print('alone')")
    made.spawn()
    assert await made.wait() == 0 and made.log_path.read_text() == "alone\n"
