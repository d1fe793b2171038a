"""Workflows' verbs, for coroutines."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar

from headgate import wire
from headgate._calls import run_verbs, verbs
from headgate._calls.elements import Listing
from headgate._calls.flows import listed
from headgate._calls.verbs import Call, Verb, present
from headgate._client.aio.sender import AsyncSender
from headgate.errors import NotFound, Unavailable
from headgate.wire.workflow import Accepted, RunState, RunUpdate, WorkflowRun

T = TypeVar("T")

# For how long `update` waits for its answer unless it is told otherwise.
UPDATE_WAIT_S: Final = 5.0
Reuse = Literal["never", "failed", "always"]


class AsyncWorkflows:
    """Runs of workflows: `client.workflows.start("order", cart, id="order-17")`."""

    def __init__(self, client: AsyncSender) -> None:
        self._client = client

    async def start(
        self,
        type: str,
        input: Any = None,
        *,
        id: str | None = None,
        version: str | None = None,
        deadline_s: float | None = None,
        priority: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        reuse: Reuse | None = None,
        signal: tuple[str, Any] | None = None,
        namespace: str | None = None,
    ) -> "AsyncWorkflowHandle":
        """Start a run, or find the living one of this id; `existing` of the handle tells which.

        Without an id one is made here, so that the call may be sent again. `reuse` says whether the id of a run
        that is over may have another: never, after one that failed, always. Without it, after one that failed, and
        the same type and input again find the one that succeeded. `signal` is a name and
        data, sent in the same transaction, or to the run that is there. With a `version` only workers of that one
        go on with the run.

        Raises:
            Conflict: the id is in use by another type, or may have no other run.
            OverQuota: the namespace has as many as it may.
        """
        ns = namespace or self._client.namespace
        body = {
            "type": type,
            "input": input,
            "id": _new_id() if id is None else id,
            "request_id": _new_id(),
            **present(version=version, deadline_s=deadline_s, priority=priority, metadata=metadata, reuse=reuse),
        }
        if signal is not None:
            body["signal"] = {"name": signal[0], "data": signal[1], "id": _new_id()}
        call = verbs.call(run_verbs.START, WorkflowRun.model_validate, ns=ns, body=body, safe=True)
        run = await self._client._send(call)
        return AsyncWorkflowHandle(self._client, run.id, ns, run=run.run, existing=run.existing)

    def get(self, id: str, *, namespace: str | None = None) -> "AsyncWorkflowHandle":
        """The verbs of a run that is there already; nothing is sent."""
        return AsyncWorkflowHandle(self._client, id, namespace or self._client.namespace)

    async def list(
        self,
        *,
        type: str | None = None,
        state: RunState | None = None,
        stuck: bool | None = None,
        version: str | None = None,
        limit: int | None = None,
        namespace: str | None = None,
    ) -> Listing[WorkflowRun]:
        """Runs, newest first."""
        ns, parse = namespace or self._client.namespace, verbs.page_of(WorkflowRun)
        wanted = None if stuck is None else str(stuck).lower()
        asked = {"type": type, "state": state, "version": version, "stuck": wanted}
        return await self._client._run(
            listed(lambda page: verbs.call(run_verbs.LIST, parse, ns=ns, query={**asked, **page}), limit)
        )

    async def cancel_all(
        self,
        *,
        type: str | None = None,
        version: str | None = None,
        stuck: bool | None = None,
        reason: str | None = None,
        namespace: str | None = None,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> int:
        """Ask all runs that `list` would show as running to end; how many these were. Sent again, those that have
        not ended are asked once more, which changes nothing. `progress` is told how many were asked, of how many.

        Raises:
            ValueError: neither `type` nor `version` nor `stuck` says which.
            Unavailable: a shard does not answer, whose runs would go on; nothing was done.
        """
        if type is None and version is None and not stuck:
            raise ValueError("say which: type=, version= or stuck=True")
        found = await self.list(type=type, state="running", version=version, stuck=stuck, namespace=namespace)
        if found.away:
            raise Unavailable(
                f"shard {found.away[0]} does not answer, and its runs would go on: nothing was cancelled",
                code="shard_unavailable",
            )
        for count, run in enumerate(found, 1):
            # One that has ended meanwhile and was dropped needs no end.
            with suppress(NotFound):
                await self.get(run.id, namespace=namespace).cancel(reason)
            progress(count, len(found))
        return len(found)


class AsyncWorkflowHandle:
    """One run's verbs. `id` is the workflow's; `run` that of the run that was started, where it is known."""

    def __init__(
        self,
        client: AsyncSender,
        workflow_id: str,
        namespace: str,
        *,
        run: str | None = None,
        existing: bool | None = None,
    ) -> None:
        self.id = workflow_id
        self.namespace = namespace
        self.run = run
        self.existing = existing
        self._client = client

    def __repr__(self) -> str:
        return f"AsyncWorkflowHandle({self.id!r}, namespace={self.namespace!r})"

    async def show(self) -> WorkflowRun:
        """The run as it is."""
        return await self._client._send(self._call(run_verbs.SHOW, WorkflowRun.model_validate))

    async def wait(self, timeout_s: float | None = None) -> WorkflowRun:
        """The run once it is over, or as it stands after `timeout_s`."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = wire.WAIT_S_MAX if ends_at is None else max(0.0, ends_at - time.monotonic())
            wait_s = round(min(wire.WAIT_S_MAX, left_s), 3)
            call = self._call(
                run_verbs.WAIT, WorkflowRun.model_validate, query={"timeout_s": wait_s}, wait_s=wait_s
            )
            run = await self._client._send(call)
            if run.finished or (left_s <= wire.WAIT_S_MAX and ends_at is not None):
                return run

    async def signal(self, name: str, data: Any = None, *, id: str | None = None) -> Accepted:
        """Tell the run something; it is kept until the code receives it. The same `id` again adds nothing; one is
        made here, so that the call may be sent again.

        Raises:
            Conflict: the run is over.
            OverQuota: it has as many unread signals as it may.
        """
        body = {"name": name, "data": data, "id": _new_id() if id is None else id}
        return await self._client._send(self._call(run_verbs.SIGNAL, Accepted.model_validate, body=body))

    async def update(
        self, name: str, data: Any = None, *, id: str | None = None, wait_s: float = UPDATE_WAIT_S
    ) -> RunUpdate:
        """Tell the run something that its code answers (`wf.on_update`), and wait for the answer, up to `wait_s`;
        after that it is `pending`: ask `update_state`. The same `id` again adds nothing; one is made here, so that
        the call may be sent again.

        Raises:
            Conflict: the run is over.
            OverQuota: it has as many unread signals as it may.
        """
        sent_s = round(min(wait_s, wire.WAIT_S_MAX), 3)
        body = {"name": name, "data": data, "id": _new_id() if id is None else id, "wait_s": sent_s}
        call = self._call(run_verbs.UPDATE, RunUpdate.model_validate, body=body, wait_s=sent_s)
        return await self._client._send(call)

    async def update_state(self, id: str, *, wait_s: float = 0.0) -> RunUpdate:
        """What became of an update, once it is answered or after `wait_s`.

        Raises:
            NotFound: the run was sent no such update.
        """
        asked_s = round(min(wait_s, wire.WAIT_S_MAX), 3)
        call = self._call(
            run_verbs.UPDATE_STATE, RunUpdate.model_validate, query={"wait_s": asked_s}, wait_s=asked_s, update=id
        )
        return await self._client._send(call)

    async def cancel(self, reason: str | None = None) -> WorkflowRun:
        """Ask the run to end; its code may clean up."""
        return await self._client._send(
            self._call(run_verbs.CANCEL, WorkflowRun.model_validate, body=_named(reason=reason))
        )

    async def terminate(self, reason: str | None = None) -> WorkflowRun:
        """End the run; its code hears nothing of it."""
        return await self._client._send(
            self._call(run_verbs.TERMINATE, WorkflowRun.model_validate, body=_named(reason=reason))
        )

    async def pause(self, reason: str | None = None) -> WorkflowRun:
        """Release nothing more, until `resume`."""
        return await self._client._send(
            self._call(run_verbs.PAUSE, WorkflowRun.model_validate, body=_named(reason=reason))
        )

    async def resume(
        self,
        reason: str | None = None,
        *,
        outputs: Mapping[str, Any] | None = None,
        retry: Sequence[str] | None = None,
        id: str | None = None,
    ) -> WorkflowRun:
        """Go on with a paused run, or with one that is stuck or has failed, whose code was mended.

        `outputs`: by their keys, what the code of a run that is stuck or has failed is told in the place of what
        these calls, steps, graphs and children came to. What it asked for since the first of them is void, and is
        asked for anew. The history keeps what was replaced; the same again changes nothing. `retry`: the keys of
        those that are to be done once more, where they did not succeed; its code is told what they come to. The
        same `id` again changes nothing; one is made here, so that the call may be sent again.

        Raises:
            Invalid: the run has asked for nothing of a key.
            Conflict: it has not ended, or has no output; or the run is neither stuck nor failed.
        """
        again = None if retry is None else list(retry)
        other = None if outputs is None else dict(outputs)
        body = _named(id=id, reason=reason, outputs=other, retry=again)
        return await self._client._send(self._call(run_verbs.RESUME, WorkflowRun.model_validate, body=body))

    async def reset(self, event: int, reason: str | None = None, *, id: str | None = None) -> WorkflowRun:
        """Let the run's code go on as when it was told of an event, whether the run is over or not. What it asked
        for since is void: cancelled where it has not ended, and asked for anew under other keys. Signals stay. The
        same `id` again changes nothing; one is made here, so that the call may be sent again.

        Raises:
            Invalid: its code was not told of that event.
            Conflict: what a run that is over had not ended is still being cancelled.
        """
        body = _named(id=id, event=event, reason=reason)
        return await self._client._send(self._call(run_verbs.RESET, WorkflowRun.model_validate, body=body))

    async def move(self, version: str | None) -> WorkflowRun:
        """Let workers of this version alone go on with the run, or, with None, workers of any. Whoever has it now
        loses it; nothing that was written is lost.

        Raises:
            Conflict: the run is over.
        """
        return await self._client._send(
            self._call(run_verbs.MOVE, WorkflowRun.model_validate, body=_named() | {"version": version})
        )

    async def history(self) -> dict[str, Any]:
        """The whole history, as `headgate.testing.replay` takes it."""
        found: dict[str, Any] = {"id": self.id, "events": [], "seen": 0}
        after, more = 0, True
        while more:
            page = await self._client._send(self._call(run_verbs.HISTORY, verbs.as_is, query={"after": after}))
            found["events"] += page["events"]
            found["seen"], more = page["seen"], page.get("more", False) and bool(page["events"])
            after = found["events"][-1]["event"] if found["events"] else 0
        return found

    def _call(
        self,
        verb: Verb,
        parse: Callable[[Any], T],
        *,
        body: Any = None,
        query: Any = None,
        wait_s: float = 0.0,
        update: str = "",
    ) -> Call[T]:
        return verbs.call(
            verb, parse, ns=self.namespace, workflow=self.id, update=update, body=body, query=query, wait_s=wait_s
        )


def _named(id: str | None = None, **fields: Any) -> dict[str, Any]:
    """The body of a call that is known by its id when it is sent again."""
    return {"id": _new_id() if id is None else id, **present(**fields)}


def _new_id() -> str:
    return f"sdk-{uuid.uuid4().hex}"
