"""Who a shard is, so that a host with an old map can do no harm.

`state` is `open`, or, in a schema that no service looks into: `incoming` (the copy of a move, not whole yet),
`moving` (fenced, the copy's source) and `moved`.
"""

from migrations.script import run_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

SQL = r"""
CREATE TABLE shard (
    number int PRIMARY KEY,
    epoch bigint NOT NULL DEFAULT 1,
    incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    state text NOT NULL DEFAULT 'open',
    move text);
INSERT INTO shard (number) VALUES (substring(current_schema() from '[0-9]+$')::int);
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
