"""`headgate up`, and `python -m services.local`: all of Headgate on this machine, until Ctrl-C."""

import argparse
import asyncio
import contextlib
import json
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from services.local.errors import LocalError
from services.local.postgres import DURABLE, VOLATILE
from services.local.settings import DAG_SHARDS, QUEUE_SHARDS, LocalSettings, from_environment
from services.local.stack import Stack

_EPILOG = """\
environment:
  HEADGATE_DATA_DIR      where data, logs and pid files live     (.headgate/data)
  HEADGATE_QUEUE_PORT    the queue service                       (8080)
  HEADGATE_DAG_PORT      the DAG service                         (8081)
  HEADGATE_PG_PORT       the Postgres started here               (25432)
  HEADGATE_REDIS_PORT    the Valkey started here                 (26380)
  Of these four, one that you do not name and that is taken is replaced by a free one, and said.
  HEADGATE_HOST          the services' address, loopback only    (127.0.0.1)

servers of your own, used instead of those started here:
  HEADGATE_QUEUE_SHARDS  `0=postgresql://a/db 1=postgresql://b/db`, or `postgresql://a/db#4` for shards 0 to 3
  HEADGATE_DAG_SHARDS    the same, for the DAG service
  HEADGATE_REDIS_URL     `redis://host:port/0`
  PG_BINDIR              start our cluster with these binaries, e.g. /usr/lib/postgresql/15/bin

Data is durable: what a service acknowledged is there after a crash of any process or of the machine, and the next
start on the same directory finds it. A process that dies is started again.
"""


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m services.local") -> int:
    """Run a stack until a signal; answer the exit code."""
    options = _parser(prog).parse_args(arguments)
    try:
        settings = replace(
            from_environment(),
            fresh=options.fresh,
            queue_shards=options.queue_shards,
            dag_shards=options.dag_shards,
            queue_processes=options.queue_processes,
            dag_processes=options.dag_processes,
            with_services=not options.no_services,
            free_ports=options.free_ports,
            skip_time=options.skip_time,
            postgres_options=VOLATILE if options.volatile else DURABLE,
        )
        asyncio.run(_run(settings, _as_json if options.output == "json" else _announcement))
    except LocalError as error:
        print(f"headgate: {error}", file=sys.stderr)
        return 1
    return 0


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Run Postgres, Valkey, the queue service and the DAG service on this machine, until Ctrl-C.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fresh", action="store_true", help="delete the data directory's contents first")
    parser.add_argument(
        "--queue-shards", type=_count, metavar="N", help=f"shards of a new data directory ({QUEUE_SHARDS})"
    )
    parser.add_argument(
        "--dag-shards", type=_count, metavar="N", help=f"the same for the DAG service ({DAG_SHARDS})"
    )
    parser.add_argument(
        "--queue-processes", type=_count, default=1, metavar="N", help="queue processes, on one port (1)"
    )
    parser.add_argument(
        "--dag-processes", type=_count, default=1, metavar="N", help="DAG processes, on one port (1)"
    )
    parser.add_argument(
        "--no-services", action="store_true", help="run the servers only, migrated, and print what to export"
    )
    parser.add_argument(
        "--free-ports", action="store_true", help="take free ports for those that the environment does not name"
    )
    parser.add_argument(
        "--skip-time", action="store_true", help="for tests: timers do not wait where nothing else runs"
    )
    parser.add_argument(
        "--volatile",
        action="store_true",
        help="do not wait for the disk: sooner, and a crash of the machine loses data",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json"),
        default="table",
        help="say where it is for people, or for programs",
    )
    return parser


async def _run(settings: LocalSettings, announce: Callable[[Stack], str]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    stack = Stack(settings)
    try:
        if await _first(stack.start(), stopped):
            print(announce(stack), flush=True)
            await _first(stack.failed(), stopped)
    finally:
        await stack.stop()


async def _first(work: Coroutine[Any, Any, None], stopped: asyncio.Event) -> bool:
    """Do the work unless told to stop before it is done; whether it was done. Its errors are raised."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        return False
    await working
    return True


def _as_json(stack: Stack) -> str:
    said = {
        "queue_url": stack.queue_url,
        "dag_url": stack.dag_url,
        "data_dir": str(stack.settings.data_dir.absolute()),
    }
    return json.dumps(said if stack.settings.with_services else stack.environment)


def _announcement(stack: Stack) -> str:
    if not stack.settings.with_services:
        exports = (f"export {name}={shlex.quote(value)}" for name, value in stack.environment.items())
        return "\n".join(("# The services are not started: they would listen where this says.", *exports))
    return (
        f"Headgate is ready\n"
        f"  queue  {stack.queue_url}\n"
        f"  dag    {stack.dag_url}\n"
        f"  data   {stack.settings.data_dir.absolute()}\n"
        f"{_pointers(stack)}"
        f"Open either in a browser to see topics and DAGs. Ctrl-C stops it."
    )


def _pointers(stack: Stack) -> str:
    """What clients are to be told, where the services are not where those look by themselves."""
    usual = LocalSettings()
    if (stack.settings.queue_port, stack.settings.dag_port) == (usual.queue_port, usual.dag_port):
        return ""
    return f"Clients are told so: export HEADGATE_QUEUE_URL={stack.queue_url} HEADGATE_DAG_URL={stack.dag_url}\n"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 4096):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 4096")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
