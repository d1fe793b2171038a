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

Where to look

    routes, verbs, intake, views,        the shape of requests and answers; `verbs` also the short way to some
      drawing
    subdags, subspec                     DAGs that run in the place of nodes
    expanding, cleaning, ranking         children of running nodes; what runs at the end; what goes first
    plain, births, growth                the common shape: new DAGs, several in one statement; more nodes
    building, inserting, addition,       creating and adding whatever else; cycle checks
      orders
    giving                               new nodes' items, on their way to the queue
    settling                             what one transaction decides; everything that changes nodes uses it
    completing, walking, turns           ends of nodes; work too long for one transaction, and whose turn it is
    control, retrying, reopening,        the other verbs
      queries
    explaining, chains                   what a DAG waits for, and for how long still
    relay, results, sweeper, lookout     the loops: outbox to queue, completions to DAG, what was left, looking out
    retention, keeping, exporting        ended DAGs: out of the way, back again, out of the door
    gateway                              the queue, over HTTP
    graph, items                         pure: triggers, orders, cycles; queue items
"""
