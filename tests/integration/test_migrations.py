"""The migration runner, as a person or a deployment runs it."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from migrations import heads
from shared.postgres.schema import head
from tests.support import schema
from tests.support.databases import Database, Databases
from tests.support.forked import run_module
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
UNREACHABLE = "postgresql://someone:secret@127.0.0.1:1/nowhere"


@pytest.fixture
async def empty(databases: Databases) -> AsyncIterator[Database]:
    """A database with room for 2 queue and 1 dag shard, in which nothing was migrated."""
    made = await databases.create_empty(queue_shards=2, dag_shards=1)
    yield made
    await databases.drop(made)


@pytest.fixture
def migrated(database: Database) -> Database:
    """2 queue shards and a dag shard at head, copied and not made here."""
    return replace(database, queue_shards=f"{database.dsn}#2", dag_shards=f"{database.dsn}#1")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the code in which a test may add revisions."""
    for package in ("migrations", "shared", "headgate"):
        shutil.copytree(ROOT / package, tmp_path / package)
    return tmp_path


async def run(*argv: str, cwd: Path = ROOT, **environment: str) -> tuple[int, str, str]:
    """Run a module of the project; answer its exit code, stdout and stderr."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HEADGATE_", "PYTHON"))}
    return await run_module(*argv, env={**inherited, **environment}, cwd=cwd, timeout_s=240)


async def migrate(verb: str, database: Database, cwd: Path = ROOT, **environment: str) -> tuple[int, str, str]:
    shards = {"HEADGATE_QUEUE_SHARDS": database.queue_shards, "HEADGATE_DAG_SHARDS": database.dag_shards}
    return await run("migrations", verb, cwd=cwd, **{**shards, **environment})


async def execute(database: Database, schema: str, sql: str) -> None:
    connection = await database.connect(schema)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def revisions(database: Database) -> list[str]:
    """What stands in each shard's version table."""
    found = []
    for address in database.addresses:
        connection = await database.connect(address.schema)
        rows = await connection.fetch("SELECT version_num FROM alembic_version")
        found += [row["version_num"] for row in rows]
        await connection.close()
    return found


def add_revision(tree: Path, service: str, *texts: str) -> str:
    """Write the revision after the newest, which runs the texts one after another; answer its number."""
    before = max(path.name[:4] for path in (tree / "migrations" / service / "versions").glob("0*.py"))
    number = f"{int(before) + 1:04d}"
    text = (
        "from migrations.script import run_sql\n"
        f'revision = "{number}"\n'
        f'down_revision = "{before}"\n'
        f"def upgrade():\n    for text in {texts!r}:\n        run_sql(text)\n"
    )
    (tree / "migrations" / service / "versions" / f"{number}_later.py").write_text(text)
    return number


async def test_two_migrators_at_once_make_every_shard_once(empty: Database) -> None:
    outcomes = await asyncio.gather(*(migrate("up", empty) for _ in range(2)))

    assert [code for code, _, _ in outcomes] == [0, 0], outcomes
    assert await revisions(empty) == [head("queue"), head("queue"), head("dag")]
    lines = [line for _, output, _ in outcomes for line in output.splitlines()]
    for address in empty.addresses:
        made = [line for line in lines if line.startswith(address.schema) and "empty ->" in line]
        assert len(made) == 1


async def test_a_migrator_waits_for_another_ones_lock(empty: Database) -> None:
    connection = await empty.connect("queue_000")
    await connection.execute("SELECT pg_advisory_lock(hashtext('headgate.migrations'), hashtext('queue_000'))")
    migrating = asyncio.create_task(migrate("up", empty))
    async with asyncio.timeout(240):
        while not await connection.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        ):
            assert not migrating.done()
    assert await connection.fetchval("SELECT to_regnamespace('queue_000')") is None

    await connection.close()

    code, output, _ = await migrating
    assert (code, output.count("empty ->")) == (0, 3)


async def test_up_again_changes_nothing(database: Database) -> None:
    code, output, errors = await migrate("up", database)

    assert (code, errors) == (0, "")
    assert output.splitlines() == [
        f"{address.schema}  {head(address.schema.rpartition('_')[0])}, nothing to do"
        for address in database.addresses
    ]


async def test_check_fails_until_every_shard_is_at_head(empty: Database) -> None:
    assert (await migrate("check", empty))[0] == 1
    assert (await migrate("status", empty))[0] == 0
    await migrate("up", empty)
    assert (await migrate("check", empty))[0] == 0

    await execute(empty, "queue_001", "UPDATE alembic_version SET version_num = '0000'")

    code, output, errors = await migrate("check", empty)
    assert code == 1
    assert "1 of 3 shards" in errors
    assert [line.split()[2] for line in output.splitlines()[1:]] == [head("queue"), "0000", head("dag")]


async def test_a_shard_that_is_down_does_not_hold_up_the_others(empty: Database) -> None:
    shards = f"0={UNREACHABLE} 1={empty.dsn}"

    code, output, errors = await migrate("up", empty, HEADGATE_QUEUE_SHARDS=shards)

    assert code == 1
    assert errors.startswith("queue_000  failed") and errors.count("\n") == 1
    assert [line.split()[0] for line in output.splitlines()] == ["queue_001", "dag_000"]
    code, output, _ = await migrate("status", empty, HEADGATE_QUEUE_SHARDS=shards)
    assert code == 0
    assert "unreachable" in output and "secret" not in output


