"""DAGs as Mermaid and Graphviz, whatever their keys hold."""

import json

from services.dag.read.drawing import Dot, Form, Json, Mermaid, Vertex

NODES = [Vertex('a"]; x', "succeeded"), Vertex("g++\\", "blocked", "work", 2, "d")]


def drawn(form: Form) -> str:
    """Written one by one."""
    parts = [form.begin(), form.nodes(0, NODES[:1]), form.nodes(1, NODES[1:])]
    parts += [form.edges(0, [(0, 1)]), form.edges(1, [(1, 0)]), form.end()]
    return b"".join(parts).decode()


def test_json_is_whole_however_many_parts_it_comes_in() -> None:
    form = Json("id", None, "running")
    found = json.loads(drawn(form))
    assert found == {
        "id": "id",
        "name": None,
        "state": "running",
        "nodes": [
            {"key": 'a"]; x', "state": "succeeded", "topic": None, "generation": 1},
            {"key": "g++\\", "state": "blocked", "topic": "work", "generation": 2, "dag": "d"},
        ],
        "edges": [
            {"upstream": 'a"]; x', "downstream": "g++\\"},
            {"upstream": "g++\\", "downstream": 'a"]; x'},
        ],
    }
    empty = Json("id", "n", "running")
    parts = [empty.begin(), empty.nodes(0, []), empty.edges(0, []), empty.end()]
    assert json.loads(b"".join(parts)) == {"id": "id", "name": "n", "state": "running", "nodes": [], "edges": []}


def test_mermaid_keeps_keys_out_of_its_syntax() -> None:
    text = drawn(Mermaid())
    assert 'n0["a#34;#93;#59; x"]:::succeeded' in text
    assert 'n1["g#43;#43;#92;"]:::blocked' in text
    assert "n0 --> n1" in text
    assert text.startswith("flowchart TD\n")


def test_dot_keeps_keys_out_of_its_syntax() -> None:
    text = drawn(Dot('say "hi"\\'))
    assert text.startswith('digraph "say \\"hi\\"\\\\" {\n')
    assert 'n0 [label="a\\"]; x"' in text
    assert 'n1 [label="g++\\\\"' in text
    assert "n0 -> n1;" in text
