"""What every command has: its exit code, its client, what it reads, and how rows are shown."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from headgate._cli.output import show_fields, show_json, show_table
from headgate._client.aio.client import AsyncClient
from headgate._client.blocking.client import Client
from headgate._http.transport import RetryPolicy
from headgate._stderr import stderr_line
from headgate.errors import Invalid

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNAVAILABLE: Final = 5

Args = argparse.Namespace


def parsed(text: str) -> Any:
    """JSON, or the text itself where it does not begin like a JSON object, list or string.

    Raises:
        Invalid: it begins like JSON and is none.
    """
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] in ("{", "[", '"'):
            raise Invalid(f"this is not JSON: {error}") from None
        return text


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def read(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text()


def read_spec(path: str) -> Any:
    """The JSON object in a file, or `-`.

    Raises:
        Invalid: it is not JSON, or no object.
    """
    try:
        spec = json.loads(read(path), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{path} is not JSON: {error}") from None
    if not isinstance(spec, dict):
        raise Invalid(f"{path} should hold an object: {{name, nodes: [...], dependencies: [...]}}")
    return spec


def client_of(args: Args) -> Client:
    """The client of a command."""
    return Client(**_settings(args))


def async_client_of(args: Args) -> AsyncClient:
    """The same for coroutines."""
    return AsyncClient(**_settings(args))


def _settings(args: Args) -> dict[str, Any]:
    """A person waits less patiently than a program."""
    where = {name: getattr(args, name) for name in ("queue_url", "dag_url", "namespace", "token")}
    return {**where, "retry": RetryPolicy(attempts_max=4)}


def show_rows(args: Args, rows: Sequence[Any], columns: Sequence[str], empty: str, *, whole: bool = False) -> None:
    """Rows as the commands show them; `empty` is said where there are none. See `show_table` for `whole`."""
    if args.output == "json":
        show_json(list(rows), sys.stdout)
    elif rows:
        dumped = [row if isinstance(row, dict) else row.model_dump() for row in rows]
        show_table(dumped, columns, sys.stdout, whole=whole)
    else:
        stderr_line(empty)


def show_one(args: Args, thing: Any) -> None:
    """One thing as the commands show it."""
    if args.output == "json":
        show_json(thing, sys.stdout)
    else:
        show_fields(thing if isinstance(thing, dict) else thing.model_dump(), sys.stdout)
