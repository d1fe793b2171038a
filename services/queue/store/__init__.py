"""The statements of `sql/`, bound: typed rows out.

Called by every room above. Writes name topics by number *and* name, so that a number remembered from before a
failover writes nothing. A crash rolls back what was not committed.

shard_store         the hot statements of one shard: peek, claim, ack, revive
items               item rows, and the tables that say where each item is
gates               what may be handed out of topics that have limits
topic_flow          what goes in and out, by topic, in memory
leases              lease groups: locks, extensions, sweeps
topics              namespaces and topics: settings, counts, lanes, the end of empty ones
operations          rows of bulk operations, and the walks that they make
job_logs            what jobs log
workers             workers by name; what was cancelled under leases
retention           what is kept only for a while; what is due next
enqueue             the statements of an enqueue flush
offers              calls that wait as statements are told of them, and what was leased to them
item_kinds          items of a flush by what they have in common
dequeue_encoding    a dequeue's answer as JSON text, made by the database
ready_ages          how long the oldest ready items have been ready
names               namespaces and topics of a shard by number, as lately met
"""
