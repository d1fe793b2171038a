"""Mechanisms that both services need. No product policy lives here; nothing here imports a service.

clock, ids, errors       time, identity and failure, as values
settings, sql            the environment and the named SQL blocks
pg, shards               connections, transactions and the shard map
jsonbody, http           request bodies and the edge of an HTTP service
loop, log, metrics       background duties and what they tell
"""
