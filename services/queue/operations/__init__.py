"""What is done to many items at once, and to topics.

Called by `api.routes_operations` and `duties`. An operation is a row that says how far it has come; each step is
bounded in rows and adapts to how long the last one took. A crash leaves the row; the shard's next owner goes on.

bulk         purge, redrive, cancel by filter
selection    which items an operation is about
dead_items   dead items grouped by error
topics       namespaces, topics, pages of items; pause and resume
topic_states  what callers see of topics and namespaces
listing      lists by name over all shards, page by page
known_workers   workers by name, as they were seen
cancel_news  what was cancelled under leases, for workers that wait for it
health       shard health as this process sees it
agreement    what is set for namespaces and topics, brought to every shard
reasons      why an item or a topic does not go on
pace         how many rows a background step takes at once
"""
