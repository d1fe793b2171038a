"""What a call meets before it is worked on, in this order.

1. `fair_queue`: while the event loop is late, calls stand in line; urgent ones first, namespaces by turns.
2. `delay`: where calls have stood for too long, as CoDel judges it, the next ones of that level are refused.
3. `token_buckets`: a namespace's rate, shared by all processes over Redis.
4. `breaker`: while a shard does not answer, calls to it are refused at once.
5. `fairness`: calls that share a flush take turns by namespace when not all fit.
6. `connection_priority`: acks get the next free connection before dequeues, enqueues and lists.

Called by `http` and `postgres`. All of it is memory of one process; a crash loses nothing.
"""
