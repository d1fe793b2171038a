"""One item that an ack makes ready is revived by a function of its own."""

from migrations.script import create_functions

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("queue")
