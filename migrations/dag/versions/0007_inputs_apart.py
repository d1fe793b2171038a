"""What a node is given of its upstreams' outputs is gathered by a function of its own."""

from migrations.script import create_functions

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_functions("dag")
