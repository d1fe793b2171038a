"""Runs begin: a DAG of one node, the decider, which is delivered at once.

Each id means one run at a time, and lives, with all its runs, on the shard that the id has its home on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from services.dag import store
from services.dag.build import run_spec
from services.dag.build.create import Builder, Written
from services.dag.build.subdag_spec import SubSpec
from services.dag.errors import IdInUse, Upgrading
from services.dag.model import Dag, NewDag, Parent
from services.dag.queue_items import encode
from services.dag.run import deciders
from services.dag.run.context import Context
from services.dag.run.decisions import Settlement
from services.dag.store.runs import Run
from services.dag.workflows.values import NewRun, signal_data
from shared import ids
from shared.crash import crash_point
from shared.errors import ShardUnavailable
from shared.ids import ShardNo
from shared.postgres.connections import Transaction
from shared.shards.shard_map import Shard


class Started(NamedTuple):
    """The run that an id means now, whether it was there before, and whether it is over."""

    dag_id: str
    existing: bool
    over: bool = False


# What a reset adds to the keys of what is asked for after it.
_RESET = re.compile(r"~[0-9]+\Z")


class Begun(NamedTuple):
    """What a transaction has made: the nodes whose items the queue is to be given, and what it decided."""

    written: Written
    settlement: Settlement | None


class Starter:
    """Begins runs."""

    def __init__(self, context: Context, builder: Builder) -> None:
        self._context = context
        self._builder = builder

    async def start(self, namespace: str, wanted: NewRun) -> Started:
        """Begin a run, or find the one that its id means.

        Raises:
            IdInUse: that is another workflow's, or is over and may have no other.
            OverQuota: the namespace has as many DAGs as it may.
        """
        shard = run_spec.home_of(self._context.shards, namespace, wanted.workflow_id)
        queue_shard = await self._context.queue_shard(shard)
        await self._builder.quotas.look(namespace)

        async def work(tx: Transaction) -> tuple[Settlement | None, tuple[Started, Written | None]]:
            dag_id = ids.new_id(shard.number)
            old = await store.runs.take_id(tx, namespace, wanted.workflow_id, dag_id)
            if old is not None:
                found = await self._in_place(tx, old, wanted)
                if found is not None:
                    return None, (found, None)
                await store.runs.point_id(tx, namespace, wanted.workflow_id, dag_id)
            begun = await self.begin(tx, shard, namespace, dag_id, wanted, queue_shard)
            return begun.settlement, (Started(dag_id, False), begun.written)

        started, made = await self._context.settle(shard, work)
        crash_point("after_start")
        if made is not None:
            await self._builder.give_made(shard, made)
        return started

    async def start_child(self, namespace: str, wanted: NewRun, parent: Parent, dag_id: str) -> None:
        """Begin the run that goes in a node's place, for this generation of it, or find that it has begun; under
        the DAG's id that the node has for it, unless that is taken.

        Raises:
            IdInUse: another run that is not over has its workflow's id.
            Unavailable: the run of the node's generation before is not over yet.
        """
        shard = run_spec.home_of(self._context.shards, namespace, wanted.workflow_id)
        queue_shard = await self._context.queue_shard(shard)

        async def work(tx: Transaction) -> tuple[Settlement | None, Written | None]:
            is_elsewhere = ids.shard_of(dag_id) != shard.number
            run_id = ids.new_id(shard.number) if is_elsewhere or await store.runs.is_dag(tx, dag_id) else dag_id
            old = await store.runs.take_id(tx, namespace, wanted.workflow_id, run_id)
            if old is not None:
                found = await store.runs.started(tx, old)
                if found is not None and found.parent == parent[:3]:
                    return None, None
                if found is not None and found.state == "running":
                    if found.parent[0] == parent[0] and _asked(found.parent[1]) == _asked(parent[1]):
                        raise ShardUnavailable("its run before is not over yet", retry_after_s=1.0)
                    raise IdInUse(f"the workflow's id {wanted.workflow_id!r} means another run")
                await store.runs.point_id(tx, namespace, wanted.workflow_id, run_id)
            begun = await self.begin(tx, shard, namespace, run_id, wanted, queue_shard, parent)
            return begun.settlement, begun.written

        made = await self._context.settle(shard, work)
        if made is not None:
            await self._builder.give_made(shard, made)

    async def _in_place(self, tx: Transaction, dag_id: str, wanted: NewRun) -> Started | None:
        """The run that an id means, where that is what is asked for; None: it may mean another.

        Raises:
            IdInUse
        """
        found = await store.runs.started(tx, dag_id)
        if found is None:
            return None  # it ended long ago, and is dropped
        if found.state == "running":
            if found.type != wanted.type:
                raise IdInUse(f"a run of {found.type!r} has this id")
            return Started(dag_id, existing=True)
        is_type = found.type == wanted.type
        if is_type and wanted.request and await store.runs.was_started_by(tx, dag_id, wanted.request):
            return Started(dag_id, existing=True, over=True)
        if wanted.reuse == "always" or (wanted.reuse != "never" and found.state in ("failed", "cancelled")):
            return None
        if wanted.reuse is None and (found.type, found.input) == (wanted.type, wanted.input):
            return Started(dag_id, existing=True, over=True)  # the same call again, as far as can be told
        raise IdInUse(f"the run of this id has {found.state}, and `reuse` allows no other")

    async def begin(
        self,
        tx: Transaction,
        shard: Shard,
        namespace: str,
        dag_id: str,
        wanted: NewRun,
        queue_shard: ShardNo,
        parent: Parent | None = None,
        *,
        paused: bool = False,
    ) -> Begun:
        """Make a run in a transaction of the caller's, who settles it and gives the queue what was written."""
        if await store.timers.has_older_owner(tx, store.timers.RUNS_LEVEL):
            raise Upgrading("an older process owns the shard; send again once it has gone", retry_after_s=1.0)
        secret = deciders.new_secret()
        new = NewDag(
            key=None,
            name=wanted.type,
            open=False,
            held=False,
            on_failure="continue",
            deadline_s=wanted.deadline_s,
            metadata=wanted.metadata,
        )
        made_of = SubSpec(new, [deciders.node(wanted.type, wanted.version, secret, wanted.priority)], [])
        settlement, written = await self._builder.make_within(
            tx, shard, dag_id, namespace, made_of, (), queue_shard, parent, paused=paused
        )
        data = encode(
            {"id": wanted.workflow_id, "run": dag_id, "type": wanted.type}
            | ({"version": wanted.version} if wanted.version is not None else {})
        )
        if wanted.input is not None:
            data = f'{data[:-1]},"input":{wanted.input}}}'
        await store.runs.begin(
            tx,
            written.dag,
            workflow_id=wanted.workflow_id,
            type=wanted.type,
            version=wanted.version,
            input=wanted.input,
            priority=wanted.priority,
            secret_hash=deciders.hash_of(secret),
            data=data,
            request=wanted.request,
        )
        if wanted.signal is not None:
            signal = wanted.signal
            await store.runs.add_signal(tx, written.dag.no, signal.name, signal.id, signal_data(signal))
        return Begun(written, settlement)

    async def continue_as(
        self, tx: Transaction, shard: Shard, dag: Dag, run: Run, input: str | None, queue_shard: ShardNo
    ) -> Begun:
        """The next run of a run that ends in this transaction, with the signals that it has not received, and what
        else was asked of it: it is paused, asked to end, and has until the same time, as this one."""
        dag_id = ids.new_id(shard.number)
        wanted = NewRun(
            type=run.type,
            workflow_id=run.workflow_id,
            input=input,
            version=run.version,
            deadline_s=dag.deadline_s,
            priority=run.priority,
            metadata=dag.metadata,
        )
        parent = None
        if dag.parent_dag is not None:
            assert dag.parent_node is not None and dag.parent_generation is not None, "these go together"
            parent = Parent(dag.parent_dag, dag.parent_node, dag.parent_generation, dag.depth)
            # The next one tells the parent how it ends.
            dag.parent_dag = None
        begun = await self.begin(tx, shard, run.namespace, dag_id, wanted, queue_shard, parent, paused=dag.paused)
        settings, next_no = self._context.settings, begun.written.dag.no
        await store.runs.move_signals(tx, run, next_no, settings.signal_ids_kept_s)
        if dag.deadline_s is not None:
            until = None if run.cancel_requested else dag.deadline_at
            await store.runs.carry_deadline(tx, run, until, next_no)
        asked = await store.runs.untold_cancel(tx, run) if run.cancel_requested else None
        if asked is not None:
            await store.runs.request_cancel(tx, next_no, asked, settings.cancel_grace_s)
        await store.runs.set_continued(tx, run, dag_id)
        await store.runs.point_id(tx, run.namespace, run.workflow_id, dag_id)
        return begun


def _asked(key: str | None) -> str:
    """A node's key, whichever reset it was asked for after."""
    return _RESET.sub("", key or "")
