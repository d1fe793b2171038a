"""The queue service: a multi-tenant priority queue on sharded Postgres.

States of an item, and the narrow table that makes each true (an item's id is in exactly one)::

                      due                     claim                 ack
    enqueue --> delayed ---> ready ---------------------> leased --------> gone (acked)
       |       (deferred)     ^  ^                        |  |  |
       |                      |  +--- nack, lease ran out +  |  +--------> dead (parked): attempts used
       |            revive    |       (or delayed, backoff)  |                 |    up, or nack `final`
       +--> disabled ---------+                              |       redrive   |
            (parked)                                         |   ready <-------+--> gone (purged)
                                                             |
    from every state but gone: cancel --> gone (cancelled)   +--> gone (expired: at-most-once lease ran out)
    from ready and delayed: TTL passed --> gone (expired)

Guarantees: what was accepted is delivered at least once, or ends; one lease at a time holds an item; every
end of an item with an `ack_topic` writes one completion item in the same transaction. The shard's rows decide
all of it: any number of processes may serve the same shards at once. What a process keeps in memory (keys of
ready items, waiting consumers) only saves time, and losing it costs no more than a second.

Rooms, from the edge to the database; each says in its docstring what its modules do:

    api          requests and answers
    duties       the loops: what time does to items, hints, gauges
    operations   what is done to many items at once; topics
    leases       ack, nack, extend, cancel, revive
    enqueue      taking items in
    dispatch     waiting consumers meet ready items
    gates        what limits and throttles let through
    keys         keys of ready items, read ahead
    quotas       what a namespace may use
    store        every statement
"""
