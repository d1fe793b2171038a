"""The machine that was measured on, and who used its processors during a slice (Linux: read from /proc)."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FLUSHES = 200
# More than this much of a processor used by strangers, and a slice says little.
OTHER_CORES_MAX = 0.25


def describe() -> dict[str, Any]:
    """Processors, memory, system, and what one flush to the disk costs."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_gib": round(int(_field("/proc/meminfo", "MemTotal").split()[0]) / 2**20, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "fdatasync_us": round(_flush_s() * 1e6),
    }


@dataclass(frozen=True)
class Use:
    """Processor seconds used so far, by whom; `machine` is everybody. `at_s` is when it was read."""

    at_s: float
    machine_s: float
    groups_s: Mapping[str, float]


@dataclass(frozen=True)
class Busy:
    """Processors kept busy over a stretch of time: `groups` are ours, `other` is everybody else."""

    elapsed_s: float
    groups: Mapping[str, float]
    other: float

    def seconds(self, group: str) -> float:
        """Processor seconds that one group used."""
        return self.groups[group] * self.elapsed_s


class Meter:
    """Reads what groups of processes have used. A group is some processes and all their descendants."""

    def __init__(self, roots: Mapping[str, int | Sequence[int]]) -> None:
        self._roots = {name: (pids,) if isinstance(pids, int) else tuple(pids) for name, pids in roots.items()}

    def joined(self, roots: Mapping[str, int | Sequence[int]]) -> Meter:
        """A meter of these groups too; a group of the same name is replaced."""
        return Meter({**self._roots, **roots})

    def rss_mib(self, group: str) -> float:
        """Resident memory of the largest process of a group, without its descendants."""
        return max(_mib(pid, "VmRSS") for pid in self._roots[group])

    def peak_rss_mib(self, group: str) -> float:
        """The most that the largest process of a group ever had resident, without its descendants."""
        return max(_mib(pid, "VmHWM") for pid in self._roots[group])

    def read(self) -> Use:
        """What has been used until now."""
        processes = _processes()
        mine = os.getpid()
        taken: set[int] = set()
        groups = {}
        for name, roots in self._roots.items():
            tree = set().union(*(_tree(root, processes) for root in roots)) - taken
            taken |= tree
            groups[name] = sum(processes[pid][1] for pid in tree) / _TICKS_PER_S
        # This process, and the programs it runs for a while: an ended one's time is in its parent's.
        groups["client"] = sum(processes[pid][1] for pid in _tree(mine, processes) - taken) / _TICKS_PER_S
        return Use(time.perf_counter(), _machine_s(), groups)

    @staticmethod
    def between(before: Use, after: Use) -> Busy:
        """Who was busy between two readings."""
        elapsed_s = after.at_s - before.at_s
        groups = {
            name: max(0.0, after.groups_s[name] - before.groups_s[name]) / elapsed_s for name in after.groups_s
        }
        other = (after.machine_s - before.machine_s) / elapsed_s - sum(groups.values())
        return Busy(elapsed_s, groups, max(0.0, other))


def _processes() -> dict[int, tuple[int, float]]:
    """By pid: the parent, and ticks used with those of children that ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry.name)] = (int(fields[1]), sum(map(float, fields[11:15])))
    return found


def _mib(pid: int, field: str) -> float:
    return int(_field(f"/proc/{pid}/status", field).split()[0]) / 1024


def _tree(root: int, processes: Mapping[int, tuple[int, float]]) -> set[int]:
    tree = {root} & processes.keys()
    grown = True
    while grown:
        children = {pid for pid, (parent, _) in processes.items() if parent in tree} - tree
        tree |= children
        grown = bool(children)
    return tree


def _machine_s() -> float:
    """Busy time of all processors: all but idle, waiting for the disk, and guests (counted in user)."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "0 unknown"


def _flush_s() -> float:
    """The median time of an 8 KiB write with fdatasync, where temporary files are."""
    times = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(_FLUSHES):
            begun = time.perf_counter()
            os.pwrite(file.fileno(), bytes(8192), 0)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun)
    return sorted(times)[_FLUSHES // 2]
