"""DAGs as text for people's tools: Mermaid and Graphviz; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_COLOURS: Final = {
    "blocked": "#d9d9d9",
    "released": "#9ecae1",
    "succeeded": "#a1d99b",
    "failed": "#fc9272",
    "skipped": "#f0f0f0",
    "cancelled": "#bdbdbd",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A DAG's nodes (key, state) and its edges, as positions in `nodes`."""

    name: str
    nodes: Sequence[tuple[str, str]]
    edges: Sequence[tuple[int, int]]


def mermaid(picture: Picture) -> str:
    """A Mermaid flowchart, coloured by state."""

    def lines() -> Iterator[str]:
        yield "flowchart TD"
        for i, (key, state) in enumerate(picture.nodes):
            yield f'    n{i}["{_mermaid_text(key)}"]:::{state}'
        for up, down in picture.edges:
            yield f"    n{up} --> n{down}"
        for state, colour in _COLOURS.items():
            yield f"    classDef {state} fill:{colour},stroke:#555,color:#111"

    return "\n".join(lines()) + "\n"


def dot(picture: Picture) -> str:
    """A Graphviz digraph, coloured by state."""

    def lines() -> Iterator[str]:
        yield f"digraph {_dot_text(picture.name)} {{"
        yield "    node [shape=box, style=filled];"
        for i, (key, state) in enumerate(picture.nodes):
            yield f'    n{i} [label={_dot_text(key)}, tooltip="{state}", fillcolor="{_COLOURS[state]}"];'
        for up, down in picture.edges:
            yield f"    n{up} -> n{down};"
        yield "}"

    return "\n".join(lines()) + "\n"


def _mermaid_text(text: str) -> str:
    """Mermaid has no escapes but HTML entities written with `#`."""
    return "".join(char if char.isalnum() or char in " ._-/:" else f"#{ord(char)};" for char in text)


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
