"""A signal is taken by one statement."""

from migrations.script import create_functions

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("dag")
