"""Run one DAG process: `python -m services.dag`."""

from __future__ import annotations

from services.dag.app import create_app
from services.dag.settings import DagSettings
from shared.log import configure
from shared.serve import serve


def main() -> None:
    """Serve until SIGTERM; running requests are finished first."""
    settings = DagSettings()
    configure("dag", level=settings.log_level)
    serve(create_app(settings), settings, port=settings.port)


if __name__ == "__main__":
    main()
