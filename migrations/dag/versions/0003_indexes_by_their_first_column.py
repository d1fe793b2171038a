"""An index of several columns is searched by its first, whatever statistics say."""

from migrations.script import run_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# With the statistics of an empty table all indexes cost the same, and a plan is kept: a lookup by the last column
# of one of these read it from end to end. What does not name the first column does not imply such a condition.
SQL = """
DROP INDEX edge_down;
CREATE INDEX edge_down ON edge (down, up) WHERE down IS NOT NULL;
DROP INDEX kept_edge_down;
CREATE INDEX kept_edge_down ON kept_edge (down, up) WHERE down IS NOT NULL;
DROP INDEX dag_listed;
CREATE INDEX dag_listed ON dag (namespace, id) WHERE namespace IS NOT NULL;
DROP INDEX dag_listed_by_state;
CREATE INDEX dag_listed_by_state ON dag (namespace, state, id) WHERE namespace IS NOT NULL;
"""


def upgrade() -> None:
    run_sql(SQL)
