"""What is stored of a node, and the print by which it is known again, keep their form: rows hold old ones."""

import hashlib
import json
from typing import Any

import pytest

from headgate import wire
from services.dag.api import intake
from services.dag.settings import DagSettings

SETTINGS = DagSettings()
_PLAIN = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_SORTED = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)
PAYLOADS: list[Any] = [
    None,
    True,
    0,
    -(2**63),
    2**70,
    0.1,
    1e308,
    1e-7,
    5e16,
    "",
    'quotes " and \\ and { and \n and \x7f and \u2028 ü \U0001f600',
    [],
    [1, [2.0, None], "{"],
    {},
    {"b": 1, "a": {"d": [{"z": 1, "y": 2}], "c": 2}},
    [{"b": 1, "a": 2}],
]
MORE: list[dict[str, Any]] = [
    {},
    {"priority": -(2**31), "lease_s": 1, "max_attempts": 2**31 - 1},
    {"lease_s": 43_200, "priority": 2**31 - 1},
    {"lease_s": 1.1, "delay_s": 1e-3, "ttl_s": 1e-2},
    {"delay_s": 1_000_000, "ttl_s": 2_000_000.5},
    {"metadata": {"z": 1, "a": {"y": [1.5], "b": "ü"}}},
    {"backoff": {"base_s": 0}},
    {"backoff": {"base_s": 0.5, "factor": 1, "max_s": 9}, "metadata": {}},
    {"upstream": ["ü", "a", "a", '"'], "external": ["y", "x"], "pass_outputs": True, "trigger": "all_done"},
    {"external": [{"name": "y", "deadline_s": 5}, {"name": "x", "deadline_s": 2.5}, "z"]},
    {"run_on": "always"},
    {"compensates": "other"},
]


def as_before(node: wire.NodeSpec) -> tuple[str, bytes]:
    """The item's text and the print, by the encoder alone."""
    item: dict[str, Any] = {
        "topic": node.topic,
        "payload": node.payload,
        "priority": node.priority,
        "lease_s": node.lease_s,
        "max_attempts": node.max_attempts,
    }
    for name in ("metadata", "delay_s", "ttl_s"):
        if getattr(node, name) is not None:
            item[name] = getattr(node, name)
    if node.backoff is not None:
        item["backoff"] = {name: getattr(node.backoff, name) for name in ("base_s", "factor", "jitter", "max_s")}
    externals = {each.name: each.deadline_s for each in node.external or ()}
    deadlines = sorted((name, limit_s) for name, limit_s in externals.items() if limit_s is not None)
    whole: list[Any] = [
        item,
        node.trigger,
        node.pass_outputs,
        sorted(set(node.upstream or ())),
        sorted(externals),
    ]
    if node.run_on is not None or node.compensates is not None:
        whole.append([node.run_on, node.compensates])
    if deadlines:
        whole.append(deadlines)
    return _PLAIN.encode(item), hashlib.blake2b(_SORTED.encode(whole).encode(), digest_size=16).digest()


@pytest.mark.parametrize("more", MORE, ids=str)
def test_items_and_fingerprints_keep_their_form(more: dict[str, Any]) -> None:
    for payload in PAYLOADS:
        node = wire.NodeSpec.model_validate({"key": "k", "topic": "a/b-C.9_", "payload": payload, **more})

        [made] = intake.new_nodes([node], SETTINGS)

        assert (made.item, made.fingerprint) == as_before(node)


def test_a_sub_dag_is_known_by_its_whole_text() -> None:
    spec = {"key": "k", "dag": {"nodes": [{"key": "n", "topic": "t", "payload": 'a "quoted" {word}'}]}}

    [made] = intake.new_nodes([wire.NodeSpec.model_validate(spec)], SETTINGS)

    whole = [{"dag": made.item}, "all_succeeded", False, [], []]
    assert made.fingerprint == hashlib.blake2b(_SORTED.encode(whole).encode(), digest_size=16).digest()


@pytest.mark.parametrize(
    "said",
    [
        {"backoff": {}},
        {"backoff": {"base_s": 1, "factor": 2, "max_s": 300, "jitter": 0.2}},
        {"delay_s": 0},
        {"priority": 0, "max_attempts": 0, "lease_s": 60, "trigger": "all_succeeded", "pass_outputs": False},
        {"payload": None, "metadata": None, "ttl_s": None, "upstream": [], "external": [], "tolerate": False},
    ],
    ids=str,
)
def test_a_default_said_is_a_default_left_out(said: dict[str, Any]) -> None:
    # Else a builder that fills defaults in, or stops to, is told that another node has its key.
    nodes = [{"key": "k", "topic": "t"}, {"key": "k", "topic": "t", **said}]

    left_out, said_out = intake.new_nodes([wire.NodeSpec.model_validate(node) for node in nodes], SETTINGS)

    assert (said_out.item, said_out.fingerprint) == (left_out.item, left_out.fingerprint)
