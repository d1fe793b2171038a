"""Nodes that run when all others have ended: cleanup, and compensation of what had succeeded."""

from migrations.script import run_sql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

SQL = """
-- `verdict` is the DAG's end as its ordinary nodes decided it; `cleanup_phase` is 1 while compensation runs, 2
-- while cleanup does. `cleanup_left` counts nodes of both kinds that are not terminal.
ALTER TABLE dag ADD COLUMN cleanups int NOT NULL DEFAULT 0, ADD COLUMN cleanup_left int NOT NULL DEFAULT 0,
    ADD COLUMN cleanup_phase int NOT NULL DEFAULT 0,
    ADD COLUMN verdict text CHECK (verdict IN ('succeeded', 'failed', 'cancelled'));

-- On which ends of its DAG a cleanup node runs; `undo`: it compensates another node. NULL: an ordinary node.
ALTER TABLE node ADD COLUMN run_on text;
ALTER TABLE kept_node ADD COLUMN run_on text;

-- The nodes of both kinds. `wave`: 0 until compensation is planned, then its turn, NULL once it had that.
CREATE TABLE cleanup (
    dag_no bigint NOT NULL,
    node_no bigint NOT NULL,
    of_no bigint,
    wave int,
    PRIMARY KEY (dag_no, node_no)
);
CREATE INDEX cleanup_wave ON cleanup (dag_no, wave) WHERE wave IS NOT NULL;

ALTER TABLE scan DROP CONSTRAINT scan_kind_check, ADD CONSTRAINT scan_kind_check
    CHECK (kind IN ('cancel', 'release', 'cleanup'));
"""


def upgrade() -> None:
    run_sql(SQL)
