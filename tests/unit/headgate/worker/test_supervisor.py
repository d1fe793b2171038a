"""Workers in processes that are looked after: signals at any moment, to the group and twice; no stderr."""

import asyncio
import io
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from headgate._worker.signals import HURRY, on_signals
from headgate._worker.supervisor import Supervisor
from services.local.stack import ROOT


class _Process:
    """A process that ends when it is told to."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.told: list[int] = []

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> int:
        return self.code or 0

    def send_signal(self, number: int) -> None:
        self.told.append(number)
        self.code = 0


# A run for each line that the supervisor goes through: the signal comes just before that line.
AT_EACH_LINE = """
import os, signal, sys
from headgate._worker import supervisor
from tests.unit.headgate.worker.test_supervisor import _Process

supervisor.LOOK_S = 0.001
for chosen in range(60):
    passed = 0

    def trace(frame, event, argument):
        global passed
        if event == "line" and frame.f_code.co_name not in ("_signalled", "_stop", "send_signal", "poll"):
            passed += 1
            if passed == chosen + 1:
                os.kill(os.getpid(), signal.SIGTERM)
        return trace

    class Traced(supervisor.Supervisor):
        def step(self):
            sys.settrace(trace)
            sys._getframe().f_back.f_trace = trace
            super().step()

        def _end(self):
            sys.settrace(None)
            return super()._end()

    print(Traced(["x"], 1, start=lambda _: _Process()).run(), flush=True)
"""


def test_a_signal_at_any_line_ends_the_supervisor() -> None:
    """None of the locks that it may hold just then is one that the handler asks for."""
    done = subprocess.run(
        [sys.executable, "-c", AT_EACH_LINE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["0"] * 60


def test_the_second_signal_is_passed_on_as_such() -> None:
    process: Any = _Process()
    supervisor = Supervisor(["x"], 1, start=lambda _: process)
    supervisor.step()
    process.send_signal = process.told.append
    supervisor._signalled(signal.SIGINT, None)
    supervisor._signalled(signal.SIGINT, None)
    assert process.told == [signal.SIGINT, HURRY]


@pytest.mark.parametrize(
    ("is_looked_after", "sent", "told"),
    [
        (True, [signal.SIGINT, signal.SIGINT, signal.SIGTERM], ["stop"]),
        (True, [signal.SIGTERM, HURRY], ["stop", "stop"]),
        (True, [HURRY], ["stop", "stop"]),
        (False, [signal.SIGINT, signal.SIGINT], ["stop", "stop"]),
    ],
)
async def test_a_signal_to_the_whole_group_is_one_to_those_who_are_also_told_of_it(
    is_looked_after: bool, sent: list[int], told: list[str]
) -> None:
    """Ctrl-C, and systemd, tell all processes of a group; the supervisor passes it on to its workers besides."""
    heard: list[str] = []
    with on_signals(lambda: heard.append("stop"), is_looked_after=is_looked_after):
        for number in sent:
            os.kill(os.getpid(), number)
            for _ in range(10):  # turns of the loop: one to read that there was a signal, one to hear it
                await asyncio.sleep(0)
    assert heard == told


class _Broken(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(text)


@pytest.mark.parametrize("stderr", [None, _Broken()])
def test_a_worker_is_started_again_also_where_nobody_can_be_told_of_it(
    monkeypatch: pytest.MonkeyPatch, stderr: Any
) -> None:
    now, started = [0.0], list[Any]()

    def start(_: object) -> Any:
        started.append(_Process())
        return started[-1]

    supervisor = Supervisor(["x"], 1, start=start, clock=lambda: now[0])
    supervisor.step()
    started[-1].code = 1
    monkeypatch.setattr(sys, "stderr", stderr)
    supervisor.step()
    now[0] += 100
    supervisor.step()
    assert len(started) == 2
