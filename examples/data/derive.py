"""Derives the dependency closure of a Debian package, as a graph without cycles.

    apt-cache dumpavail | python -m examples.data.derive digikam > examples/data/digikam.json

Input: Debian's package metadata, as `apt-cache dumpavail` prints it or as a `Packages` index holds it. From each
stanza the name, `Depends`, `Pre-Depends`, `Provides` and `Installed-Size` are read, and nothing else. Of the
alternatives in `a | b` the first one that exists is taken, for a virtual package the first one in alphabetical
order that provides it; versions and architectures are not looked at. Packages that depend on one another become
one node, named after all of them.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

KEY_BYTES_MAX = 200
ORIGIN = "Derived by examples/data/derive.py from the package metadata of Debian {release}, section main"

Graph = dict[str, list[str]]


@dataclass(frozen=True)
class Package:
    """What is read of a stanza; each clause of `depends` is a list of alternatives."""

    name: str
    depends: list[list[str]]
    provides: list[str]
    installed_kib: int


def stanzas(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """The fields of each stanza, without continuation lines: no field that is read here has any."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line.strip():
            if fields:
                yield fields
            fields = {}
        elif not line[0].isspace():
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    if fields:
        yield fields


def package(fields: Mapping[str, str]) -> Package:
    clauses = [fields[name] for name in ("Pre-Depends", "Depends") if fields.get(name)]
    return Package(
        name=fields["Package"],
        depends=[
            [bare(choice) for choice in clause.split("|")] for clause in ", ".join(clauses).split(",") if clause
        ],
        provides=[bare(name) for name in fields.get("Provides", "").split(",") if name],
        installed_kib=int(fields.get("Installed-Size", "0")),
    )


def bare(relation: str) -> str:
    """The name in `name:any (>= 1.2)`."""
    return relation.partition("(")[0].partition(":")[0].strip()


def closure(packages: Mapping[str, Package], root: str) -> Graph:
    """`root` and everything below it: each package with what it depends on."""
    providers: dict[str, str] = {}
    for name in sorted(packages, reverse=True):
        providers.update(dict.fromkeys(packages[name].provides, name))
    found: Graph = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name not in found:
            chosen = {_choose(choices, packages, providers) for choices in packages[name].depends}
            found[name] = sorted(chosen - {None, name}, key=str)  # type: ignore[arg-type]
            waiting += found[name]
    return found


def _choose(choices: list[str], packages: Mapping[str, Package], providers: Mapping[str, str]) -> str | None:
    real = (choice for choice in choices if choice in packages)
    virtual = (providers[choice] for choice in choices if choice in providers)
    return next(real, None) or next(virtual, None)


def components(graph: Graph) -> list[list[str]]:
    """The strongly connected components, dependencies first: Tarjan's algorithm, without recursion."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    open_nodes: dict[str, None] = {}
    found: list[list[str]] = []
    for root in sorted(graph):
        path = [(root, iter(graph[root]))] if root not in number else []
        while path:
            name, rest = path[-1]
            if name not in number:
                number[name] = low[name] = len(number)
                open_nodes[name] = None
            for other in rest:
                if other not in number:
                    path.append((other, iter(graph[other])))
                    break
                if other in open_nodes:
                    low[name] = min(low[name], number[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[name])
                if low[name] == number[name]:
                    members = list(open_nodes)[list(open_nodes).index(name) :]
                    for member in members:
                        del open_nodes[member]
                    found.append(sorted(members))
    return found


def key_of(names: list[str]) -> str:
    """The key of a node that stands for these packages."""
    whole = ", ".join(names)
    return whole if len(whole.encode()) <= KEY_BYTES_MAX else f"{names[0]} and {len(names) - 1} more"


def derive(packages: Mapping[str, Package], root: str) -> tuple[list[tuple[str, int]], list[tuple[str, str]]]:
    """The nodes `(key, installed_kib)`, dependencies first, and the edges `(dependency, dependent)`."""
    graph = closure(packages, root)
    groups = components(graph)
    key = {name: key_of(group) for group in groups for name in group}
    nodes = [(key_of(group), sum(packages[name].installed_kib for name in group)) for group in groups]
    edges = {(key[other], key[name]) for name, others in graph.items() for other in others}
    return nodes, sorted(edge for edge in edges if edge[0] != edge[1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Derive a package's dependency closure from package metadata.")
    parser.add_argument("package")
    parser.add_argument("--release", default="12 (bookworm)", help="what to call the release in the note")
    arguments = parser.parse_args()
    packages: dict[str, Package] = {}
    for fields in stanzas(sys.stdin):
        if "Package" in fields:
            packages.setdefault(fields["Package"], package(fields))
    if arguments.package not in packages:
        sys.exit(f"there is no package {arguments.package} in the metadata")
    nodes, edges = derive(packages, arguments.package)
    print_graph(f"{arguments.package}: {ORIGIN.format(release=arguments.release)}", nodes, edges)


def print_graph(note: str, nodes: list[tuple[str, int]], edges: list[tuple[str, str]]) -> None:
    """JSON with a node or an edge to a line, so that a new release shows as a readable difference."""
    lists = {
        "nodes": [json.dumps({"key": key, "installed_kib": kib}) for key, kib in nodes],
        "edges": [json.dumps(edge) for edge in edges],
    }
    texts = [f'  "{name}": [\n    ' + ",\n    ".join(lines) + "\n  ]" for name, lines in lists.items()]
    print("{\n" + ",\n".join([f'  "note": {json.dumps(note)}', *texts]) + "\n}")


if __name__ == "__main__":
    main()
