"""The commands that change a graph while it runs, and those that show what its nodes were given and gave."""

import argparse
import sys
from collections.abc import Callable
from typing import Final

from headgate._calls.dag import Dag, Node
from headgate._cli import commands
from headgate._cli.output import show_json
from headgate.errors import Invalid

ADD: Final = """\
FILE holds nodes, which may wait for one another and for what is there already:
  {"nodes": [{"key": "mail", "topic": "mail", "upstream": ["render"]}],
   "dependencies": [{"upstream": "mail", "downstream": "archive"}]}
What exists already changes nothing, so the command may be repeated. An edge into a node that is released is
refused; keep such a node back with an `external`, and `headgate dag resolve` it when all is there.
"""

EXPAND: Final = """\
FILE holds the children, as {"nodes": [...]}. NODE runs and is not acked yet; whatever waits for it, now or
later, waits for its children too. Give them keys that a second delivery of NODE would make again.
"""

_COLUMNS: Final = ("key", "state", "item_id")

Args = argparse.Namespace


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands below `headgate dag`."""
    grow = add("add", extend, "add nodes and edges, also while the DAG runs", epilog=ADD)
    inside = add("expand", expand, "add children to a running node", epilog=EXPAND)
    depends = add("depend", depend, "let a node wait for another")
    given = add("inputs", inputs, "print what a node with pass_outputs is given, as JSON")
    came_to = add("outputs", outputs, "list the outputs of the nodes that nothing waits for")
    for parser in (grow, inside, depends, given, came_to):
        parser.add_argument("id")
    inside.add_argument("node")
    for parser in (grow, inside):
        parser.add_argument("file", help="a JSON file, or - for standard input")
    depends.add_argument("upstream")
    depends.add_argument("downstream")
    given.add_argument("key")


def extend(args: Args) -> int:
    """dag add."""
    spec = commands.read_spec(args.file)
    known = {"nodes", "dependencies"}
    if unknown := sorted(spec.keys() - known):
        raise Invalid(f"nodes and dependencies can be added; this is neither: {', '.join(unknown)}")
    nodes = _nodes(spec.get("nodes"))
    try:
        edges = [(edge["upstream"], edge["downstream"]) for edge in spec.get("dependencies") or ()]
    except (TypeError, KeyError):
        raise Invalid("a dependency is written {upstream, downstream}") from None
    # Edges into nodes of the file go with them: a node must not start before all that it waits for is known.
    new = {node.key: node for node in nodes}
    for upstream, downstream in edges:
        if downstream in new and upstream not in new[downstream].upstream:
            new[downstream].upstream.append(upstream)
    with commands.client_of(args) as client:
        handle = client.dag(args.id)
        added = handle.add_nodes(nodes)
        handle.add_dependencies([edge for edge in edges if edge[1] not in new])
    commands.show_rows(args, added, _COLUMNS, f"{len(edges)} edges" if edges else "nothing to add")
    return commands.OK


def expand(args: Args) -> int:
    """dag expand."""
    with commands.client_of(args) as client:
        added = client.dag(args.id).expand(args.node, _nodes(commands.read_spec(args.file).get("nodes")))
    commands.show_rows(args, added, _COLUMNS, "no children")
    return commands.OK


def depend(args: Args) -> int:
    """dag depend."""
    with commands.client_of(args) as client:
        client.dag(args.id).depend(args.upstream, args.downstream)
    edge = {"upstream": args.upstream, "downstream": args.downstream}
    commands.show_rows(args, [edge], tuple(edge), "")
    return commands.OK


def inputs(args: Args) -> int:
    """dag inputs."""
    with commands.client_of(args) as client:
        show_json(client.dag(args.id).inputs(args.key), sys.stdout)
    return commands.OK


def outputs(args: Args) -> int:
    """dag outputs."""
    with commands.client_of(args) as client:
        commands.show_rows(args, client.dag(args.id).outputs(), ("key", "output"), "no outputs")
    return commands.OK


def _nodes(nodes: object) -> list[Node]:
    return list(Dag.from_spec({"nodes": nodes}).nodes.values())
