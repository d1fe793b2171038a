"""Outputs of many acked items are taken from where all of them are, and not looked through for each."""

from migrations.script import create_functions

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("queue")
