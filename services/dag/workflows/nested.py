"""Runs in the place of nodes, and what one run does to another: it starts it, or sends it a signal.

Outbox rows carry it, as between DAGs and those in the place of their nodes (`build.subdags`): `start` when the
node is released, `stop` when it is cancelled. The child's end is reported as any DAG's. All may be repeated, in
any order: a child is known by its workflow's id and its parent's node, in the node's generation. What is started
or sent takes effect even if the run that asked for it is over by then.
"""

from __future__ import annotations

from services.dag import store
from services.dag.build import run_spec
from services.dag.build.run_spec import RunSpec
from services.dag.errors import SignalsFull, WorkflowFinished
from services.dag.model import Dag, Ending, NodeState, Parent, Send
from services.dag.queue_items import encode
from services.dag.run import run_ends
from services.dag.run.completions import Completer
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.store.subdags import SubNode
from services.dag.workflows.control import RunControl
from services.dag.workflows.starting import Starter
from services.dag.workflows.values import NewRun, Signal
from shared.crash import crash_point
from shared.errors import NotFound, ServiceError, Unavailable
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard


class NestedRuns:
    """Carries outbox rows of nodes of runs."""

    def __init__(self, context: Context, completer: Completer, starter: Starter, control: RunControl) -> None:
        self._context = context
        self._settings = context.settings
        self._completer = completer
        self._starter = starter
        self._control = control

    async def carry(self, shard: Shard, node: SubNode, send: Send) -> None:
        """Do what a row asks for.

        Raises:
            Unavailable: not now; the row is to be carried again.
        """
        spec = run_spec.load(node.spec)
        lives = (node.generation, node.state) == (send.generation, "released")
        try:
            if spec.does == "child":
                await self._carry_child(shard, node, spec, send, lives=lives)
            elif lives and send.action == "start":
                output = await (self._start if spec.does == "start" else self._send)(node, spec, send)
                await self._end(shard, node, send, "succeeded", output=output)
        except Unavailable:
            raise
        except SignalsFull as error:
            raise Unavailable(error.detail) from error
        except (NotFound, WorkflowFinished) as error:
            await self._end(shard, node, send, "failed", error=error.detail)
        except ServiceError as error:
            await self._end(shard, node, send, "failed", error=f"it could not be started: {error.detail}")

    async def _start(self, node: SubNode, spec: RunSpec, send: Send) -> str:
        wanted = _new_run(spec)._replace(request=_request(node, send))
        started = await self._starter.start(node.namespace, wanted)
        return encode({"id": spec.workflow_id, "run": started.dag_id})

    async def _send(self, node: SubNode, spec: RunSpec, send: Send) -> None:
        signal = Signal(spec.name, _request(node, send), spec.data)
        await self._control.signal(node.namespace, spec.workflow_id, signal)

    async def _carry_child(self, shard: Shard, node: SubNode, spec: RunSpec, send: Send, *, lives: bool) -> None:
        parent = Parent(node.dag_id, node.key, send.generation, node.depth + 1, send.inputs)
        if lives and send.action == "start":
            await self._starter.start_child(node.namespace, _new_run(spec), parent, send.item_id)
            crash_point("after_child_run_made")
            now = await store.subdags.sub_node(shard, send.no)
            if now is not None and (now.generation, now.state) == (send.generation, "released"):
                return
        is_there = await self._close(node, spec, parent)
        if lives and send.action == "stop" and (spec.parent_close == "abandon" or not is_there):
            await self._end(shard, node, send, "cancelled", error="it was cancelled before it had begun")
            # One that was just being made has looked at the node before, or is seen now.
            await self._close(node, spec, parent)

    async def _close(self, node: SubNode, spec: RunSpec, parent: Parent) -> bool:
        """The parent waits for the child no longer; whether there is one."""
        why = f'node "{parent.node}" of DAG {parent.dag} was cancelled'

        async def act(tx: Transaction, settlement: Settlement, dag: Dag) -> None:
            run = await store.runs.of(tx, dag.no)
            if spec.parent_close == "abandon":
                return
            if spec.parent_close == "terminate":
                await run_ends.terminate(tx, settlement, dag, run, why)
            else:
                await run_ends.request(tx, settlement, dag, run, why, self._settings.cancel_grace_s)

        return await self._control.with_child(node.namespace, spec.workflow_id, parent, act)

    async def _end(
        self,
        shard: Shard,
        node: SubNode,
        send: Send,
        state: NodeState,
        *,
        output: str | None = None,
        error: str | None = None,
    ) -> None:
        ending = Ending(node.dag_id, node.key, send.generation, state, 1, output, error, None)
        await self._completer.apply(shard, [ending])


def _request(node: SubNode, send: Send) -> str:
    """What a command is known by that is carried again."""
    return f"{node.dag_id}:{node.key}:{send.generation}"


def _new_run(spec: RunSpec) -> NewRun:
    return NewRun(
        type=spec.type,
        workflow_id=spec.workflow_id,
        input=spec.input,
        version=spec.version,
        deadline_s=spec.deadline_s,
        priority=spec.priority,
        metadata=spec.metadata,
    )
