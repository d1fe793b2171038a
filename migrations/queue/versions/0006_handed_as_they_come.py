"""An item that comes while a call waits for it is leased by the statement that takes it in."""

from migrations.script import create_functions

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("queue")
