"""Building DAGs: creating them, adding nodes and edges, expanding running nodes, DAGs in the place of nodes.

Called by `api`, and by `duties` for what a process left half-done. A call writes all of its nodes and edges in one
transaction, under the lock of the DAG's row, and decides them in it; the queue is given their items afterwards.
A crash after the commit leaves an `adding` row: the sweeper, or the same call again, registers the items.

create               create and add, whatever the nodes look like
create_batch         new DAGs of the common shape, several in one statement
add_batch            more nodes of the common shape, column by column
insertion            the rows of new nodes, externals and edges
addition             what a call would change, worked out from what is there; pure
topological_orders   orders of DAGs being built, for cycle checks; a cache of the shard's edges
expand               a running node gets children, which everything that waits for it then waits for
met_edges            edges that change nothing, and may close no cycle either
subdags              a node that is a DAG: made, followed and ended with its node
run_spec             what a node of a run keeps, and where runs live; pure
subdag_spec          what such a DAG is made of, as its node keeps it; pure
queue_registration   the queue is given the items of new nodes
content_digest       what a create call with a key asks for, as a digest; pure
quotas               how many unfinished DAGs, nodes and edges a namespace may have
"""
