"""What a revision calls to run its SQL."""

from pathlib import Path

from alembic import op


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
