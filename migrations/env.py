"""Alembic's entry point: migrates exactly one shard, over the connection that `migrations.revisions` hands in.

Tables, and alembic's own version table, live in the shard's schema, which is the connection's search_path.
"""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    version_table_schema=context.config.attributes["schema"],
    # A shard that fails half-way keeps the revisions that were complete.
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
