"""What happens to items that are held: ack, nack, extend, cancel, revive, and what time does to leases.

Called by `api.verbs` and by `duties.reaper`. Every change names the lease's token, and is one compare-and-set on
rows; completions are written in the same transaction. A crash leaves the lease, which runs out.

broker            enqueue, dequeue, ack and revive, each brought to its shards
acks              acks that share a flush, and go on with their DAGs in it
lease_ops         nack, extend, cancel, leases that ran out
failed_attempts   the log of deliveries that failed
item_states       where many items stand, in one question per shard
"""
