"""Finds what a lost transaction left behind, on either side, and mends it when asked to.

`python -m audit` only reads; `python -m audit repair` says what it would do, and does it with `--yes`. Both look
straight at the shards' servers, so they also work while the services are down, and are harmless while they run:
each shard is read in one REPEATABLE READ snapshot, what is compared between two services is looked at again before
it is reported, and every repair is a compare-and-set under the locks that the services take.

Where to look

    finding       what a finding is; the table of them
    reading       connections and snapshots
    dags          a DAG shard by itself: counters and states against nodes, edges and externals
    queues        a queue shard by itself: every item in one place, counts against rows
    between       DAG shards against the queue and each other: what one side knows and the other has lost
    mending       the repairs
    metrics       findings as Prometheus text
"""
