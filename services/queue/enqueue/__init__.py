"""Taking items in.

Called by `api.verbs`. Calls that share a flush are one transaction per shard, and each is
answered for itself, after COMMIT. A crash before it leaves nothing of the call.

enqueue           the verb: which of the three ways a call goes
simple_enqueue    ids made here, and nothing given but topic, payload, priority and lease
named_enqueue     the same with ids by callers, which are mostly new
general_enqueue   keys, affinities, delays, disabled items; ids that are not new
item_rows         the rows of an enqueue flush, and the print by which a repeated key is judged
placement         which shards a topic's items go to
"""
