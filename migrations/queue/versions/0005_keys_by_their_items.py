"""An item that ends frees its key only where that is its own still."""

from migrations.script import create_functions

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("queue")
