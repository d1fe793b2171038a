"""Faults that were met on running services, and that worlds can meet: what each was, and the mutation that brings
it back.

`docs/testing.md` tells of each which world finds it again.
"""

from typing import Final

MET: Final = (
    (
        "the output of a stale holder, or of another tenant, replaced that of the ack that counted",
        "outputs-of-others",
    ),
    ("a token that two tenants named in one flush settled the other's item", "ack-shared-token"),
    (
        "an acked item of a service-made id was said to be cancelled once its lease's end had passed",
        "cancel-acked-lately",
    ),
    ("of one id twice the later content was stored", "flush-of-one-id"),
    ("an item past its time to live ended as delivered, and never was", "claim-shown"),
    ("a shard that was added later knew no pause that was set before", "set-on-new-shards"),
    ("an expansion did not bind waiters that had ended: early work", "expand-binds-the-ended"),
    ("a child that was adopted did not bring its own children: early work", "adopt-with-children"),
    ("a cleanup node's deadline failed the DAG that it cleaned up behind", "cleanup-deadline-early"),
    (
        "a cleanup node's deadline amid a cancel was forgotten: a DAG that never ended",
        "cleanup-deadline-forgotten",
    ),
    ("a second cancel wrote over the first one's reason", "first-reason"),
    ("a cancel amid cleanup changed how its DAG ends", "cancel-keeps-cleanup"),
    ("a child DAG that was retried by its own id succeeded, its parent stayed failed", "node-goes-along"),
    ("an item without a backoff came again at once, for ever", "default-backoff"),
    ("an unknown parameter of a list was passed over: all was shown", "unknown-parameters"),
    ("the dead item of a node that was retried since stayed among the dead", "dead-of-a-retry"),
    ("a compensation was not given what it undoes", "compensation-inputs"),
    ("a DAG that its deadline ended gave no reason", "deadline-reason"),
    ("a failure that was handled failed its DAG", "tolerated-verdict"),
    ("a bad line froze the whole file of tokens", "tokens-bad-line"),
)
