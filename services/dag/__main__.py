"""Run one DAG process: `python -m services.dag`."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Serve until SIGTERM; running requests are finished first."""
    gc.disable()  # a fifth of the start is looking for garbage in what stays; `serve` turns it on
    from services.dag.app import create_app
    from services.dag.settings import DagSettings
    from shared.http.serve import serve
    from shared.log import configure
    from shared.shards.shard_map import require_schema

    settings = DagSettings()
    configure("dag", level=settings.log_level)
    try:
        plan = settings.plan()
    except ValueError as error:
        sys.exit(f"headgate dag: {error}")
    require_schema(plan, settings)
    app = create_app(settings)
    serve(app, settings, port=settings.port, leave=app.state.leave)


if __name__ == "__main__":
    main()
