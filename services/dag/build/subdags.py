"""DAGs that run in the place of nodes.

Parent and child are DAGs of their own, perhaps on different shards, and no transaction spans both. Three
outbox rows carry what one must tell the other, each written in the transaction that decides it, each
without further effect when carried again:

    start   on the parent's shard, when the node is released: make the child, under the id that the node has
            for it; or let a child that has ended go on, for the node's next generation: all that failed in it, or
            as whoever retried it by its own id has asked for
    stop    on the parent's shard, when the node is cancelled: cancel the child. One that is not made yet is
            made, empty and cancelled, so that a `start` on its way finds its place taken
    report  on the child's shard, when the child ends: end the node, in the generation the child runs for

The node ends by a report and by nothing else, as other nodes end by the completions of their items: a child
that succeeds before its cancel arrives has succeeded. A report of an older generation is without effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from services.dag import queue_items, store
from services.dag.build import run_spec, subdag_spec
from services.dag.build.create import Builder
from services.dag.errors import DagCancelling
from services.dag.model import Dag, Ending, NewDag, NodeState, Parent, Retry, Send, dag_of
from services.dag.run.completions import Completer
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.run.retry import Retrier
from services.dag.store.subdags import SubNode
from shared import ids
from shared.crash import crash_point
from shared.errors import ServiceError, Unavailable
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard

SUB_DAG_ACTIONS: Final = frozenset({"start", "stop", "report"})

_OUTPUTS_PER_PAGE: Final = 1_000
_ERROR_CHARS: Final = 1_000
_EMPTY: Final = NewDag(
    key=None, name=None, open=False, held=False, on_failure="continue", deadline_s=None, metadata=None
)
_ENDS: Final[dict[str, NodeState]] = {"succeeded": "succeeded", "failed": "failed", "cancelled": "cancelled"}


class SubDags:
    """Carries outbox rows between a DAG and those that run in its nodes' places; `carry_run` those of runs."""

    def __init__(
        self,
        context: Context,
        builder: Builder,
        completer: Completer,
        retrier: Retrier,
        carry_run: Callable[[Shard, SubNode, Send], Awaitable[None]],
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._builder = builder
        self._completer = completer
        self._retrier = retrier
        self._carry_run = carry_run

    async def carry(self, shard: Shard, send: Send) -> None:
        """Do what a row asks for.

        Raises:
            Unavailable: not now; the row is to be carried again.
        """
        if send.action == "report":
            await self._report(shard, send)
            return
        node = await store.subdags.sub_node(shard, send.no)
        if node is not None and run_spec.is_run(node.spec):
            await self._carry_run(shard, node, send)
        elif node is None or (node.generation, node.state) != (send.generation, "released"):
            # The node has moved on, or has ended. What took it from a living child has this child stopped.
            if send.action == "stop" and node is not None and _is_taken(node, send):
                await self._stop(node, send)
        elif send.action == "start":
            await self._start(shard, node, send)
        else:
            await self._stop(node, send)

    async def _start(self, shard: Shard, node: SubNode, send: Send) -> None:
        parent = Parent(node.dag_id, node.key, send.generation, node.depth + 1, send.inputs)
        spec = subdag_spec.load(node.spec)
        if spec.dag.started_lift is None:
            lifted = replace(spec.dag, started_lift=node.started_lift, path_lift=node.path_lift)
            spec = spec._replace(dag=lifted)
        home = self._home(send)
        try:
            dag, made, _ = await self._builder.create_sub(home, send.item_id, node.namespace, spec, parent)
        except Unavailable:
            raise
        except ServiceError as error:
            await self._completer.fail(shard, {send.ref: f"its DAG could not be made: {error.detail}"})
            return
        crash_point("after_child_made")
        if not made and (dag.parent_generation or 0) < send.generation:
            await self._go_on(home, dag, parent, Retry() if send.retry is None else Retry.load(send.retry))

    async def _go_on(self, home: Shard, dag: Dag, parent: Parent, wanted: Retry) -> None:
        """A child that has ended goes on for the node's next generation; one that cannot says so again."""
        try:
            await self._retrier.go_on(dag.namespace, dag.id, wanted, parent)
        except DagCancelling as error:
            raise Unavailable(error.detail) from error
        except Unavailable:
            raise
        except ServiceError:
            await self._adopt(home, dag.id, parent)

    async def _adopt(self, home: Shard, dag_id: str, parent: Parent, *, cancel: bool = False) -> None:
        async def work(tx: Transaction) -> tuple[Settlement, None]:
            [dag] = await store.dags.lock_dags(tx, [dag_id])
            settlement = Settlement(tx, [dag], self._settings, self._context.home(home))
            if (dag.parent_generation or 0) < parent.generation:
                await store.subdags.adopt(tx, dag, parent)
                if dag.over:
                    settlement.report(dag)
            if cancel and not dag.over and dag.parent_generation == parent.generation:
                settlement.cancel_rest(dag, "call", f'node "{parent.node}" of DAG {parent.dag} was cancelled')
            await settlement.run()
            return settlement, None

        await self._context.settle(home, work)

    async def _stop(self, node: SubNode, send: Send) -> None:
        home = self._home(send)
        parent = Parent(node.dag_id, node.key, send.generation, node.depth + 1)

        async def work(tx: Transaction) -> None:
            await store.dags.insert_dag(tx, send.item_id, node.namespace, _EMPTY, parent)

        await home.pool.transaction(work)
        await self._adopt(home, send.item_id, parent, cancel=True)

    async def _report(self, shard: Shard, send: Send) -> None:
        dag = await store.subdags.dag_by_no(shard, dag_of(send.no))
        if dag is None or dag.parent_dag is None:
            return
        assert dag.parent_node is not None and dag.parent_generation is not None, "these go together"
        home = self._context.shards.get(ids.shard_of(dag.parent_dag))
        assert home is not None, "the parent lives where its id says"
        if not dag.over:
            # It was reopened, and its next end has a row of its own.
            return
        error = output = None
        if dag.state == "succeeded":
            output = await self._output(shard, dag)
        elif dag.workflow is not None:
            error = await store.runs.error_of(shard, dag.no) or _error_of(dag)
        else:
            error = _error_of(dag)
        ending = Ending(
            dag.parent_dag, dag.parent_node, dag.parent_generation, _ENDS[dag.state], 1, output, error, None
        )
        await self._completer.apply(home, [ending])

    async def _output(self, shard: Shard, dag: Dag) -> str | None:
        """The outputs of the nodes that nothing waits for, by key; over the limit, a reference."""
        if dag.workflow is not None:
            return await store.runs.output_of(shard, dag.no)
        reference = queue_items.outputs_reference(dag.namespace, dag.id)
        if dag.next_n > self._settings.list_scan_nodes_max:
            return reference
        limit = self._settings.subdag_output_bytes_max
        parts: list[tuple[str, str]] = []
        size, after_no = 2, dag.node_no(0) - 1
        while page := await store.subdags.outputs_page(
            shard,
            after_no=after_no,
            last_no=dag.last_no,
            rows_max=_OUTPUTS_PER_PAGE,
            bytes_max=limit,
            over=dag.over,
        ):
            parts += [(key, output) for _, key, output, _ in page]
            size += sum(
                len(queue_items.encode(key).encode()) + len(output.encode()) + 2 for _, key, output, _ in page
            )
            if size > limit:
                return reference
            after_no = page[-1][0]
        return queue_items.inputs_body(parts) if parts else None

    def _home(self, send: Send) -> Shard:
        home = self._context.shards.get(ids.shard_of(send.item_id))
        assert home is not None, "the id was made for a shard of ours"
        return home


def _is_taken(node: SubNode, send: Send) -> bool:
    return node.generation > send.generation or node.state in ("skipped", "cancelled")


def _error_of(dag: Dag) -> str:
    told = f"its DAG {dag.id} {'failed' if dag.state == 'failed' else 'was cancelled'}"
    return f"{told}: {dag.reason}"[:_ERROR_CHARS] if dag.reason else told
