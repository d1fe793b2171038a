"""Errors of the DAG service beyond the shared ones.

ServiceError
├── NodeExists            409   another node under this key
├── NodeReleased          409   too late: the node was released or is over
├── NodeNotRunning        409   only a node that runs can expand itself
├── DagFinished           409   the DAG has ended or is being cancelled
├── DagCancelling         409   a cancel has not been confirmed yet
├── NothingToRetry        409   no node failed
├── VersionConflict       409   a value has another version than the write expects
├── WriteReused           409   the write's id stands for another value
├── SignalReused          409   the id stands for an update, or for a plain signal
├── Managed               409   a run of a workflow has verbs of its own
├── TurnLost              409   another generation of the decider, or another worker, goes on with the run
├── HistoryMismatch       409   a turn asks for what the run has otherwise
├── WorkflowFinished      409   the run has ended
├── NotReplaceable        409   what a run has asked for cannot be given another output
├── IdInUse               409   the workflow's id may have no other run
├── SignalsFull           429   the run has as many unread signals as it may
├── Invalid
│   ├── Cycle             422   the edges would close one
│   ├── UnknownNode       422   a key that the DAG does not have
│   ├── LimitExceeded     422   the DAG would outgrow a limit
│   └── BadCommand        422   a command of a turn that means nothing
└── Unavailable
    ├── DagThawing        503   the rows of an ended DAG are on their way back
    ├── AddUnfinished     503   nodes are written, the queue does not know all of them yet
    ├── Upgrading         503   an older program still owns the shard
    ├── TooManyStreams    503   this process serves no more event streams
    └── QueueUnavailable  503   the queue did not answer
"""

from __future__ import annotations

from shared.errors import Invalid, ServiceError, TooLarge, Unavailable


class NodeExists(ServiceError):
    code, status, title = "node_exists", 409, "Another node has this key"


class NodeReleased(ServiceError):
    code, status, title = "node_released", 409, "The node was released already"


class NodeNotRunning(ServiceError):
    code, status, title = "node_not_running", 409, "The node does not run"


class DagFinished(ServiceError):
    code, status, title = "dag_finished", 409, "The DAG has ended or is being cancelled"


class DagCancelling(ServiceError):
    code, status, title = "dag_cancelling", 409, "The DAG is being cancelled"


class NothingToRetry(ServiceError):
    code, status, title = "nothing_to_retry", 409, "No node failed"


class ParentWaits(ServiceError):
    code, status, title = "parent_waits", 409, "The node that the DAG runs for has to wait"


class VersionConflict(ServiceError):
    code, status, title = "version_conflict", 409, "The value was written meanwhile"


class WriteReused(ServiceError):
    code, status, title = "key_reused", 409, "The write_id stands for another value"


class SignalReused(ServiceError):
    code, status, title = "key_reused", 409, "The id stands for something else that the run was told"


class Managed(ServiceError):
    code, status, title = "managed", 409, "The DAG is a run of a workflow"


class TurnLost(ServiceError):
    code, status, title = "turn_lost", 409, "Another goes on with the run"


class HistoryMismatch(ServiceError):
    code, status, title = "history_mismatch", 409, "The run has it otherwise"


class WorkflowFinished(ServiceError):
    code, status, title = "workflow_finished", 409, "The run has ended"


class NotReplaceable(ServiceError):
    code, status, title = "not_replaceable", 409, "The output cannot be replaced"


class IdInUse(ServiceError):
    code, status, title = "id_in_use", 409, "The workflow's id is in use"


class SignalsFull(ServiceError):
    code, status, title = "signals_full", 429, "The run has too many unread signals"


class BadCommand(Invalid):
    code, title = "bad_command", "A command means nothing"


class Cycle(Invalid):
    code, title = "cycle", "The edges would close a cycle"


class UnknownNode(Invalid):
    code, title = "unknown_node", "The DAG has no such node"


class LimitExceeded(Invalid):
    code, title = "limit_exceeded", "The DAG would outgrow a limit"


class ValueTooLarge(TooLarge):
    """One value of a request is over its own limit."""

    title = "A value is over a size limit"


class AddUnfinished(Unavailable):
    code, title = "add_unfinished", "The nodes are being added"


class TooManyStreams(Unavailable):
    code, title = "too_many_streams", "Too many event streams are open"


class Upgrading(Unavailable):
    code, title = "upgrading", "The shard's owner is an older program"


class DagThawing(Unavailable):
    code, title = "dag_thawing", "The DAG is being brought back from the archive"


class DagReopening(Unavailable):
    code, title = "dag_reopening", "Nodes of the DAG are being reopened"


class QueueUnavailable(Unavailable):
    code, title = "queue_unavailable", "The queue service did not answer"


def reopening_error() -> DagReopening:
    """What a call answers that depends on which nodes run again, while that is still being found out."""
    return DagReopening("a retry of many nodes is under way in the DAG; try again", retry_after_s=1.0)


def managed_error() -> Managed:
    """What verbs of DAGs answer of a run."""
    return Managed("the DAG is a run of a workflow; use the verbs of workflows")
