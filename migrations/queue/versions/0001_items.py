"""Items, the narrow tables that say where each of them is, and what the service keeps beside them.

An item's facts are written once, in `item`. Which of `ready`, `deferred`, `parked` or `lease` holds its id
is its state; an item is in exactly one of them.
"""

from migrations.script import create_functions, run_files

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = ("shard", "names", "items", "counts", "operations", "job_logs", "workers")


def upgrade() -> None:
    run_files("queue/tables", "types")
    run_files("queue/functions", "shard_now")  # a default of columns
    run_files("queue/tables", *TABLES)
    run_files("tables", "shard_owner", "audit_entry", "analyze_seldom")
    create_functions("queue")


def downgrade() -> None:
    raise NotImplementedError("revisions only go forward: write a new one")
