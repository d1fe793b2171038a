"""Rows of nodes and edges have room for the updates of their life on their own page (ADR 22)."""

from migrations.script import run_sql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

SQL = """
-- A node is updated twice, released and ended, an edge once, soon after each other and for thousands that lie side
-- by side: no page is cleaned up in between. A page that is filled to a third, or to a half, takes all of it, and
-- no index is written. Pages that are there stay as they are.
ALTER TABLE node SET (fillfactor = 35);
ALTER TABLE edge SET (fillfactor = 50);
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
