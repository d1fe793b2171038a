"""What a call meets before it is worked on, in this order, and by which of it a call is refused.

1. `fair_queue`, at the edge, before anything is parsed: while the event loop is late, calls stand in line, urgent
   ones first, namespaces by turns. Who stands for too long, or comes behind such a one, is refused: `overloaded`.
2. `delay.LoopLag.let_in`, when a call begins, also one by the framework's way, which has no line: while every
   round of the loop takes too long, the less urgent are refused: `overloaded`. What the call asks of shards is as
   urgent from here on.
3. `token_buckets`: an element over its namespace's rate, which all processes share over Redis, is refused:
   `over_quota`.
4. `breaker`: while a shard does not answer, what goes there is refused at once: `shard_unavailable`.
5. `delay.Standing`, at a flush and at a shard's connections: where the oldest in the line has waited for too long,
   all through an interval (CoDel), the next of that urgency are refused: `overloaded`.
6. `fairness`: calls that share a flush take turns by namespace when not all fit. Nobody is refused.
7. `connection_priority`: acks get the next free connection before dequeues, enqueues and lists.

1, 2 and 5 each ask how long was waited in the line that they are in front of: for the processor, within the
process, for a shard. A call that is refused was not begun: `outcome: none` and Retry-After.

Called by `http` and `postgres`. All of it is memory of one process; a crash loses nothing.
"""
