"""Who a shard is and which slots it answers for, so that a host with an old map can do no harm.

`state` is `open`, or, in a schema that no service looks into: `incoming` (the copy of a move, not whole yet),
`moving` (fenced, the copy's source) and `moved`. `slots` are those whose idempotency keys live here; NULL: the map
is the environment's, where slots do not move. A key's row that came from another shard says where its item lives.
"""

from migrations.script import run_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SQL = r"""
ALTER TABLE shard
    ADD COLUMN incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
    ADD COLUMN state text NOT NULL DEFAULT 'open',
    ADD COLUMN move text,
    ADD COLUMN slots int4multirange;

ALTER TABLE dedup ADD COLUMN lives_at int;
CREATE INDEX dedup_elsewhere ON dedup (lives_at, namespace_id, key) WHERE lives_at IS NOT NULL;
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
