"""Headgate's Python SDK: a priority queue, and DAGs of queued work.

    from headgate import Client

    with Client() as client:
        client.enqueue_one("mail", {"to": "ada@example.org"})

What is named here is the public interface, with `headgate.errors`, `headgate.importing` for graphs of other tools,
`headgate.testing` for tests of handlers, `headgate.wire` for the bodies as they travel and `headgate.workflow` for
the core of workflows. All other modules begin with an underscore, and change without notice: `_calls` is what is
sent, `_http` sends it, `_client` has the clients, `_worker` workers, `_app` typed functions, `_cli` the commands.
"""

from headgate._app.app import App
from headgate._app.call import JobCall, JobOptions
from headgate._app.flow import Flow
from headgate._app.function import JobFunction
from headgate._app.handle import FlowRun, JobHandle
from headgate._app.stores import FileStore, S3Store, Store
from headgate._app.worker import AppWorker
from headgate._calls.dag import Dag, Node
from headgate._calls.elements import (
    Ack,
    Dequeued,
    Extend,
    Item,
    ItemFilter,
    Leased,
    LeasedDag,
    Listing,
    Nack,
    Result,
    Revive,
)
from headgate._client.aio.client import AsyncClient
from headgate._client.aio.handle import AsyncDagHandle
from headgate._client.aio.schedules import AsyncSchedules
from headgate._client.aio.values import AsyncDagValues
from headgate._client.blocking.client import Client
from headgate._client.blocking.handle import DagHandle
from headgate._client.blocking.schedules import Schedules
from headgate._client.blocking.values import DagValues
from headgate._http.http1 import Http1Transport
from headgate._http.transport import RetryPolicy
from headgate._ids import new_id, shard_of, time_ms_of
from headgate._worker.worker import Job, Worker
from headgate.errors import (
    BadAnswer,
    BadRequest,
    Conflict,
    ConnectionFailed,
    Cycle,
    DagCancelling,
    DagFinished,
    Fail,
    Forbidden,
    GatewayError,
    HeadgateError,
    Invalid,
    JobCancelled,
    JobError,
    JobFailed,
    JobSkipped,
    JobTimedOut,
    NoAnswer,
    NodeExists,
    NodeNotRunning,
    NodeReleased,
    NoResult,
    NotDone,
    NotFound,
    NothingToRetry,
    OverQuota,
    ParentWaits,
    RemoteTraceback,
    ResultGone,
    Retry,
    ServerError,
    Throttled,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnknownNode,
    VersionConflict,
    WrongArguments,
)
from headgate.workflow import NodeFailed, Workflow

__all__ = [
    "Ack",
    "App",
    "AppWorker",
    "AsyncClient",
    "AsyncDagHandle",
    "AsyncDagValues",
    "AsyncSchedules",
    "BadAnswer",
    "BadRequest",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "Cycle",
    "Dag",
    "DagCancelling",
    "DagFinished",
    "DagHandle",
    "DagValues",
    "Dequeued",
    "Extend",
    "Fail",
    "FileStore",
    "Flow",
    "FlowRun",
    "Forbidden",
    "GatewayError",
    "HeadgateError",
    "Http1Transport",
    "Invalid",
    "Item",
    "ItemFilter",
    "Job",
    "JobCall",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobFunction",
    "JobHandle",
    "JobOptions",
    "JobSkipped",
    "JobTimedOut",
    "Leased",
    "LeasedDag",
    "Listing",
    "Nack",
    "NoAnswer",
    "NoResult",
    "Node",
    "NodeExists",
    "NodeFailed",
    "NodeNotRunning",
    "NodeReleased",
    "NotDone",
    "NotFound",
    "NothingToRetry",
    "OverQuota",
    "ParentWaits",
    "RemoteTraceback",
    "Result",
    "ResultGone",
    "Retry",
    "RetryPolicy",
    "Revive",
    "S3Store",
    "Schedules",
    "ServerError",
    "Store",
    "Throttled",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnknownNode",
    "VersionConflict",
    "Worker",
    "Workflow",
    "WrongArguments",
    "new_id",
    "shard_of",
    "time_ms_of",
]
