"""DAGs as Mermaid and Graphviz, whatever their keys hold."""

from services.dag.drawing import Picture, dot, mermaid

PICTURE = Picture('say "hi"\\', [('a"]; x', "succeeded"), ("g++\\", "blocked")], [(0, 1)])


def test_mermaid_keeps_keys_out_of_its_syntax() -> None:
    text = mermaid(PICTURE)
    assert 'n0["a#34;#93;#59; x"]:::succeeded' in text
    assert 'n1["g#43;#43;#92;"]:::blocked' in text
    assert "n0 --> n1" in text
    assert text.startswith("flowchart TD\n")


def test_dot_keeps_keys_out_of_its_syntax() -> None:
    text = dot(PICTURE)
    assert text.startswith('digraph "say \\"hi\\"\\\\" {\n')
    assert 'n0 [label="a\\"]; x"' in text
    assert 'n1 [label="g++\\\\"' in text
    assert "n0 -> n1;" in text
