"""The HTTP surface of the queue service: bodies in, one call to the parts of the process, results out.

Called by `app` alone. Nothing here keeps state; a crash loses at most answers, and callers repeat what was not
answered (enqueue by id or key, ack by token).

routes              topics, items, shards, quotas
routes_operations   what is done to many items at once; dead items by error
routes_logs         what jobs log
routes_workers      who workers are, and what they are told
routes_reasons      why an item or a topic does not go on
verbs               enqueue, dequeue, ack, nack, extend, revive, cancel
settling            what a dequeue settles first
body_decoders       the three hot bodies, decoded by msgspec
uniform_bodies      calls whose elements differ in one text each, read as a whole
parts               the parts of one process, as the routes see them
"""
