"""DAGs as a whole, as JSON and as text for people's tools (Mermaid and Graphviz), part by part; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

_COLOURS: Final = {
    "blocked": "#d9d9d9",
    "released": "#9ecae1",
    "succeeded": "#a1d99b",
    "failed": "#fc9272",
    "skipped": "#f0f0f0",
    "cancelled": "#bdbdbd",
}

# What an edge takes at least, in every form.
EDGE_BYTES_MIN: Final = 14


class Vertex(NamedTuple):
    """A node as it is drawn; `dag` where a DAG runs in its place."""

    key: str
    state: str
    topic: str | None = None
    generation: int = 1
    dag: str | None = None


class Form(Protocol):
    """A way to write a DAG: a beginning, all nodes, all edges (by the places of their nodes), an end."""

    def begin(self) -> bytes:
        """What comes before the first node."""

    def nodes(self, first: int, nodes: Sequence[Vertex]) -> bytes:
        """The next nodes, from place `first` on."""

    def edges(self, first: int, edges: Sequence[tuple[int, int]]) -> bytes:
        """The next edges, after `first` others. All nodes came before."""

    def end(self) -> bytes:
        """What comes after the last edge."""


class Json:
    """As the API tells it."""

    def __init__(self, dag_id: str, name: str | None, state: str) -> None:
        self._head = {"id": dag_id, "name": name, "state": state}
        self._keys: list[bytes] = []

    def begin(self) -> bytes:
        return msgspec.json.encode(self._head)[:-1] + b',"nodes":['

    def nodes(self, first: int, nodes: Sequence[Vertex]) -> bytes:
        self._keys += [msgspec.json.encode(node.key) for node in nodes]
        views = [
            {"key": node.key, "state": node.state, "topic": node.topic, "generation": node.generation}
            | ({} if node.dag is None else {"dag": node.dag})
            for node in nodes
        ]
        return _joined(first, msgspec.json.encode(views)[1:-1])

    def edges(self, first: int, edges: Sequence[tuple[int, int]]) -> bytes:
        keys = self._keys
        begin = b"" if first else b'],"edges":['
        return begin + _joined(
            first, b",".join([b'{"upstream":%b,"downstream":%b}' % (keys[up], keys[down]) for up, down in edges])
        )

    def end(self) -> bytes:
        return b"]}"


class Mermaid:
    """A Mermaid flowchart, coloured by state."""

    def begin(self) -> bytes:
        return b"flowchart TD\n"

    def nodes(self, first: int, nodes: Sequence[Vertex]) -> bytes:
        lines = [
            f'    n{i}["{_mermaid_text(key)}"]:::{state}\n' for i, (key, state, *_) in enumerate(nodes, first)
        ]
        return "".join(lines).encode()

    def edges(self, first: int, edges: Sequence[tuple[int, int]]) -> bytes:
        return "".join([f"    n{up} --> n{down}\n" for up, down in edges]).encode()

    def end(self) -> bytes:
        return "".join(
            f"    classDef {state} fill:{colour},stroke:#555,color:#111\n" for state, colour in _COLOURS.items()
        ).encode()


class Dot:
    """A Graphviz digraph, coloured by state."""

    def __init__(self, name: str) -> None:
        self._name = name

    def begin(self) -> bytes:
        return f"digraph {_dot_text(self._name)} {{\n    node [shape=box, style=filled];\n".encode()

    def nodes(self, first: int, nodes: Sequence[Vertex]) -> bytes:
        return "".join(
            f'    n{i} [label={_dot_text(key)}, tooltip="{state}", fillcolor="{_COLOURS[state]}"];\n'
            for i, (key, state, *_) in enumerate(nodes, first)
        ).encode()

    def edges(self, first: int, edges: Sequence[tuple[int, int]]) -> bytes:
        return "".join([f"    n{up} -> n{down};\n" for up, down in edges]).encode()

    def end(self) -> bytes:
        return b"}\n"


def _joined(first: int, elements: bytes) -> bytes:
    return b"," + elements if first and elements else elements


def _mermaid_text(text: str) -> str:
    """Mermaid has no escapes but HTML entities written with `#`."""
    return "".join(char if char.isalnum() or char in " ._-/:" else f"#{ord(char)};" for char in text)


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
