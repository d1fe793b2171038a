"""Ids by callers are taken in as if they were new, and refused where they are not."""

from migrations.script import create_functions

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("queue")
