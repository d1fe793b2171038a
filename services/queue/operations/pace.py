"""How many rows a background step takes at once: as many as end in time, whatever a row costs.

A step holds locks on its rows until it ends, and one that runs into a timeout has done nothing: repeated with the
same rows it would never end. So each duty keeps a number of rows. It begins small, doubles after a full step that
was quick, and halves after one that was slow. Slowness alone may be the load's, so it halves down to `ROWS_MIN`
only; a step that failed halves down to a single row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from shared.clock import Clock, SystemClock
from shared.errors import Invalid

# A step that takes longer is slow. It is quick, and may be doubled, below half of that.
STEP_S = 0.2
ROWS_MIN = 64

_clock = SystemClock()


class Pace:
    """The number of rows of one duty, `rows_max` at most."""

    def __init__(self, rows_max: int, clock: Clock = _clock) -> None:
        self._rows_max = rows_max
        self._clock = clock
        self.rows = min(ROWS_MIN, rows_max)
        self.was_full = False  # whether the last step took all that it might: then there may be more

    async def step(self, work: Callable[[int], Awaitable[int]]) -> int:
        """Run `work` with the number of rows that it may take; how many it took.

        Rows that the database refuses are looked for by halves, down to a step of one row.

        Raises:
            Invalid: the database refused a single row.
            Unavailable: as `work` does; the next step takes half as many rows.
        """
        while True:
            rows, since_s = self.rows, self._clock.monotonic_s()
            try:
                taken = await work(rows)
            except Exception as error:
                self.rows = max(rows // 2, 1)
                if isinstance(error, Invalid) and rows > 1:
                    continue
                raise
            self.was_full = taken >= rows
            self._adapt(rows, self._clock.monotonic_s() - since_s)
            return taken

    def _adapt(self, rows: int, took_s: float) -> None:
        if took_s > STEP_S:
            self.rows = max(rows // 2, min(rows, ROWS_MIN))
        elif self.was_full and took_s < STEP_S / 2:
            self.rows = min(rows * 2, self._rows_max)
