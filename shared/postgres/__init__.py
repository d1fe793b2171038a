"""One shard's Postgres: connections, transactions, statements, flushes.

Called by the stores of both services. Every statement has a timeout; a statement is repeated only where the server
said that it did nothing. What is cached of a server dies with its history. A crash leaves what was committed.

connections   the pool of a shard: pinned plans, urgency, retries
driver        the driver's connection, keeping what it has prepared
session       what every connection is set to
arrays        arrays as the driver sends them
sql           named blocks of `.sql` files
rows          rows of statements as named tuples
batcher       flushes shared by concurrent calls, per shard and verb
history       which history the server behind an address tells
schema        the schema revision that this code was written for
"""
