"""DAGs in the place of nodes: a DAG knows the node that it runs for, and tells it of its end."""

from migrations.script import run_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SQL = """
-- `depth` is 0 for a DAG of its own. `endings` counts how often a DAG was reopened: each end is told once.
ALTER TABLE dag ADD COLUMN depth int NOT NULL DEFAULT 0, ADD COLUMN parent_dag uuid, ADD COLUMN parent_node text,
    ADD COLUMN parent_generation int, ADD COLUMN endings int NOT NULL DEFAULT 0;

-- `sub`: a DAG runs in this node's place, and `item_id` is its id.
ALTER TABLE node ADD COLUMN sub boolean NOT NULL DEFAULT false;

ALTER TABLE outbox DROP CONSTRAINT outbox_action_check, ADD CONSTRAINT outbox_action_check
    CHECK (action IN ('enqueue', 'revive', 'cancel', 'start', 'stop', 'report'));
"""


def upgrade() -> None:
    run_sql(SQL)
