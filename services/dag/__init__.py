"""The DAG service: keeps queue items closed until everything they wait for is done.

A DAG lives whole on one shard. Its row's lock is the DAG's lock: every change of structure or state takes
it first, in a statement of its own, and looks only afterwards.

Node states

    blocked ──> released ──> succeeded | failed | cancelled
       └──────> skipped | failed | cancelled

A retry begins a new generation at `blocked`; within one generation a terminal state never changes.

DAG states

    running ──> succeeded | failed
       └──────> cancelling ──> cancelled | failed

What is promised: no node is released before everything it waits for; each is released eventually, and once
in effect; a call either changes all that it names or nothing; what a caller was told stays true.

What a crash leaves, and who goes on

    after a DAG or more nodes of one     `adding` row, and outbox rows of what is released; the sweeper, or
      were written                         the same call again
    after the queue was given all        the same; the queue knows the items already and says `duplicate`
    after a commit, before the queue     outbox row; sent when it is overdue
      was told
    after the queue was told             outbox row; told again, to no further effect
    after a completion was applied,      the completion comes again and finds its generation over
      before it was acked
    half-way through a fan-out, a        `spread` or `scan` row; gone on with from its cursor
      cancel or a release
    half-way through a large retry       `reopening` and `reach` rows; the same, and nothing is decided before

Rooms, from the edge to the database; each says in its docstring what its modules do:

    api      requests and answers
    duties   the loops: outbox to queue, completions to DAGs, what was left over
    build    creating DAGs and adding to them
    read     questions: pages, explanations, streams, exports
    schedules  runs that begin at times
    workflows  runs of workflows: their turns, signals and histories
    run      ends and decisions of nodes, control, retry, cleanup
    store    every statement

Beside them: `graph` (triggers, orders and cycles; pure), `queue_client` (the queue, over HTTP), `queue_items` (the
items of nodes), `changes` (the log of a DAG's changes).
"""
