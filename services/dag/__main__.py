"""Run one DAG process: `python -m services.dag`."""

from __future__ import annotations

import uvicorn

from services.dag.app import create_app
from services.dag.settings import DagSettings
from shared.log import configure


def main() -> None:
    """Serve until SIGTERM; running requests are finished first."""
    settings = DagSettings()
    configure("dag", level=settings.log_level)
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        http="httptools",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=10,
        timeout_keep_alive=75,
    )


if __name__ == "__main__":
    main()
