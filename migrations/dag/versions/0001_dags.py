"""DAGs, their nodes, edges and externals; what the queue is still to be told; long work as rows; ended DAGs;
schedules; runs of workflows."""

from migrations.script import create_functions, run_files

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = ("shard", "dags", "long_work", "totals", "archive", "shared_values", "schedules", "workflows")


def upgrade() -> None:
    run_files("dag/functions", "shard_now")  # a default of columns
    run_files("dag/tables", *TABLES)
    run_files("tables", "shard_owner", "audit_entry", "analyze_seldom")
    create_functions("dag")


def downgrade() -> None:
    raise NotImplementedError("revisions only go forward: write a new one")
