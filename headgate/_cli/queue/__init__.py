"""The commands about what the queue holds.

items: enqueue, ack and the like; dequeue; topics, also namespaces and shards; operations: many items at once;
limits: what topics hand out at most; quotas: what a namespace may use; workers: who takes items.
"""