async def test_a_revision_holds_many_statements_and_is_all_or_nothing(migrated: Database, tree: Path) -> None:
    number = add_revision(tree, "queue", "CREATE TABLE first (n int); INSERT INTO first VALUES (1), (2)")
    assert (await migrate("up", migrated, tree))[0] == 0
    assert await revisions(migrated) == [number, number, head("dag")]

    last_whole = add_revision(tree, "queue", "CREATE TABLE second (n int)")
    add_revision(tree, "queue", "CREATE TABLE third (n int); INSERT INTO third VALUES (1)", "SELECT 1 / 0")
    code, _, errors = await migrate("up", migrated, tree)

    assert code == 1
    assert errors.splitlines() == [f"queue_00{n}  failed: division by zero" for n in (0, 1)]
    assert await revisions(migrated) == [last_whole, last_whole, head("dag")]
    connection = await migrated.connect("queue_000")
    assert await connection.fetchval("SELECT count(*) FROM first") == 2
    assert await connection.fetchval("SELECT to_regclass('second')") is not None
    assert await connection.fetchval("SELECT to_regclass('third')") is None
    await connection.close()


async def test_new_writes_a_revision_that_applies(migrated: Database, tree: Path) -> None:
    code, _, errors = await run("migrations", "new", "dag", "Nothing yet", cwd=tree)
    assert (code, errors) == (0, "")
    number = f"{int(head('dag')) + 1:04d}"
    assert (tree / "migrations" / "dag" / "versions" / f"{number}_nothing_yet.py").exists()

    assert (await migrate("up", migrated, tree))[0] == 0

    assert await revisions(migrated) == [head("queue"), head("queue"), number]


@pytest.mark.parametrize("shards", ["", "0=", "postgresql://a#x", "0=postgresql://a 0=postgresql://b"])
async def test_a_shard_map_that_cannot_be_read_is_told_in_one_line(shards: str) -> None:
    code, output, errors = await run("migrations", "up", HEADGATE_QUEUE_SHARDS=shards)

    assert (code, output) == (2, "")
    assert errors.count("\n") == 1 and "HEADGATE_QUEUE_SHARDS" in errors


@pytest.mark.parametrize("service", ["queue", "dag"])
async def test_the_schema_that_can_be_read_is_that_of_a_migrated_shard(database: Database, service: str) -> None:
    assert schema.path(service).read_text() == await schema.schema(database, service), (
        "run `make schema` and look at the change"
    )


@pytest.mark.parametrize("service", ["queue", "dag"])
async def test_every_function_of_a_shard_is_that_of_its_file(database: Database, service: str) -> None:
    """A function that no file holds, or a file that the revisions do not load, would be seen by nobody."""
    connection = await database.connect(f"{service}_000")
    rows = await connection.fetch(
        "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = current_schema()::regnamespace"
    )
    await connection.close()
    found = {row["proname"]: row["prosrc"] for row in rows}
    files = {path.stem: path.read_text() for path in (ROOT / "migrations" / service / "functions").glob("*.sql")}

    assert sorted(row["proname"] for row in rows) == sorted(files)
    assert [name for name, body in found.items() if body not in files[name]] == []


async def test_a_revision_brings_functions_that_were_changed(migrated: Database, tree: Path) -> None:
    function = tree / "migrations" / "dag" / "functions" / "verdict.sql"
    function.write_text(function.read_text().replace("'wait'", "'later'"))
    number = add_revision(tree, "dag")
    revision = tree / "migrations" / "dag" / "versions" / f"{number}_later.py"
    text = "from migrations.script import create_functions\n" + revision.read_text()
    revision.write_text(text + "    create_functions('dag')\n")

    assert (await migrate("up", migrated, tree))[0] == 0

    connection = await migrated.connect("dag_000")
    assert await connection.fetchval("SELECT verdict('all_done', 1, 0, 0, 0, 0)") == "later"
    await connection.close()


def test_heads_are_the_newest_file_names() -> None:
    for service, newest in heads().items():
        assert list((ROOT / "migrations" / service / "versions").glob(f"{newest}_*.py"))


@pytest.mark.parametrize("service", ["queue", "dag"])
@pytest.mark.parametrize("state", ["never migrated", "behind"])
async def test_a_service_refuses_a_schema_it_was_not_written_for(
    empty: Database, migrated: Database, redis_url: str, service: str, state: str
) -> None:
    found = migrated if state == "behind" else empty
    if state == "behind":
        await execute(found, f"{service}_000", "UPDATE alembic_version SET version_num = '0000'")
    upper = service.upper()
    environment = {
        f"HEADGATE_{upper}_SHARDS": found.queue_shards if service == "queue" else found.dag_shards,
        f"HEADGATE_{upper}_PORT": str(free_port()),
        "HEADGATE_REDIS_URL": redis_url,
        "HEADGATE_QUEUE_URL": "http://127.0.0.1:1",
    }

    code, output, errors = await run(f"services.{service}", cwd=ROOT, **environment)

    assert code != 0
    assert "python -m migrations up" in output + errors
    assert f"{service}_000" in output + errors
