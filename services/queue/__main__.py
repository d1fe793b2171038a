"""Run one queue process: `python -m services.queue`."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Serve until SIGTERM; running requests are finished first."""
    gc.disable()  # a fifth of the start is looking for garbage in what stays; `serve` turns it on
    from services.queue.app import create_app
    from services.queue.settings import QueueSettings
    from shared.http.serve import serve
    from shared.log import configure
    from shared.shards.shard_map import require_schema

    settings = QueueSettings()
    configure("queue", level=settings.log_level)
    try:
        plan = settings.plan()
    except ValueError as error:
        sys.exit(f"headgate queue: {error}")
    require_schema(plan, settings)
    app = create_app(settings)
    serve(app, settings, port=settings.port, leave=app.state.leave)


if __name__ == "__main__":
    main()
