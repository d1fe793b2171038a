"""What operators look at: the last hour of each process, what others of the service know, and who did what.

Used by the `app` and `api` of both services. Nothing here is true of items or DAGs: the shards decide that. What
is kept here is lost with its process, and nothing waits for it.

history      the last hour of what a process samples, in memory, and what happened meanwhile
sampling     takes the samples, and notices what is worth a mark
peers        asks every process of a service the same question, over Redis
merging      the answers of several processes as one
longer       longer ranges, from a Prometheus
watch        these, put together for a process
inspection   a close look at one shard, and how each process sees it
routes       `GET /v1/history`, `GET /v1/audit`, `/v1/shards/{shard}/inspection`, `/v1/shards/{shard}/commands`
map_commands changes of the shard map, by `python -m shards`
audit_log    who did what, kept and listed
relay        calls of the pages to the other service
site         both services as one site
"""
