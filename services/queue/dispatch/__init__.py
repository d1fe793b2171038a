"""Where waiting consumers meet ready items.

Called by the dequeue verb, and by whatever makes items ready. Keys of ready items are read ahead into memory
(`keys`), limits are looked at (`gates`), and items are claimed by id in the database, which alone decides who gets
one. A crash leaves leases of items that nobody got, which run out.

dequeue           the verb: a call takes keys, has them claimed, or waits
dispatcher        the lines: which calls wait for which topics, and which keys are known
direct_handoff    calls that wait, and items handed to them where they become ready
key_refill        how keys are read ahead
key_budget        how many keys a process keeps, of all topics together
claiming          claims of calls: from which shards, and how many bytes an answer has room for
claim_flushes     claims of many calls brought together for a shard, and told apart again
resting_shards    shards of which nothing is handed out for now
gated_claims      claims of calls that name a topic with limits
announcements     what dispatch tells other processes
demand            when somebody last asked for each topic
"""
