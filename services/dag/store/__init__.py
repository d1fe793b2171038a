"""The statements of `sql/`, bound: one short function each, typed rows out.

Called by every room above as `store.edges.add(...)`. A `Transaction` argument stands for the lock of the DAG's
row. No statement decides by what a process remembers; a crash rolls back what was not committed.

dags         DAG rows and node rows
create       whole new DAGs, and more nodes of the common shape
edges        edges and externals
expansions   nodes that have expanded themselves
subdags      DAGs in the place of nodes
cleanup      cleanup and compensation
reopening    retries that go in steps
duties       outbox, add calls, walks
reads        questions
explain      explanations
archive      ended DAGs outside the hot tables
shared_values  what the jobs of a DAG share
timers       timers that run
schedules    schedules, and what became of their slots
runs         runs of workflows
turns        turns of several runs at once, and their news
resets       runs whose code goes on from an earlier event
"""

from services.dag.store import (
    archive,
    cleanup,
    create,
    dags,
    duties,
    edges,
    expansions,
    explain,
    reads,
    reopening,
    resets,
    runs,
    schedules,
    shared_values,
    subdags,
    timers,
    turns,
)

__all__ = [
    "archive",
    "cleanup",
    "create",
    "dags",
    "duties",
    "edges",
    "expansions",
    "explain",
    "reads",
    "reopening",
    "resets",
    "runs",
    "schedules",
    "shared_values",
    "subdags",
    "timers",
    "turns",
]
