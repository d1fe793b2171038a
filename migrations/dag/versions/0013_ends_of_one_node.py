"""The end of one node with one node below it at most is applied by a function of its own."""

from migrations.script import create_functions

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("dag")
