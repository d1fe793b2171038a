"""The statements of `sql/`, bound: typed rows out.

Called by every room above. Writes name topics by number *and* name, so that a number remembered from before a
failover writes nothing. A crash rolls back what was not committed.

shard_store         what one shard is asked, one method per statement or transaction
enqueue             the statements of an enqueue flush
item_kinds          items of a flush by what they have in common
dequeue_encoding    a dequeue's answer as JSON text, made by the database
ready_ages          how long the oldest ready items have been ready
names               namespaces and topics of a shard by number, as lately met
"""
