"""Every named SQL block fits the schema it was written for, and is asked by the code beside it."""

import ast
import dataclasses
import importlib
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from shared.postgres.sql import load
from tests.support.databases import Databases

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("queue", "dag")
# What both services need is beside its module in `shared`, and fits the shards of both. The audit looks at both.
PLACES = {
    service: (
        ROOT / "services" / service / "store" / "sql",
        ROOT / "shared" / "shards",
        ROOT / "shared" / "console",
        ROOT / "audit" / "sql" / service,
    )
    for service in SERVICES
}
BLOCKS = [(service, block) for service, places in PLACES.items() for place in places for block in load(place)]


ROWS = {"rows_of", "row_of", "only_row_of"}
NUMBERS = {"column_of": 1, "value_of": 1, "value_or_none": 1, "map_of": 2}


def typed_rows(package: Path) -> Iterator[tuple[Any, str]]:
    """Types of rows, each with its statement: of `rows_of(Item, asked, SQL.items, ...)` and the like; of those
    that have one or two columns how many."""
    for path in sorted((package / "store").glob("*.py")):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            kind = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and kind in ROWS | NUMBERS.keys():
                row, *_, statement = node.args[: 4 if kind == "map_of" else 3]
                if isinstance(statement, ast.Call):  # of a statement that is changed on its way
                    statement = statement.args[0]
                assert isinstance(row, ast.Name) and isinstance(statement, ast.Attribute), ast.unparse(node)
                yield NUMBERS.get(kind) or getattr(module, row.id), statement.attr


@pytest.fixture(scope="module")
async def shards(databases: Databases) -> Any:
    """A connection to one migrated shard of each service."""
    database = await databases.create(queue_shards=1, dag_shards=1)
    found = {service: await database.connect(f"{service}_000") for service in SERVICES}
    yield found
    for connection in found.values():
        await connection.close()
    await databases.drop(database)


@pytest.mark.parametrize("service", SERVICES)
async def test_every_block_is_prepared_by_a_migrated_shard(shards: dict[str, Any], service: str) -> None:
    faults = []
    for block in [block for of, block in BLOCKS if of == service]:
        try:
            prepared = await shards[service].prepare(block.text)
        except asyncpg.PostgresError as error:
            faults.append(f"{block.name}: {error}")
            continue
        if (found := len(prepared.get_parameters())) != len(block.parameters):
            faults.append(f"{block.name} has {found} parameters, and names {block.parameters}")
    assert faults == []


@pytest.mark.parametrize("service", SERVICES)
def test_every_block_is_asked_by_the_code_beside_it(service: str) -> None:
    check((ROOT / "services" / service, ROOT / "shared"), PLACES[service][:3])


def test_every_block_of_the_audit_is_asked_by_it() -> None:
    # Places of items are dropped by their name.
    dropped = {f"drop_{place}" for place in ("ready", "deferred", "parked")}
    check([ROOT / "audit"], [PLACES[service][3] for service in SERVICES], besides=dropped)


def check(folders: Iterable[Path], places: Iterable[Path], besides: Collection[str] = ()) -> None:
    code = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    names = {block.name for block in load(*places)}

    asked = set(re.findall(r"\bSQL\.(\w+)", code))
    assert names - asked == set(besides)
    assert asked <= names


TYPED = [(service, *found) for service in SERVICES for found in typed_rows(ROOT / "services" / service)]


@pytest.mark.parametrize("service", SERVICES)
async def test_a_typed_row_has_the_columns_of_its_statement(shards: dict[str, Any], service: str) -> None:
    faults = []
    for row, name in [(row, name) for of, row, name in TYPED if of == service]:
        [block] = [block for of, block in BLOCKS if (of, block.name) == (service, name)]
        columns = [column.name for column in (await shards[service].prepare(block.text)).get_attributes()]
        if isinstance(row, int):
            fits = len(columns) == row
        else:
            fields = row._fields if hasattr(row, "_fields") else [field.name for field in dataclasses.fields(row)]
            fits = columns == list(fields)
        if not fits:
            faults.append(f"{name} has the columns {columns}, and is asked for {row}")
    assert faults == []
