"""The HTTP shape of the verbs that move items: bodies in, calls to the rooms below, results out."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from headgate import wire
from services.queue.api import body_decoders, uniform_bodies
from services.queue.api.parts import QueueProcess
from services.queue.api.settling import SettleResults, settle
from services.queue.leases.ack import plain_acks
from services.queue.leases.extend import Extension
from services.queue.leases.nack import Nack
from services.queue.model import LEASE_S, Demands, Even, NewItem, PlainItem, Result, Settle
from services.queue.quotas import Use
from services.queue.store.dequeue_encoding import Group, Leased
from shared.admission.connection_priority import Urgency
from shared.errors import Forbidden, ServiceError, invalid
from shared.fallback import Fallback
from shared.http import json_body
from shared.http.access import Caller
from shared.http.edge import M, validate
from shared.http.hot_path import Call, Verb

_NAMESPACE = re.compile(wire.NAMESPACE_PATTERN).fullmatch

Answer = tuple[int, Any]

_SYSTEM = "topics and namespaces that begin with `_` are the system's; use another name"


def enter(namespace: str, caller: Caller, *scopes: str) -> None:
    """Raises Invalid for a malformed namespace, Forbidden when the caller has none of `scopes` in it."""
    if _NAMESPACE(namespace) is None:
        raise invalid("", "the namespace in the path must match [A-Za-z0-9._-]{1,64} and be neither . nor ..")
    caller.enter(namespace)
    caller.need(*scopes)


class Verbs:
    """One method per verb."""

    def __init__(self, process: QueueProcess) -> None:
        self._process = process
        self._settings = process.settings

    def by_name(self) -> dict[str, Verb]:
        """The verbs by the last part of their path."""
        settling = (self.ack, self.nack, self.extend, self.revive, self.cancel)
        return {
            "enqueue": Verb(self.enqueue, Urgency.ENQUEUE),
            "dequeue": Verb(self.dequeue, Urgency.DEQUEUE),
            **{verb.__name__: Verb(verb, Urgency.SETTLE) for verb in settling},
        }

    async def enqueue(self, call: Call) -> Answer:
        """Take items in. One result per item, in order; `refused` elements say why."""
        enter(call.namespace, call.caller, "enqueue")
        tenant = None if call.caller.is_dag_service else self._process.quotas.of(call.namespace)
        plain = uniform_bodies.items(call.body, self._settings) if tenant is None else uniform_bodies.SMALL
        if not isinstance(plain, Fallback):
            _check_topic(plain.parts[0].topic, call.caller)
            return 201, _answer(await self._process.enqueues.enqueue_plain(call.namespace, plain))
        if plain is not uniform_bodies.SMALL:
            plain.counted("enqueue")
        items = body_decoders.new_items(call.body, self._settings, manages=call.caller.is_dag_service)
        _check_topics(items, call.caller)
        if tenant is None:
            return 201, _answer(await self._process.enqueues.enqueue(call.namespace, items, call.caller))
        take = partial(self._process.enqueues.enqueue, call.namespace, caller=call.caller)
        results, call.retry_after_s = await self._process.quotas.enqueue(tenant, items, take)
        return 201, {"results": results}

    async def dequeue(self, call: Call) -> Answer:
        """Lease what is ready, up to each topic's count, best first; wait up to `wait_s` when nothing is.

        `settle` is applied first, and committed before anything is handed out: each of its elements is answered in
        `results` as by ack and nack. Of these the caller hears with the items, after `wait_s` at the latest.
        """
        enter(call.namespace, call.caller, "consume")
        wanted = body_decoders.demands(call.body, self._settings)
        for demand in wanted.topics:
            if demand.topic[0] == "_" and not call.caller.is_dag_service:
                raise Forbidden("topics that begin with `_` are the system's")
        if wanted.worker is not None:
            alive_s = (wanted.lease_s or LEASE_S) + wanted.wait_s
            topics = [demand.topic for demand in wanted.topics]
            self._process.workers.note(call.namespace, wanted.worker, alive_s, topics)
        gone = call.client.gone()
        if wanted.settle is not None:
            return 200, await self._settle_and_lease(call, wanted, wanted.settle, gone)
        return 200, {"items": (await self._lease(call, wanted, gone)).items()}

    async def _settle_and_lease(
        self, call: Call, wanted: Demands, to_settle: Settle, gone: asyncio.Future[None]
    ) -> dict[str, Any]:
        process = self._process
        leased, results = Leased(0), SettleResults()

        async def settles() -> float:
            nonlocal results
            looks = self._looks(call.namespace)
            results = await settle(process.acks, process.nacks, call.namespace, to_settle)
            self._gave_back(call.namespace, [*results.acks, *results.nacks], looks)
            self._make_room(call.namespace)
            return results.wait_s(wanted.wait_s)

        try:
            leased = await self._lease(call, wanted, gone, settles)
        except ServiceError:
            if not results:
                raise  # else what was settled is to be told
        return {"items": leased.items(), "results": {"acks": results.acks, "nacks": results.nacks}}

    async def _lease(
        self,
        call: Call,
        wanted: Demands,
        gone: asyncio.Future[None],
        settles: Callable[[], Awaitable[float]] | None = None,
    ) -> Leased:
        leased = await self._process.dequeues.dequeue(
            call.namespace,
            wanted.topics,
            lease_s=wanted.lease_s,
            worker=wanted.worker,
            wait_s=wanted.wait_s,
            gone=gone,
            tenant=self._process.quotas.of(call.namespace),
            waits=call.client.step_aside,
            settles=settles,
        )
        if gone.done() and leased:
            await self._hand_back(call.namespace, leased.groups, False)
            leased = Leased(0)
        if leased:
            # Not by a closure over the call, which would keep both, and the items, for the collector of garbage.
            call.undelivered = partial(self._hand_back, call.namespace, leased.groups)
        return leased

    async def _hand_back(self, namespace: str, groups: Sequence[Group], is_begun: bool) -> None:
        unused = [item._replace(is_begun=is_begun) for group in groups for item in group.unused()]
        await self._process.hand_backs.hand_back(namespace, unused)

    async def ack(self, call: Call) -> Answer:
        """End leased items as done. One result per item, in order."""
        enter(call.namespace, call.caller, "consume")
        looks = self._looks(call.namespace)
        acks = uniform_bodies.acks(call.body, self._settings)
        if not isinstance(acks, Fallback):
            return self._settled(call, await self._process.acks.ack_plain(call.namespace, acks), looks)
        if acks is not uniform_bodies.SMALL:
            acks.counted("ack")
        items = body_decoders.settled(call.body, self._settings)
        plain = plain_acks(items)
        if plain is not None:
            return self._settled(call, await self._process.acks.ack_plain(call.namespace, plain), looks)
        return self._settled(call, await self._process.acks.ack(call.namespace, items), looks)

    async def nack(self, call: Call) -> Answer:
        """Give leased items back, at once or later, or fail them for good (`final`)."""
        enter(call.namespace, call.caller, "consume")
        body = self._body(call, wire.NackRequest)
        for i, item in enumerate(body.items):
            sizes = [("metadata", item.metadata, self._settings.metadata_bytes_max)]
            body_decoders.check_sizes(f"/items/{i}", sizes)
        nacks = [
            Nack(
                item.id,
                item.lease_token,
                item.delay_s,
                None if item.metadata is None else json.dumps(item.metadata),
                item.error,
                item.final,
                item.costs_attempt,
                item.throttle_s,
                item.throttle_key,
            )
            for item in body.items
        ]
        looks = self._looks(call.namespace)
        return self._settled(call, await self._process.nacks.nack(call.namespace, nacks), looks)

    async def extend(self, call: Call) -> Answer:
        """Let the leases of these items end `lease_s` from now; `progress` is shown with the item."""
        enter(call.namespace, call.caller, "consume")
        body = self._body(call, wire.ExtendRequest)
        items = [
            Extension(item.id, item.lease_token, item.lease_s, _progress(item.progress)) for item in body.items
        ]
        return 200, {"results": await self._process.extends.extend(call.namespace, items)}

    async def revive(self, call: Call) -> Answer:
        """Make disabled items deliverable."""
        enter(call.namespace, call.caller, "enqueue")
        body = self._body(call, wire.ReviveRequest)
        for i, item in enumerate(body.items):
            body_decoders.check_sizes(f"/items/{i}", [("inputs", item.inputs, self._settings.inputs_bytes_max)])
        items = [(item.id, None if item.inputs is None else json.dumps(item.inputs)) for item in body.items]
        return 200, {"results": await self._process.revives.revive(call.namespace, items, call.caller)}

    async def cancel(self, call: Call) -> Answer:
        """End items so that they are never delivered again; also ids that have not been enqueued yet."""
        enter(call.namespace, call.caller, "enqueue")
        ids = self._body(call, wire.CancelRequest).ids
        results = await self._process.cancels.cancel(call.namespace, ids, call.caller)
        self._make_room(call.namespace)
        return 200, {"results": results}

    def _settled(self, call: Call, results: Even | list[Result], looks: int | None) -> Answer:
        if looks is not None:
            self._gave_back(call.namespace, results, looks)
        if self._process.gates.limits:
            self._make_room(call.namespace)
        return 200, _answer(results)

    def _looks(self, namespace: str) -> int | None:
        """For `_gave_back`, before anything is given back; None where there is no quota."""
        tenant = self._process.quotas.of(namespace)
        return None if tenant is None else tenant.looks

    def _gave_back(self, namespace: str, results: Even | list[Result], looks: int | None) -> None:
        """A namespace with quotas uses so much less."""
        tenant = self._process.quotas.of(namespace)
        if tenant is not None and looks is not None:
            each = results.each() if isinstance(results, Even) else results
            acked = sum(result.status == "acked" for result in each)
            back = sum(result.status in ("requeued", "dead") for result in each)
            tenant.gave_back(Use(leased=acked + back, items=acked), looks)

    def _make_room(self, namespace: str) -> None:
        """Calls that wait for room in limited topics look again."""
        if self._process.gates.limits:
            for topic in self._process.gates.opened(namespace):
                self._process.dispatch.wake(namespace, topic)

    def _body(self, call: Call, model: type[M]) -> M:
        return validate(model, json_body.check(call.body, depth_max=self._settings.json_depth_max))


def _progress(told: wire.Progress | None) -> str | None:
    return None if told is None else json.dumps(told.model_dump())


def _answer(results: Even | list[Result]) -> dict[str, Any]:
    return {"results": results.raw() if isinstance(results, Even) else results}


def _check_topic(topic: str, caller: Caller) -> None:
    if topic[0] == "_" and not caller.is_dag_service:
        raise Forbidden(_SYSTEM)


def _check_topics(items: list[NewItem] | list[PlainItem], caller: Caller) -> None:
    """A system topic, here or as ack_topic, is the system's."""
    if caller.is_dag_service:
        return
    for topic in {item.topic for item in items}:
        _check_topic(topic, caller)
    if isinstance(items[0], PlainItem):
        return
    for item in items:
        if isinstance(item, NewItem) and item.ack_topic is not None:
            if _is_system(item.ack_topic):
                raise Forbidden(_SYSTEM)
            if ":" in item.ack_topic:
                caller.enter(item.ack_topic.partition(":")[0])


def _is_system(ack_topic: str) -> bool:
    namespace, _, topic = ack_topic.rpartition(":")
    return namespace.startswith("_") or topic.startswith("_")
