"""Schedules: runs that begin at times, each a DAG.

Called by `api` for the verbs, and by `duties` when a slot is due. A slot is decided under the lock of its
schedule's row, in one transaction with its tick and its run, so it is decided once, whoever is at it. A crash
before the commit leaves the slot due; after it, what the queue is still to be given stands as for any DAG.

spec       which times a schedule means; pure
policy     what becomes of a slot; pure
schedules  the verbs: put, read, delete, pause, backfill
ticking    due slots become ticks and runs
"""
