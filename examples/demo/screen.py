"""What the demo shows: a live bar on a terminal, a line now and then elsewhere, and a table at the end."""

import shutil
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from examples.demo.measure import SHOWN_MAX, Report
from headgate.wire import Dag

BAR_CHARS = 28
LINE_EVERY_S = 1.0


class Screen:
    """Writes to a terminal or to anything else."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._live = out.isatty()
        self._clock = clock
        self._spoke_at = -LINE_EVERY_S
        self._unfinished = False
        self._unicode = "utf" in (out.encoding or "").lower()

    def say(self, text: str = "") -> None:
        """Write a line, below a bar that may have been left."""
        self._out.write(("\n" if self._unfinished else "") + text + "\n")
        self._unfinished = False
        self._out.flush()

    def progress(self, dag: Dag, elapsed_s: float) -> None:
        """Show how far a DAG is: in place on a terminal, elsewhere a line per second and one at the end."""
        line = self._line(dag, elapsed_s)
        if self._live:
            columns = shutil.get_terminal_size().columns
            self._out.write("\r\x1b[K" + line[: columns - 1] + ("\n" if dag.finished else ""))
            self._out.flush()
            self._unfinished = not dag.finished
        elif dag.finished or self._clock() - self._spoke_at >= LINE_EVERY_S:
            self._spoke_at = self._clock()
            self.say(line)

    def table(self, reports: Sequence[Report]) -> None:
        """One column per DAG, then the checks."""
        rows: list[tuple[str, list[str]]] = [
            ("", [report.title for report in reports]),
            ("nodes", [f"{report.nodes:,}" for report in reports]),
            ("edges", [f"{report.edges:,}" for report in reports]),
            ("elapsed", [f"{report.elapsed_s:.2f} s" for report in reports]),
            (
                "nodes/s",
                [f"{report.nodes / report.elapsed_s:,.0f}" if report.elapsed_s else "-" for report in reports],
            ),
            ("last upstream ack to delivery, p50", [f"{report.quantile_ms(0.50):.1f} ms" for report in reports]),
            ("last upstream ack to delivery, p99", [f"{report.quantile_ms(0.99):.1f} ms" for report in reports]),
            ("longest path", [f"{report.longest} nodes" for report in reports]),
            ("the path that took longest", [path_text(report) for report in reports]),
            ("nodes per worker process", [" ".join(map(str, report.per_worker.values())) for report in reports]),
        ]
        widths = [max(len(cells[at]) for _, cells in rows) for at in range(len(reports))]
        label_width = max(len(label) for label, _ in rows)
        self.say()
        for label, cells in rows:
            aligned = "   ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
            self.say(f"  {label.ljust(label_width)}   {aligned}")
        self.say("  (from the sending of the ack, or of the event that a chunk has arrived)")
        self.say()
        for report in reports:
            self._checks(report)

    def _checks(self, report: Report) -> None:
        for check in report.checks:
            self.say(f"  {'ok    ' if check.passed else 'FAILED'}  {report.title}: {check.what}")
            for fault in check.faults[:SHOWN_MAX]:
                self.say(f"            {fault}")
            if len(check.faults) > SHOWN_MAX:
                self.say(f"            and {len(check.faults) - SHOWN_MAX} more")

    def _line(self, dag: Dag, elapsed_s: float) -> str:
        done, total = dag.nodes.finished, dag.nodes.total
        full, empty = ("█", "░") if self._unicode else ("#", ".")
        filled = BAR_CHARS * done // total if total else 0
        bar = full * filled + empty * (BAR_CHARS - filled)
        state = dag.state if dag.finished else f"{dag.nodes.released} released, {dag.nodes.blocked} blocked"
        return f"  {bar} {done:>4}/{total}  {elapsed_s:5.1f} s  {state}"


def path_text(report: Report) -> str:
    return f"{len(report.critical.nodes)} nodes, {report.critical.seconds:.2f} s"
