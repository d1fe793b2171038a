"""Who used the processors: a child's time must be its group's, and a stranger's must not be ours."""

import os
import subprocess
import sys
import time

from benchmarks.cost import Cost
from benchmarks.machine import Busy, Meter

BURN = "import time\nwhile time.process_time() < 0.2: pass"


def test_time_of_a_process_that_has_ended_stays_in_its_group() -> None:
    # The shell is the group; what works is its child, which is gone when the meter is read.
    script = f"read line; {sys.executable} -c '{BURN}'; read line"
    shell = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert shell.stdin is not None
    meter = Meter({"shell": shell.pid})
    before = meter.read()
    shell.stdin.write("go\n")
    shell.stdin.flush()
    deadline = time.monotonic() + 20
    while meter.read().groups_s["shell"] - before.groups_s["shell"] < 0.18:
        assert time.monotonic() < deadline, "the child's time was not seen"
    busy = Meter.between(before, meter.read())
    shell.communicate("end\n")
    assert busy.seconds("shell") >= 0.18 - 1e-9


def test_a_group_that_is_gone_counts_as_idle() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    meter = Meter({"gone": child.pid})
    busy = Meter.between(meter.read(), meter.read())
    assert busy.groups["gone"] == 0.0 and busy.other >= 0.0
    assert "client" in busy.groups and os.getpid() != child.pid


def test_a_program_that_this_process_has_run_is_its_client_and_no_stranger() -> None:
    meter = Meter({})
    before = meter.read()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert Meter.between(before, meter.read()).seconds("client") >= 0.18


def test_costs_are_weighted_by_items_and_not_by_slices() -> None:
    cost = Cost()
    cost.add(Busy(1.0, {"client": 0.1, "postgres": 1.0}, 0.0), 100_000)
    cost.add(Busy(1.0, {"client": 0.1, "postgres": 1.0}, 0.0), 0)
    assert cost.us("postgres") == 20.0
    assert str(cost) == "CPU us/item: client 2, postgres 20"
