"""Rows are checked for less: every statement reads anew what the checks of its tables say (ADR 14)."""

from migrations.script import run_sql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

SQL = """
-- A statement reads the text of each CHECK of a table before the first row that it writes. Counts, which each
-- change moves, are checked by one expression; the words by one array each. Words that only a call gives, and that
-- its model knows, are not checked a second time. Rows that are there were held to all of this: they are not read.
ALTER TABLE node
    DROP CONSTRAINT node_up_left_check, DROP CONSTRAINT node_up_ok_check, DROP CONSTRAINT node_up_failed_check,
    DROP CONSTRAINT node_up_skipped_check, DROP CONSTRAINT node_up_cancelled_check,
    DROP CONSTRAINT node_ext_left_check, DROP CONSTRAINT node_state_check, DROP CONSTRAINT node_trigger_check,
    ADD CONSTRAINT node_counts CHECK
        (least(up_left, up_ok, up_failed, up_skipped, up_cancelled, ext_left) >= 0) NOT VALID,
    ADD CONSTRAINT node_state CHECK
        (state = ANY ('{intent,blocked,released,succeeded,failed,skipped,cancelled}')) NOT VALID;
ALTER TABLE dag
    DROP CONSTRAINT dag_intent_check, DROP CONSTRAINT dag_blocked_check, DROP CONSTRAINT dag_released_check,
    DROP CONSTRAINT dag_succeeded_check, DROP CONSTRAINT dag_failed_check, DROP CONSTRAINT dag_skipped_check,
    DROP CONSTRAINT dag_cancelled_check, DROP CONSTRAINT dag_state_check, DROP CONSTRAINT dag_on_failure_check,
    DROP CONSTRAINT dag_cancel_cause_check, DROP CONSTRAINT dag_verdict_check,
    ADD CONSTRAINT dag_counts CHECK
        (least(intent, blocked, released, succeeded, failed, skipped, cancelled) >= 0) NOT VALID,
    ADD CONSTRAINT dag_state CHECK
        (state = ANY ('{running,cancelling,succeeded,failed,cancelled}')) NOT VALID;
ALTER TABLE outbox DROP CONSTRAINT outbox_action_check,
    ADD CONSTRAINT outbox_action CHECK
        (action = ANY ('{enqueue,revive,cancel,start,stop,report}')) NOT VALID;
"""


def upgrade() -> None:
    run_sql(SQL)


def downgrade() -> None:
    raise NotImplementedError("migrations only go forward")
