"""Questions about DAGs: nothing here takes a lock or changes a row.

Called by `api`. Every answer is bounded in rows and in bytes; a crash loses nothing.

queries         DAGs, nodes, inputs, outputs, pages of them
surroundings    upstreams, downstreams and externals of nodes, for as many as there is room for
explain         what a DAG waits for, since when, and how far it is to its end
externals       what a namespace's DAGs wait for that somebody outside has to say
critical_path   the longest way through what is left of a DAG; pure
event_streams   a DAG's changes as server-sent events
reasons         why a DAG or a node does not go on, down to the root
shard_health    what the shards hold, who owns them, how quick they are
samples         what of the counts is kept for an hour
export          ended DAGs in the order of their ends
drawing         DAGs as JSON, Mermaid and Graphviz, part by part; pure
"""
