"""Headgate's Python SDK: a priority queue, and DAGs of queued work.

    from headgate import Client

    with Client() as client:
        client.enqueue_one("mail", {"to": "ada@example.org"})

What is named here is the whole public interface, with `headgate.wire` for the bodies as they travel and
`headgate.testing` for tests of handlers.
"""

from headgate._async_handle import AsyncDagHandle
from headgate._elements import Ack, Extend, Item, ItemFilter, Leased, LeasedDag, Nack, Result, Revive
from headgate._handle import DagHandle
from headgate._http1 import Http1Transport
from headgate._transport import RetryPolicy
from headgate.async_client import AsyncClient
from headgate.client import Client
from headgate.dag import Dag, Node
from headgate.errors import (
    BadAnswer,
    BadRequest,
    Conflict,
    ConnectionFailed,
    Cycle,
    DagCancelling,
    DagFinished,
    Forbidden,
    GatewayError,
    HeadgateError,
    Invalid,
    NoAnswer,
    NodeExists,
    NodeNotRunning,
    NodeReleased,
    NotFound,
    NothingToRetry,
    OverQuota,
    ServerError,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnknownNode,
)
from headgate.ids import new_id, shard_of, time_ms_of
from headgate.worker import Fail, Job, Retry, Worker

__all__ = [
    "Ack",
    "AsyncClient",
    "AsyncDagHandle",
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
    "Extend",
    "Fail",
    "Forbidden",
    "GatewayError",
    "HeadgateError",
    "Http1Transport",
    "Invalid",
    "Item",
    "ItemFilter",
    "Job",
    "Leased",
    "LeasedDag",
    "Nack",
    "NoAnswer",
    "Node",
    "NodeExists",
    "NodeNotRunning",
    "NodeReleased",
    "NotFound",
    "NothingToRetry",
    "OverQuota",
    "Result",
    "Retry",
    "RetryPolicy",
    "Revive",
    "ServerError",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnknownNode",
    "Worker",
    "new_id",
    "shard_of",
    "time_ms_of",
]
