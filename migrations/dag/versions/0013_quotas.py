"""Quotas of single namespaces: how many unfinished DAGs they may have, and nodes and edges in them."""

from migrations.script import run_sql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

SQL = """
-- The same on every shard; the newest row counts. NULL: the service's default.
CREATE TABLE quota (
    namespace text PRIMARY KEY,
    dags_max bigint,
    nodes_max bigint,
    edges_max bigint,
    updated_at timestamptz NOT NULL DEFAULT shard_now()
);
"""


def upgrade() -> None:
    run_sql(SQL)
