"""What happens to items that are held: ack, nack, extend, cancel, revive, and what time does to leases.

Called by `api.verbs` and by `duties.reaper`. Every change names the lease's token, and is one compare-and-set on
rows; completions are written in the same transaction. A crash leaves the lease, which runs out.

ack, nack, extend, revive, cancel   a verb each
expiry            leases that ran out, times to live that passed
ack_flushes       acks that share a flush, and go on with their DAGs in it
dag_news          what ends of items have done to DAGs, told
hand_backs        what was leased to a call that is not there to get it
doubts            what may be leased to nobody, as an answer was lost
held_items        the locks and looks that nack, extend and expiry have in common
shard_groups      a call's ids by their shards, and its results put together again
failed_attempts   the log of deliveries that failed
job_logs          what jobs log, written by their holders
item_states       where many items stand, in one question per shard
"""
