"""Run one queue process: `python -m services.queue`."""

from __future__ import annotations

from services.queue.app import create_app
from services.queue.settings import QueueSettings
from shared.log import configure
from shared.serve import serve


def main() -> None:
    """Serve until SIGTERM; running requests are finished first."""
    settings = QueueSettings()
    configure("queue", level=settings.log_level)
    serve(create_app(settings), settings, port=settings.port)


if __name__ == "__main__":
    main()
