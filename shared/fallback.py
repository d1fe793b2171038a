"""A short way that was not gone. The long way does the same for more; that a short one is not gone any more shows
in `headgate_fallback_total`."""

from __future__ import annotations

from typing import NamedTuple

from shared.metrics import FALLBACKS


class Fallback(NamedTuple):
    """In the place of a result: it takes the long way, for a reason of one of a few words."""

    reason: str

    def counted(self, path: str) -> None:
        """Whoever takes the long way counts it, once a call."""
        FALLBACKS.labels(path, self.reason).inc()
