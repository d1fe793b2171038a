"""Values that the jobs of a DAG share."""

from migrations.script import create_functions, run_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SQL = """
-- Named values of a DAG. `version` grows by one with each write. `writes` are the ids of the last writes, the
-- newest last: by them a write that is sent again is recognised. Rows stay when their DAG ends, and go with it.
CREATE TABLE dag_value (
    dag_no bigint NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    version bigint NOT NULL,
    writes uuid[] NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (dag_no, key)
) WITH (autovacuum_analyze_threshold = 1000000);
-- How many values a DAG has, and their bytes. Its row is the lock of the DAG's values.
CREATE TABLE dag_value_use (
    dag_no bigint PRIMARY KEY,
    keys int NOT NULL,
    bytes bigint NOT NULL
) WITH (autovacuum_analyze_threshold = 1000000);
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("dag")
