"""Which shards there are, and which process looks after which.

Called by both services and by the `shards` tool. Ownership only saves work: rows decide, so two owners at once are
harmless. A crash leaves an ownership that runs out.

shard_map    the shards of one process, as the map has them now
map_file     the map as data: shards, addresses, slots
asking       lists over all shards, also while some do not answer
ownership    which shards this process looks after
membership   which processes there are, by Redis
balance      which process should own which shard
"""
