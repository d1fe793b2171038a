"""Statements live in `.sql` files, where a reader finds them all and a test prepares them all."""

import ast
import re

import pytest

from services.local.stack import ROOT

# A statement: its verb, and what can only follow it in SQL.
STATEMENT = re.compile(
    r"\b(SELECT\b.+\bFROM\b|INSERT INTO\b|UPDATE\b.+\bSET\b|DELETE FROM\b|TRUNCATE\b|(CREATE|ALTER|DROP) TABLE\b)",
    re.S,
)
# The launcher makes databases; connections and the shard map ask who is there before any schema is known.
MAY_HOLD_SQL = {"shared/postgres/history.py": 1, "shared/shards/shard_map.py": 2}


def strings(tree: ast.AST) -> list[ast.Constant]:
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents
    ]


def test_no_statement_hides_in_python() -> None:
    found: dict[str, list[int]] = {}
    for package in ("services/queue", "services/dag", "shared", "headgate"):
        for path in sorted((ROOT / package).rglob("*.py")):
            lines = [
                node.lineno for node in strings(ast.parse(path.read_text())) if STATEMENT.search(str(node.value))
            ]
            name = path.relative_to(ROOT).as_posix()
            if len(lines) > MAY_HOLD_SQL.get(name, 0):
                found[name] = lines
    assert found == {}


def test_only_the_stores_and_the_edge_of_postgres_know_its_driver() -> None:
    knowing = {
        path.relative_to(ROOT).as_posix()
        for package in ("services/queue", "services/dag", "shared", "headgate")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"^\s*(import|from) asyncpg\b", path.read_text(), re.MULTILINE)
    }
    assert {
        name
        for name in knowing
        if not re.search(
            r"^shared/(postgres/(connections|driver)|shards/shard_map)\.py$|^services/\w+/store/", name
        )
    } == set()


@pytest.mark.parametrize("service", ["queue", "dag"])
def test_only_the_store_asks_statements(service: str) -> None:
    rooms = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "services" / service).rglob("*.py")
        if path.parent.name != "store" and re.search(r"\bSQL\b|\bpostgres\.sql\b", path.read_text())
    }
    assert rooms == set()


def test_a_part_of_a_statement_is_named_for_what_it_holds() -> None:
    part = re.compile(
        r"(?:\bWITH|\bRECURSIVE|,)\s+(\w+)(?:\([^()]*\))?\s+AS\s+(?:MATERIALIZED\s*)?\(\s*\(?(?=[A-Z]{4})"
    )
    short = {
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for folder in ("services", "migrations", "shared", "audit")
        for path in (ROOT / folder).rglob("*.sql")
        if path.name != "schema.sql"
        for name in part.findall(re.sub(r"--[^\n]*", "", path.read_text()))
        if len(name) < 3
    }
    assert short == set()


@pytest.mark.parametrize("service", ["queue", "dag"])
def test_revisions_are_one_chain_in_the_order_of_their_numbers(service: str) -> None:
    before = None
    for path in sorted((ROOT / "migrations" / service / "versions").glob("[0-9]*_*.py")):
        named = dict(
            re.findall(r"^(revision|down_revision) = (?:\"(\w+)\"|None)$", path.read_text(), re.MULTILINE)
        )
        assert (named["revision"], named["down_revision"] or None) == (path.name[:4], before), path.name
        before = named["revision"]
