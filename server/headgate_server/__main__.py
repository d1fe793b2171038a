"""`headgate-server MODULE ...`: what `python -m MODULE ...` is in a clone."""

import argparse
import runpy
import sys

from headgate_server import put_on_path

_MODULES = {
    "services.queue": "the queue service",
    "services.dag": "the DAG service",
    "services.local": "all of it on this machine, as `headgate up`",
    "migrations": "brings shards to the newest schema",
    "shards": "adds, moves and removes shards",
    "audit": "looks whether what the shards hold agrees",
}


def main() -> None:
    """Run one module of the services, with the arguments behind its name as its own."""
    parser = argparse.ArgumentParser(
        prog="headgate-server",
        description="Run one of the services, or a tool beside them.",
        epilog="\n".join(["modules:", *(f"  {name:<16} {about}" for name, about in _MODULES.items())])
        + "\nEach says what it takes: `headgate-server migrations --help`.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("module", metavar="MODULE", choices=_MODULES)
    module = parser.parse_args(sys.argv[1:2]).module
    put_on_path()
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
