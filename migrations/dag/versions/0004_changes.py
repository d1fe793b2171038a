"""Every change of a DAG's and its nodes' states, in the order in which they were committed."""

from migrations.script import run_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SQL = """
-- How many changes of this DAG were written so far; the last one's number.
ALTER TABLE dag ADD COLUMN last_event bigint NOT NULL DEFAULT 0;

-- One row for all changes that one transaction made to one DAG. They are numbered under the DAG's lock, so numbers
-- have no gaps and grow in the order of the commits: whoever has read up to one has missed none before it.
-- `nodes` is text like `12:succeeded 13:released 14:blocked#2` (a node's number in its DAG, its state, and its
-- generation where that is not the first); `dag` is JSON. `last_event` is the number of the row's last change.
CREATE TABLE change (
    dag_no bigint NOT NULL,
    last_event bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT shard_now(),
    nodes text,
    dag text,
    PRIMARY KEY (dag_no, last_event)
);
"""


def upgrade() -> None:
    run_sql(SQL)
