"""An ack of many nodes of one DAG locks that at once, where nobody else has."""

from migrations.script import create_functions

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("dag")
