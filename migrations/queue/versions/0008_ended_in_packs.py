"""Ids that their callers made are remembered many a row when they are acked together."""

from migrations.script import create_functions

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("queue")
