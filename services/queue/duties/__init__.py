"""The loops of a queue process, each a bounded step over one shard.

Started by `app` for the shards that the process owns; two owners at once are harmless. A crash leaves rows for the
next owner; none of these duties keeps anything that only memory knows.

reaper          leases run out, delays end, TTLs pass
retention       memory of ended items, keys, dead items; counts are folded
empty_topics    topics that held nothing for long are deleted
fairness_keys   keys of a topic take turns
idle_gates      gates of limited topics and keys that hold nothing back any more
far_keys        idempotency keys whose items live on another shard
hints           what became ready here, for other processes' waiting calls
notices         what processes tell one another through the shards: quotas, shares, pauses
gauges          what is sampled for `/metrics`
topic_rates     what goes in and out of single topics, of those of which most moves
"""
