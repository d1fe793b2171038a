"""The loops of a DAG process, each a bounded step over one shard.

Started by `app` for the shards that the process owns; two owners at once are harmless. A crash leaves rows
(outbox, `adding`, walks, deadlines); whoever owns the shard next goes on with them.

relay             the outbox's sender: tells the queue what transactions decided
completion_poll   completions of nodes, from the queue to their DAGs
queue_events      what queue processes completed themselves, told over Redis
long_steps        work too long for one transaction: fan-outs, skips, cancels, large retries
turns             whose turn it is among DAGs with work left
slots             slots of schedules that are due
timers            timers whose time has come
sweeper           adds that stopped half-way, deadlines, totals
retention         ended DAGs leave the hot tables, and are dropped after their time
duty_poll         one look at a shard for several duties; those with work are woken
"""
