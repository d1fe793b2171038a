"""The commands that change a graph while it runs: what they send, and that edges into new nodes go with them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.headgate.conftest import Run
from tests.unit.headgate.fakes import Service


def file_of(tmp_path: Path, spec: Any) -> str:
    path = tmp_path / "more.json"
    path.write_text(json.dumps(spec))
    return str(path)


def added(_method: str, path: str, body: Any) -> Any:
    if path.endswith("/dependencies"):
        return {"dependencies": body["dependencies"]}
    return {"nodes": [{"key": node["key"], "item_id": "i", "state": "blocked"} for node in body["nodes"]]}


def test_an_edge_into_a_new_node_goes_with_the_node_and_others_after_it(
    service: Service, run: Run, tmp_path: Path
) -> None:
    """Otherwise the node could start before the edge is there."""
    service.reply = added
    nodes = [{"key": "a", "topic": "t", "upstream": ["old"]}, {"key": "b", "topic": "t", "payload": 1}]
    edges = [{"upstream": "a", "downstream": "b"}, {"upstream": "b", "downstream": "last"}]
    code, out, _ = run("dag", "add", "d1", file_of(tmp_path, {"nodes": nodes, "dependencies": edges}))
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["a", "blocked"], ["b", "blocked"]]
    assert service.asked("/d1/nodes") == [{"nodes": [nodes[0], {**nodes[1], "upstream": ["a"]}]}]
    assert service.asked("/d1/dependencies") == [{"dependencies": edges[1:]}]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"nodes": [], "name": "x"}, "this is neither: name"),
        ({"dependencies": [{"upstream": "a"}]}, "{upstream, downstream}"),
        ({"dependencies": [1]}, "{upstream, downstream}"),
        ({"nodes": [{"key": "a", "topic": "t"}, {"topic": "t"}]}, "/nodes/1 has no `key`"),
        ({"nodes": [{"key": "a", "topc": "t"}]}, "node 'a' has no `topic`"),
        ({"nodes": [{"key": "a", "run": "true"}]}, "shell commands are run by `headgate dag run`"),
        ([], "should hold an object"),
    ],
)
def test_a_file_of_another_form_is_refused_before_anything_is_sent(
    service: Service, run: Run, tmp_path: Path, spec: Any, said: str
) -> None:
    code, _, err = run("dag", "add", "d1", file_of(tmp_path, spec))
    assert (code, service.calls) == (2, [])
    assert said in err


def test_expand_adds_children_of_a_node(service: Service, run: Run, tmp_path: Path) -> None:
    service.reply = added
    child = {"key": "c", "topic": "t"}
    assert run("dag", "expand", "d1", "scan", file_of(tmp_path, {"nodes": [child]}))[0] == 0
    assert service.asked("/d1/expand") == [{"node": "scan", "nodes": [child]}]


def test_depend_adds_an_edge(service: Service, run: Run) -> None:
    service.reply = added
    code, out, _ = run("-o", "json", "dag", "depend", "d1", "a", "b")
    assert (code, json.loads(out)) == (0, [{"upstream": "a", "downstream": "b"}])
    assert service.asked("/d1/dependencies") == [{"dependencies": [{"upstream": "a", "downstream": "b"}]}]


def test_what_nodes_were_given_and_gave_is_shown(service: Service, run: Run) -> None:
    service.reply = lambda *_: {"a": [1]}
    assert json.loads(run("dag", "inputs", "d1", "k")[1]) == {"a": [1]}
    service.reply = lambda *_: {"items": [{"key": "k", "output": {"n": 1}}], "next_cursor": None}
    code, out, _ = run("dag", "outputs", "d1")
    assert (code, out.split()) == (0, ["KEY", "OUTPUT", "k", '{"n":', "1}"])
