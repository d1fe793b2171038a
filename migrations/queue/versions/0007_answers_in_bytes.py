"""What a claim leaves ready for the bytes that it would take is found by a function."""

from migrations.script import create_functions

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("queue")
