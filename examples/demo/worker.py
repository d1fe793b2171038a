"""One worker process of the demo: `python -m examples.demo.worker NAME TRACE_FILE`."""

import logging
import sys
from pathlib import Path

from examples import build_order, video_upload
from examples.demo.trace import TracedClient, TraceWriter
from headgate import Worker


def main() -> None:
    """Work until SIGTERM; jobs that are running are finished first."""
    name, path = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s {name} %(message)s")
    with TraceWriter(Path(path)) as trace:
        worker = Worker(TracedClient(trace, name), name=name)
        build_order.add_tasks(worker)
        video_upload.add_tasks(worker)
        trace.write("started", worker=name)
        worker.main()


if __name__ == "__main__":
    main()
