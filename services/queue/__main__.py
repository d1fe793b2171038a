"""Run one queue process: `python -m services.queue`."""

from __future__ import annotations

import uvicorn

from services.queue.app import create_app
from services.queue.settings import QueueSettings
from shared.log import configure


def main() -> None:
    """Serve until SIGTERM; running requests are finished first."""
    settings = QueueSettings()
    configure("queue", level=settings.log_level)
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        http="httptools",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=75,
    )


if __name__ == "__main__":
    main()
