"""What acks leave behind beside a count, and claims of many bytes, are the business of functions."""

from migrations.script import create_functions, run_sql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

SQL = """
DROP FUNCTION IF EXISTS leave_ready(uuid[], int[], uuid[], uuid[], bigint[], uuid[], bigint);
DROP TYPE IF EXISTS acked_item CASCADE;
CREATE TYPE acked_item AS (
    id uuid,
    topic_id int,
    remembered bool,
    idempotency_key text,
    namespace_id int,
    attempts int,
    managed bool,
    ack_topic_id int,
    ack_context text);
COMMENT ON TYPE acked_item IS 'Of an item that has ended by an ack, what somebody may ask for later.';
"""


def upgrade() -> None:
    run_sql(SQL)
    create_functions("queue")
