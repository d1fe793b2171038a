"""What jobs log in `app.testing()`: kept in memory, item by item."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from headgate._worker.job_logs import Job, JobLogs, clean, level_name

LINES_MAX: Final = 10_000


class LocalLogs(JobLogs):
    """The logs of all jobs; what comes after so many lines of one is not kept."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._entries: dict[str, list[dict[str, Any]]] = {}

    def add(self, job: Job, level: int, logger: str, text: str) -> None:
        """Take a line of a job, in any thread."""
        kept = self._entries.setdefault(job.leased.id, [])
        if job.logs is self and len(kept) < LINES_MAX:
            said = {"level": level_name(level), "logger": clean(logger) or "root", "text": clean(text)}
            kept.append({"at": self._now(), **said, "attempt": job.leased.attempt, "worker": None})

    def page(self, item_id: str) -> dict[str, Any]:
        """All that an item's job has logged."""
        kept = list(self._entries.get(item_id, ()))
        return {"items": kept, "next_cursor": None, "tail": str(len(kept))}
