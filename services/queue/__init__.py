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

Where to look: `routes` for the HTTP shape, `broker` for what each verb does, `dispatch` for how waiting
consumers meet ready items, `store` and `sql/` for what the database is asked, `reaper` and `retention` for
what happens in the background; `operations` for what is done to many items at once, `lanes` for taking turns.
"""
