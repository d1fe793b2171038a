"""Functions find runs by their keys alone, whatever the statistics say."""

from migrations.script import create_functions

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("dag")
