"""What limits and throttles let through: how many items of a topic, or of one of its fairness keys, come next.

Asked by dispatch before a claim, and told of ends by whatever ends items. What holds stands in rows of the shard;
what a process remembers is a look at them, so a crash loses nothing: the next process looks.

topic_gates  limits of topics: how many items may be handed out next
key_gates    limits of the fairness keys of topics
leaves       what was granted is given back, again where it was refused
in_time      shards and homes that are asked, and for how long they are waited for
limits       what is set for a topic, and the arithmetic of its gates
"""
