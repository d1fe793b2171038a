"""Made from `aio/client.py` by `tests/unit/headgate/unasync.py`; change that one."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from headgate import wire
from headgate._calls import elements, flows, verbs
from headgate._calls.dag import Dag, create, submission
from headgate._calls.elements import Ack, Extend, Item, ItemFilter, ItemOptions, Leased, Nack, Result, Revive
from headgate._calls.verbs import Call, Verb, present
from headgate._client import settings
from headgate._client.blocking.handle import DagHandle
from headgate._client.blocking.limits import Limits
from headgate._client.blocking.logs import Logs
from headgate._client.blocking.reasons import Reasons
from headgate._client.blocking.schedules import Schedules
from headgate._client.blocking.workers import Workers
from headgate._client.blocking.workflows import Workflows
from headgate._http.transport import Exchange, RetryPolicy, SyncTransport
from headgate.errors import HeadgateError, NotFound

T = TypeVar("T")


class Client:
    """Both services, one short method per verb.

    What is not given comes from `HEADGATE_QUEUE_URL`, `HEADGATE_DAG_URL`, `HEADGATE_NAMESPACE` and
    `HEADGATE_TOKEN`, or is the embedded default. Batches of any size are sent in calls of at most 1,000
    elements; what happens to an element is its `Result`, what happens to a call is a `HeadgateError`. Calls
    are sent again by themselves where that is safe, and so are elements that were refused for now.

    Making a client sends nothing. `transport` is any httpx transport; `namespace` of a method overrides the
    client's.
    """

    def __init__(
        self,
        *,
        queue_url: str | None = None,
        dag_url: str | None = None,
        namespace: str | None = None,
        token: str | None = None,
        timeout_s: float = 20.0,
        retry: RetryPolicy | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.namespace = settings.namespace(namespace)
        self.endpoints = settings.endpoints(queue_url, dag_url, token, timeout_s)
        self.retry = retry or RetryPolicy()
        self.transport = transport
        self._transport = SyncTransport(Exchange(self.endpoints, self.retry), transport)
        self._shards = flows.Shards()
        self.schedules, self.workers, self.limits = Schedules(self), Workers(self), Limits(self)
        self.why = Reasons(self)
        self.workflows, self.logs = Workflows(self), Logs(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    # Items

    def enqueue(
        self, items: Sequence[Item], *, namespace: str | None = None, make_ids: bool = True
    ) -> list[Result]:
        """Enqueue items: "enqueued", "duplicate", "cancelled" or "refused", each.

        Items without id or key get an id here, so that a call whose answer was lost is sent again without
        harm; with `make_ids=False` the service makes them.
        """
        return self._run(flows.enqueue(namespace or self.namespace, items, self._shards, make_ids=make_ids))

    def enqueue_one(
        self, topic: str, payload: Any = None, *, namespace: str | None = None, **options: Unpack[ItemOptions]
    ) -> Result:
        """Enqueue one item: "enqueued", "duplicate" or "cancelled"; see `ItemOptions`.

        Raises:
            OverQuota, Conflict, Unavailable: it was refused; `code` says why.
        """
        item: Item = {"topic": topic, "payload": payload, **options}
        return flows.only(self.enqueue([item], namespace=namespace))

    def enqueue_encoded(self, texts: Sequence[str], *, namespace: str | None = None) -> list[Result]:
        """Enqueue items that are JSON texts already, each with an id in it; as `enqueue` does."""
        ns = namespace or self.namespace
        return self._run(flows.batches(lambda part: verbs.enqueue_encoded(ns, part), texts))

    def dequeue(
        self,
        topics: Mapping[str, int],
        *,
        wait_s: float = 0.0,
        lease_s: float | None = None,
        worker: str | None = None,
        namespace: str | None = None,
    ) -> list[Leased]:
        """Lease up to so many items of each topic, best first; wait up to `wait_s` for the first one."""
        return self._send(
            verbs.dequeue(namespace or self.namespace, topics, wait_s=wait_s, lease_s=lease_s, worker=worker)
        )

    def settle_and_dequeue(
        self,
        topics: Mapping[str, int],
        *,
        acks: Sequence[Ack] = (),
        nacks: Sequence[Nack] = (),
        wait_s: float = 0.0,
        lease_s: float | None = None,
        worker: str | None = None,
        namespace: str | None = None,
    ) -> elements.Dequeued:
        """Ack and nack what is done, up to 1,000 of each, and dequeue the next: one round trip a job.

        All is settled before anything is leased. What was refused for now is not sent again here; then the call
        does not wait. Where its answer is lost, send the acks and nacks again. What became of them is told with
        the items, after `wait_s` at the latest, and for as long as their leases would have run: wait no longer.
        """
        return self._send(
            verbs.settle_and_dequeue(
                namespace or self.namespace, topics, acks, nacks, wait_s=wait_s, lease_s=lease_s, worker=worker
            )
        )

    def dequeue_one(
        self, topic: str, *, wait_s: float = 0.0, lease_s: float | None = None, namespace: str | None = None
    ) -> Leased | None:
        """Lease one item, or None."""
        found = self.dequeue({topic: 1}, wait_s=wait_s, lease_s=lease_s, namespace=namespace)
        return found[0] if found else None

    def ack(self, items: Sequence[Ack], *, namespace: str | None = None, again: bool = True) -> list[Result]:
        """End leased items: "acked", "already_acked", "lease_lost", "cancelled" or "not_found", each.

        Without `again`, what was refused for now is not sent again here.
        """
        return self._batch(verbs.ACK, items, namespace, again=again)

    def ack_one(self, item: Leased, output: Any = None, *, namespace: str | None = None) -> Result:
        """End one leased item; raises what `enqueue_one` does where it is refused."""
        return flows.only(self.ack([item.ack(output)], namespace=namespace))

    def nack(self, items: Sequence[Nack], *, namespace: str | None = None, again: bool = True) -> list[Result]:
        """Give leased items back: "requeued", "dead", "lease_lost", "cancelled" or "not_found", each.

        Without `again`, what was refused for now is not sent again here.
        """
        return self._batch(verbs.NACK, items, namespace, again=again)

    def nack_one(
        self,
        item: Leased,
        *,
        error: str | None = None,
        delay_s: float | None = None,
        metadata: dict[str, Any] | None = None,
        final: bool = False,
        costs_attempt: bool = True,
        namespace: str | None = None,
    ) -> Result:
        """Give one leased item back; `final` makes it dead, `costs_attempt=False` forgets this delivery.

        Raises what `enqueue_one` does where it is refused.
        """
        options = present(error=error, delay_s=delay_s, metadata=metadata, final=final or None)
        nack: Any = {"id": item.id, "lease_token": item.lease_token, **options, "costs_attempt": costs_attempt}
        return flows.only(self.nack([nack], namespace=namespace))

    def extend(self, items: Sequence[Extend], *, namespace: str | None = None, again: bool = True) -> list[Result]:
        """Let leases end `lease_s` from now: "extended", "lease_lost", "cancelled" or "not_found", each.

        Without `again`, what was refused for now is not sent again here.
        """
        return self._batch(verbs.EXTEND, items, namespace, again=again)

    def revive(self, items: Sequence[Revive], *, namespace: str | None = None) -> list[Result]:
        """Make disabled items deliverable."""
        return self._batch(verbs.REVIVE, items, namespace)

    def cancel(self, ids: Sequence[str], *, namespace: str | None = None) -> list[Result]:
        """Have items never delivered again, also such as are not enqueued yet."""
        ns = namespace or self.namespace
        return self._run(flows.batches(lambda part: verbs.batch(verbs.CANCEL, ns, part, field="ids"), ids))

    def item(self, item_id: str, *, namespace: str | None = None) -> wire.ItemView:
        """An item and its state.

        Raises:
            NotFound: there is none, or it has been acked.
        """
        return self._send(
            verbs.call(verbs.ITEM, wire.ItemView.model_validate, ns=namespace or self.namespace, item=item_id)
        )

    def items(
        self,
        topic: str | None = None,
        state: wire.ItemState | None = None,
        *,
        limit: int | None = None,
        namespace: str | None = None,
    ) -> elements.Listing[wire.ItemView]:
        """All items of a topic, a state, or both; or the first `limit`."""
        return self._list(
            verbs.ITEMS, wire.ItemView, limit, {"topic": topic, "state": state}, ns=namespace or self.namespace
        )

    def item_attempts(self, item_id: str, *, namespace: str | None = None) -> list[wire.ItemAttempt]:
        """The first deliveries of a DAG's item that failed, oldest first; also of one that has ended."""
        parse = verbs.page_of(wire.ItemAttempt)
        ns = namespace or self.namespace
        return (self._send(verbs.call(verbs.ITEM_ATTEMPTS, parse, ns=ns, item=item_id)))[0]

    def items_attempts(self, ids: Sequence[str], *, namespace: str | None = None) -> list[wire.ItemAttempts]:
        """The last deliveries that failed, of many items of DAGs; "refused" where a shard did not answer."""
        ns = namespace or self.namespace
        parse = verbs.results_of(wire.ItemAttempts)
        return self._run(
            flows.batches_of(lambda part: verbs.call(verbs.ITEMS_ATTEMPTS, parse, ns=ns, body={"ids": part}), ids)
        )

    def item_states(self, ids: Sequence[str], *, namespace: str | None = None) -> list[wire.ItemStanding]:
        """Where items stand now: "found", "not_found" (they ended, or never came) or "refused", each."""
        ns = namespace or self.namespace
        parse = verbs.results_of(wire.ItemStanding)
        return self._run(
            flows.batches_of(lambda part: verbs.call(verbs.ITEM_STATES, parse, ns=ns, body={"ids": part}), ids)
        )

    # Topics

    def topics(self, *, namespace: str | None = None) -> elements.Listing[wire.TopicStats]:
        """The active topics and how many items each holds."""
        return self._list(verbs.TOPICS, wire.TopicStats, None, {}, ns=namespace or self.namespace)

    def pause_topic(self, topic: str, *, namespace: str | None = None) -> None:
        """Deliver nothing of this topic until it is resumed."""
        self._topic(verbs.TOPIC_PAUSE, topic, namespace)

    def resume_topic(self, topic: str, *, namespace: str | None = None) -> None:
        """Deliver again."""
        self._topic(verbs.TOPIC_RESUME, topic, namespace)

    def purge_topic(self, topic: str, *, namespace: str | None = None) -> int | None:
        """Cancel a topic's items but a DAG's; how many so far. It goes on by itself: see `operations`."""
        return self._topic(verbs.TOPIC_PURGE, topic, namespace)

    def redrive_topic(self, topic: str, *, namespace: str | None = None) -> int | None:
        """Put the dead items of a topic back; how many so far."""
        return self._topic(verbs.TOPIC_REDRIVE, topic, namespace)

    def configure_topic(
        self, topic: str, *, min_share: Mapping[int, float] | None = None, namespace: str | None = None
    ) -> None:
        """Set what a topic does beside its order; what is left out is taken away.

        `min_share` maps priorities to parts of all that is handed out: `{5: 0.1}` means that at least a tenth
        goes to priorities 5 and worse while they have items ready.
        """
        shares = [{"priority": priority, "share": share} for priority, share in sorted((min_share or {}).items())]
        body = {"topic": topic, "min_share": shares}
        ns = namespace or self.namespace
        self._send(verbs.call(verbs.TOPIC_CONFIGURE, verbs.as_is, ns=ns, body=body))

    # Many items at once

    def begin_operation(
        self, kind: wire.OperationKind, *, namespace: str | None = None, **wanted: Unpack[ItemFilter]
    ) -> wire.Operation:
        """Purge, redrive or cancel all items that are like `wanted`, but a DAG's.

        Answers within a few seconds with how far it is; while it is `running` it goes on by itself, and
        `operation` tells more. Items that are enqueued later are not touched.
        """
        return self._begin(kind, wanted, wire.Operation, namespace, dry_run=False)

    def preview_operation(
        self, kind: wire.OperationKind, *, namespace: str | None = None, **wanted: Unpack[ItemFilter]
    ) -> wire.OperationPreview:
        """What `begin_operation` would take: how many, and some ids. Changes nothing."""
        return self._begin(kind, wanted, wire.OperationPreview, namespace, dry_run=True)

    def operation(self, operation_id: str, *, namespace: str | None = None) -> wire.Operation:
        """An operation and how far it is, by shard."""
        return self._operation(verbs.OPERATION, operation_id, namespace)

    def cancel_operation(self, operation_id: str, *, namespace: str | None = None) -> wire.Operation:
        """Stop an operation where it is; what it did stays done."""
        return self._operation(verbs.OPERATION_CANCEL, operation_id, namespace)

    def operations(
        self, *, limit: int | None = None, namespace: str | None = None
    ) -> elements.Listing[wire.Operation]:
        """Operations, newest first: all of the last week, or the first `limit`."""
        return self._list(verbs.OPERATIONS, wire.Operation, limit, {}, ns=namespace or self.namespace)

    def dead(self, topic: str | None = None, *, namespace: str | None = None) -> elements.Listing[wire.DeadGroup]:
        """Dead items by topic and kind of error, most first. A group's `error` can be given to
        `begin_operation`.
        """
        ns = namespace or self.namespace
        return flows.added_up(self._list(verbs.DEAD, wire.DeadGroup, None, {"topic": topic}, ns=ns))

    # Namespaces, shards

    def put_namespace(
        self,
        name: str,
        *,
        enqueues_per_minute: int | None = None,
        in_flight_max: int | None = None,
        items_max: int | None = None,
        stored_bytes_max: int | None = None,
    ) -> wire.Namespace:
        """Make a namespace, or set its quotas; what is left out is without limit."""
        body = present(
            enqueues_per_minute=enqueues_per_minute,
            in_flight_max=in_flight_max,
            items_max=items_max,
            stored_bytes_max=stored_bytes_max,
        )
        return self._send(verbs.call(verbs.NAMESPACE_PUT, wire.Namespace.model_validate, body=body, ns=name))

    def put_dag_quota(
        self,
        name: str,
        *,
        dags_max: int | None = None,
        nodes_max: int | None = None,
        edges_max: int | None = None,
    ) -> wire.DagQuota:
        """Limit a namespace's unfinished DAGs, and nodes and edges in them; what is left out is as the service's
        default."""
        body = present(dags_max=dags_max, nodes_max=nodes_max, edges_max=edges_max)
        return self._send(verbs.call(verbs.DAG_QUOTA_PUT, wire.DagQuota.model_validate, body=body, ns=name))

    def dag_quota(self, name: str | None = None) -> wire.DagQuota:
        """A namespace's quotas for DAGs, the service's defaults, and the use of them."""
        return self._send(verbs.call(verbs.DAG_QUOTA, wire.DagQuota.model_validate, ns=name or self.namespace))

    def get_namespace(self, name: str | None = None) -> wire.Namespace:
        """A namespace with its quotas and their use."""
        return self._send(verbs.call(verbs.NAMESPACE, wire.Namespace.model_validate, ns=name or self.namespace))

    def namespaces(self) -> elements.Listing[wire.Namespace]:
        """All namespaces that the token may see."""
        return self._list(verbs.NAMESPACES, wire.Namespace, None, {})

    def shards(self) -> list[wire.ShardHealth]:
        """The queue's shards and their health (scope `ops`)."""
        return self._list(verbs.SHARDS, wire.ShardHealth, None, {})

    def shard(self, number: int) -> wire.ShardHealth:
        """One of the queue's shards."""
        return self._send(verbs.call(verbs.SHARD, wire.ShardHealth.model_validate, shard=str(number)))

    def dag_shards(self) -> list[wire.DagShardHealth]:
        """The DAG service's shards and their health."""
        return self._list(verbs.DAG_SHARDS, wire.DagShardHealth, None, {})

    # DAGs

    def submit(self, dag: Dag, *, namespace: str | None = None) -> DagHandle:
        """Bring a DAG of any size to the service. The same `Dag`, or key, again goes on with the same DAG;
        `existing` and `same` of the handle tell.

        Raises:
            Cycle, UnknownNode: it is no DAG; nothing was sent.
        """
        ns = namespace or self.namespace
        made = self._run(submission(ns, dag))
        return DagHandle(self, made.dag.id, ns, existing=made.existing, same=made.same)

    def create_dag(self, spec: Mapping[str, Any], *, namespace: str | None = None) -> wire.CreatedDag:
        """Create a DAG from the body of `POST /dags`, in one call. With a `key` it may be sent again."""
        return self._send(create(namespace or self.namespace, spec))

    def dag(self, dag_id: str, *, namespace: str | None = None) -> DagHandle:
        """The verbs of a DAG that exists already; nothing is sent."""
        return DagHandle(self, dag_id, namespace or self.namespace)

    def dag_by_key(self, key: str, *, namespace: str | None = None) -> DagHandle:
        """The DAG that was made with this key.

        Raises:
            NotFound: there is none.
        """
        found = self.dags(key=key, namespace=namespace)
        if not found:
            raise NotFound(f"no DAG has the key {key!r} in namespace {namespace or self.namespace!r}", status=404)
        return DagHandle(self, found[0].id, namespace or self.namespace)

    def dags(
        self,
        *,
        state: wire.DagState | None = None,
        name: str | None = None,
        key: str | None = None,
        limit: int | None = None,
        namespace: str | None = None,
    ) -> elements.Listing[wire.Dag]:
        """All DAGs, or those in `state`, called `name` or made with `key`, or the first `limit` of them."""
        query = {"state": state, "name": name, "key": key}
        return self._list(verbs.DAGS, wire.Dag, limit, query, ns=namespace or self.namespace)

    def ended_dags(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        namespace: str | None = None,
    ) -> list[wire.Dag]:
        """DAGs that ended from `since` on and before `until`, oldest end first; not those of the last minutes."""
        query = {"since": since and since.isoformat(), "until": until and until.isoformat()}
        return self._list(verbs.EXPORT_DAGS, wire.Dag, limit, query, ns=namespace or self.namespace)

    def mark_exported(self, until: datetime, *, namespace: str | None = None) -> wire.ExportMarked:
        """Say that all that ended before `until` is exported and may be dropped in time."""
        parse, ns = wire.ExportMarked.model_validate, namespace or self.namespace
        return self._send(verbs.call(verbs.EXPORT_MARK_PUT, parse, body={"until": until}, ns=ns))

    def exported_until(self, *, namespace: str | None = None) -> datetime | None:
        """Up to which end the namespace is exported; None: never."""
        marked = self._send(
            verbs.call(verbs.EXPORT_MARK, wire.ExportMarked.model_validate, ns=namespace or self.namespace)
        )
        return marked.until

    # How calls are sent

    def _batch(
        self, verb: Verb, elements: Sequence[Any], namespace: str | None, *, again: bool = True
    ) -> list[Result]:
        ns = namespace or self.namespace
        return self._run(flows.batches(lambda part: verbs.batch(verb, ns, part, again=again), elements))

    def _topic(self, verb: Verb, topic: str, namespace: str | None) -> int | None:
        ns = namespace or self.namespace
        answer = self._send(verbs.call(verb, verbs.as_is, ns=ns, body={"topic": topic}))
        return answer.get("items") if isinstance(answer, dict) else None

    def _begin(
        self, kind: str, wanted: ItemFilter, model: type[verbs.M], namespace: str | None, *, dry_run: bool
    ) -> verbs.M:
        body: dict[str, Any] = {"kind": kind, "filter": wanted, "dry_run": dry_run}
        return self._run(flows.begin(namespace or self.namespace, body, model, self._shards))

    def _operation(self, verb: Verb, operation_id: str, namespace: str | None) -> wire.Operation:
        ns = namespace or self.namespace
        return self._send(verbs.call(verb, wire.Operation.model_validate, ns=ns, operation=operation_id))

    def _list(
        self, verb: Verb, model: type[verbs.M], limit: int | None, query: Mapping[str, Any], *, ns: str = ""
    ) -> elements.Listing[verbs.M]:
        parse = verbs.page_of(model)
        return self._run(flows.listed(lambda page: verbs.call(verb, parse, query={**query, **page}, ns=ns), limit))

    def _send(self, call: Call[T]) -> T:
        return self._transport.send(call)

    def _run(self, flow: flows.Flow[T]) -> T:
        answer, error = None, None
        while True:
            try:
                call = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as stop:
                found: T = stop.value
                return found
            try:
                answer, error = self._transport.send(call), None
            except HeadgateError as failure:
                error = failure
