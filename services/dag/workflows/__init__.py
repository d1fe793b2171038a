"""Runs of workflows: DAGs whose first node, the decider, decides what the others are.

Called by `api`, and by `duties` for what goes between runs. A run's log of events is written under the lock of its
DAG's row, in the transaction that makes them happen; so their order is one for all. A turn is one transaction. A
crash before its commit leaves nothing, and the decider's item is delivered again; after it, the same turn is
answered again, and what the queue is to be told stands in the outbox.

values          what a turn asks for, what a run begins with; plain values
turn_commits    a turn is written, or nothing is
plain_turns     turns of the common shape, of several runs in one statement
awake           turns that wait for events
starting        runs begin, and go on as new ones
control         signals, cancel, terminate, pause, resume
rewriting       runs go on from an earlier event, or with other outputs
nested          runs in the place of nodes; what one run does to another
reading         runs and their histories
"""
