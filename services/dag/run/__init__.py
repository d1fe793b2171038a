"""What happens to nodes once they are there: ends, decisions, control, retry, cleanup.

Called by `api` and `build`, and by `duties` with what the queue tells. All changes of one transaction go through
`decisions`, under the locks of the DAGs' rows. A crash before the commit leaves nothing; after it, what is to
follow stands as rows: the outbox for the queue, `spread` and `scan` rows for work too long for one transaction.

context              what the parts of a process share: shards, queue, who is told after a commit
decisions            one transaction's decisions about nodes, and everything that follows from them
completions          ends of nodes, from wherever they come
control              hold, pause, close, cancel, skip, externals, deadlines
retry                which nodes run again, each in a new generation
subdag_retry         a child DAG that is retried by its own id: the node that it ran for goes first
reopening            how they are brought back: at once, or step by step
cleanup              compensation and cleanup nodes, once all ordinary nodes have ended
compensation_input   what a compensation is given of what it undoes
priority             how soon items of a DAG with a priority are served
unarchive            ended DAGs are brought back to the hot tables before they change
watches              who waits for which DAG in this process
shared_values        what the jobs of a DAG share
deciders             first nodes of runs of workflows
run_ends             runs that are asked to end, or are ended
"""
