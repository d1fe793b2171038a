"""${message}"""

from migrations.script import run_sql

revision = "${up_revision}"
down_revision = ${'"%s"' % down_revision if down_revision else None}
branch_labels = None
depends_on = None

# Any number of statements; no schema names (search_path is the shard), no parameters.
SQL = """
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("revisions only go forward: write a new one")
