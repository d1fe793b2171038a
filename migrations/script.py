"""What a revision calls to run its SQL."""

from pathlib import Path

from alembic import op

_TREE = Path(__file__).resolve().parent


def run_sql(source: str | Path) -> None:
    """Run SQL text, or the text of a file, of any number of statements, inside the revision's transaction.

    asyncpg prepares what SQLAlchemy hands it, and only single statements can be prepared. So the text goes to the
    driver's own `execute`, which uses the simple query protocol; no parameters are possible there.
    """
    sql = source.read_text() if isinstance(source, Path) else source
    bind = op.get_bind()
    # SQLAlchemy sends BEGIN with its first own statement; what goes past it must not run before.
    bind.exec_driver_sql("SELECT 1")
    adapted = bind.connection.dbapi_connection
    assert adapted is not None
    # asyncpg fails on a text without any statement, which an empty revision has.
    adapted.run_async(lambda connection: connection.execute(f"SELECT 1;\n{sql}"))


def run_files(folder: str, *names: str) -> None:
    """Run `<name>.sql` of a folder beside this file, one after another."""
    for name in names:
        run_sql(_TREE / folder / f"{name}.sql")


def create_functions(service: str) -> None:
    """Create, or replace, every function of the service as its file in `<service>/functions/` has it.

    Bodies are not checked, so that a function may use what a later revision makes. One whose arguments or columns
    have changed must be dropped first, by the revision that calls this.
    """
    texts = [path.read_text() for path in sorted((_TREE / service / "functions").glob("*.sql"))]
    run_sql("SET LOCAL check_function_bodies = off;\n" + "\n".join(texts))
