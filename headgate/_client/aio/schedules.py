"""Schedules, for coroutines."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar, Unpack

from headgate import wire
from headgate._calls import verbs
from headgate._calls.dag import Dag
from headgate._calls.elements import Listing, Part
from headgate._calls.flows import listed
from headgate._calls.schedule_body import ScheduleOptions, dag_of, schedule_body
from headgate._calls.verbs import Call, Verb, present
from headgate._client.aio.sender import AsyncSender

T = TypeVar("T")


class AsyncSchedules:
    """Runs that the service starts at times. `namespace` of a method overrides the client's."""

    def __init__(self, client: AsyncSender) -> None:
        self._client = client

    async def put(
        self,
        schedule_id: str,
        *,
        cron: str | None = None,
        tz: str | None = None,
        interval_s: float | None = None,
        at: datetime | Iterable[datetime] | None = None,
        topic: str | None = None,
        payload: Any = None,
        dag: Dag | None = None,
        workflow: str | None = None,
        input: Any = None,
        namespace: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> wire.Schedule:
        """Make a schedule, or replace it; the same again changes nothing, so a program may do it at each start.

        Give one of `cron` (in the zone `tz`, UTC by default), `interval_s` and `at`, and one of `topic` (with a
        `payload`), `dag`, and `workflow` (with an `input`); see `ScheduleOptions`. A job is told the time of its
        slot in `job.inputs["external:schedule"]["at"]`; so is a node of `dag` with `external=["schedule"]` and
        `pass_outputs=True`.

        Raises:
            Invalid: the times mean nothing, or what is to run cannot.
        """
        made = dag_of(dag, workflow, input, options.get("overlap"))
        body = schedule_body(cron, tz, interval_s, at, topic, payload, made, options)
        return await self._send(verbs.SCHEDULE_PUT, wire.Schedule.model_validate, namespace, schedule_id, body)

    async def get(self, schedule_id: str, *, namespace: str | None = None) -> wire.Schedule:
        """A schedule.

        Raises:
            NotFound
        """
        return await self._send(verbs.SCHEDULE, wire.Schedule.model_validate, namespace, schedule_id)

    async def all(self, *, limit: int | None = None, namespace: str | None = None) -> Listing[wire.Schedule]:
        """All schedules by id, or the first `limit`."""
        parse = verbs.page_of(wire.Schedule)
        return await self._client._run(
            listed(lambda page: self._call(verbs.SCHEDULES, parse, namespace, query=page), limit)
        )

    async def delete(self, schedule_id: str, *, namespace: str | None = None) -> bool:
        """Delete a schedule; whether there was one. Runs that were started go on."""
        parse = wire.ScheduleDeleted.model_validate
        return (await self._send(verbs.SCHEDULE_DELETE, parse, namespace, schedule_id)).deleted

    async def pause(
        self, schedule_id: str, reason: str | None = None, *, namespace: str | None = None
    ) -> wire.Schedule:
        """Let slots pass until it is resumed."""
        body = present(reason=reason)
        parse = wire.Schedule.model_validate
        return await self._send(verbs.SCHEDULE_PAUSE, parse, namespace, schedule_id, body)

    async def resume(self, schedule_id: str, *, namespace: str | None = None) -> wire.Schedule:
        """Go on, with the next slot."""
        return await self._send(verbs.SCHEDULE_RESUME, wire.Schedule.model_validate, namespace, schedule_id)

    async def trigger(
        self, schedule_id: str, *, at: datetime | None = None, namespace: str | None = None
    ) -> wire.Tick:
        """One run now, by the overlap policy, also while paused; `run` of the answer is its DAG's id."""
        body = {"request_id": str(uuid.uuid4()), **present(at=at)}
        return await self._send(verbs.SCHEDULE_TRIGGER, wire.Tick.model_validate, namespace, schedule_id, body)

    async def backfill(
        self,
        schedule_id: str,
        start: datetime,
        end: datetime,
        *,
        overlap: wire.Overlap | None = None,
        namespace: str | None = None,
    ) -> int:
        """Run the slots after `start` up to `end` once more; how many these are.

        One after another, unless overlap is `allow`.
        """
        body = {"start": start, "end": end, "request_id": str(uuid.uuid4()), **present(overlap=overlap)}
        parse = wire.Backfilled.model_validate
        return (await self._send(verbs.SCHEDULE_BACKFILL, parse, namespace, schedule_id, body)).slots

    async def ticks(
        self, schedule_id: str, *, limit: int | None = None, namespace: str | None = None
    ) -> list[wire.Tick]:
        """What became of slots, newest first: all that are kept, or the first `limit`."""
        parse = verbs.page_of(wire.Tick)

        def build(page: dict[str, Any]) -> Call[Part[wire.Tick]]:
            return self._call(verbs.SCHEDULE_TICKS, parse, namespace, schedule_id, query=page)

        return await self._client._run(listed(build, limit))

    async def _send(
        self,
        verb: Verb,
        parse: Callable[[Any], T],
        namespace: str | None,
        schedule_id: str,
        body: Any = None,
    ) -> T:
        return await self._client._send(self._call(verb, parse, namespace, schedule_id, body=body))

    def _call(
        self,
        verb: Verb,
        parse: Callable[[Any], T],
        namespace: str | None,
        schedule_id: str = "",
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
    ) -> Call[T]:
        ns = namespace or self._client.namespace
        return verbs.call(verb, parse, body=body, query=query, ns=ns, schedule=schedule_id)
