"""The commands about quotas: what a namespace may use, and what it uses."""

import argparse
import sys
from typing import Any, Final

from headgate import wire
from headgate._cli import commands
from headgate._cli.output import show_fields, show_json, show_table, told

QUOTAS: Final = """\
examples:
  headgate quotas list                                   every namespace: its limits and what it uses
  headgate quotas show shop
  headgate quotas set shop --enqueues-per-minute 6000 --in-flight-max 200
  headgate quotas set shop --items-max none              no limit any more; the others stay
  headgate quotas clear shop                             no limits at all
  headgate quotas dags shop                              unfinished DAGs, their nodes and edges
  headgate quotas dags shop --dags-max 100 --nodes-max default

what is over a quota:
  enqueues-per-minute   items are refused as `over_quota` until Retry-After; a minute's worth may come at once
  in-flight-max         dequeues hand out less, and wait when as many items are leased
  items-max             items in any state, dead ones too; more are refused
  stored-bytes-max      bytes of their payloads; more are refused

A namespace without limits has none. Items of DAGs are not refused. In force within a second.
Needs a token with scope `admin` for the namespace; list needs `ops`.
"""

_LIMITS: Final = ("enqueues_per_minute", "in_flight_max", "items_max", "stored_bytes_max")
_DAG_KINDS: Final = ("dags", "nodes", "edges")
_USES: Final = {
    "enqueues_per_minute": "enqueued_last_minute",
    "in_flight_max": "in_flight",
    "items_max": "items",
    "stored_bytes_max": "stored_bytes",
}

Args = argparse.Namespace


def limit(text: str) -> int | None:
    """A limit, or None for the word `none`."""
    return None if text == "none" else int(text)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """An option for each quota; one that is not given is left as it is."""
    for name, about in (
        ("enqueues_per_minute", "items accepted"),
        ("in_flight_max", "items leased at once"),
        ("items_max", "items stored"),
        ("stored_bytes_max", "bytes of payloads stored"),
    ):
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(
            flag, type=limit, metavar="N", default=argparse.SUPPRESS, help=f"{about}; none: no limit"
        )


def listing(args: Args) -> int:
    """quotas list."""
    with commands.client_of(args) as client:
        found = told(client.namespaces())
    if args.output == "json":
        show_json(found, sys.stdout)
    elif found:
        columns = ["namespace", *(column for name in _LIMITS for column in (_USES[name], name))]
        show_table([one.model_dump() for one in found], columns, sys.stdout)
    else:
        sys.stdout.write("no namespaces\n")
    return commands.OK


def show(args: Args) -> int:
    """quotas show."""
    with commands.client_of(args) as client:
        return _show(args, client.get_namespace(args.ns))


def change(args: Args) -> int:
    """quotas set: the service takes all limits at once, so those that are not named are sent as they are."""
    given = {name: getattr(args, name) for name in _LIMITS if hasattr(args, name)}
    if not given:
        sys.stderr.write("headgate: say what to set, such as --enqueues-per-minute 6000; see --help\n")
        return commands.USAGE
    with commands.client_of(args) as client:
        now = client.get_namespace(args.ns)
        return _show(args, client.put_namespace(args.ns, **{name: getattr(now, name) for name in _LIMITS} | given))


def dag_limit(text: str) -> int | None:
    """A limit, or None for the word `default`."""
    return None if text == "default" else int(text)


def add_dag_limits(parser: argparse.ArgumentParser) -> None:
    """An option for each quota of DAGs; one that is not given is left as it is."""
    for what in _DAG_KINDS:
        parser.add_argument(
            f"--{what}-max",
            type=dag_limit,
            metavar="N",
            default=argparse.SUPPRESS,
            help=f"unfinished {what}; default: what the service says",
        )


def dags(args: Args) -> int:
    """quotas dags: show what a namespace may have of unfinished DAGs, or change it."""
    names = [f"{what}_max" for what in _DAG_KINDS]
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    with commands.client_of(args) as client:
        found = client.dag_quota(args.ns)
        if given:
            found = client.put_dag_quota(found.namespace, **{n: getattr(found, n) for n in names} | given)
    if args.output == "json":
        show_json(found, sys.stdout)
        return commands.OK
    fields: dict[str, Any] = {"namespace": found.namespace}
    for what, name in zip(_DAG_KINDS, names, strict=True):
        own, default = getattr(found, name), getattr(found.default, name)
        allowed = own if own is not None else default
        said = ", no limit" if allowed is None else f" of {allowed:,}{'' if own is not None else ' (default)'}"
        fields[what] = f"{getattr(found, what):,}{said}"
    show_fields(fields, sys.stdout)
    return commands.OK


def clear(args: Args) -> int:
    """quotas clear."""
    with commands.client_of(args) as client:
        return _show(args, client.put_namespace(args.ns))


def _show(args: Args, found: wire.Namespace) -> int:
    if args.output == "json":
        show_json(found, sys.stdout)
        return commands.OK
    fields: dict[str, Any] = {"namespace": found.namespace}
    for name in _LIMITS:
        used, allowed = getattr(found, _USES[name]), getattr(found, name)
        fields[name] = f"{used or 0:,} of {allowed:,}" if allowed is not None else f"{used or 0:,}, no limit"
    show_fields(fields, sys.stdout)
    return commands.OK
