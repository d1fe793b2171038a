"""Turns of the common shape, of several runs in one statement: `migrations/dag/functions/take_turns.sql`.

Code that calls tasks, and runs steps that end soon, asks for no more than those. What such a turn writes is known
before its run is looked at, but for numbers; so the statement judges and writes, and turns that come at the same
time share it. It takes turns that may wait, whose runs it need not park. Everything else is left to
`turn_commits`, and so is every refusal: a turn that the statement leaves out is as if it had not been sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.dag import store
from services.dag.model import NODE_BITS, Item, NodeNo, Send
from services.dag.queue_items import encode
from services.dag.run import deciders
from services.dag.run.context import Context
from services.dag.run.watches import Watch
from services.dag.store.turns import PlainTurn, TakenTurn
from services.dag.workflows.values import Turn, TurnAnswer
from shared import ids
from shared.admission.connection_priority import Urgency
from shared.crash import crash_point
from shared.fallback import Fallback
from shared.ids import ShardNo
from shared.metrics import RELEASED
from shared.postgres.batcher import Batcher, BatcherLimits
from shared.shards.shard_map import Shard

_KINDS: Final = frozenset({"item", "step"})
# What one turn may ask for to share a statement, and so many turns; one of many commands counts for several.
_COMMANDS_MAX: Final = 100
_COMMANDS_AS_TURN: Final = 8
_TURNS_MAX: Final = 64


class PlainTurns:
    """Takes turns of the common shape."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._batchers: dict[ShardNo, Batcher[PlainTurn, TakenTurn | None]] = {}

    async def take(
        self, shard: Shard, namespace: str, dag_id: str, turn: Turn, watch: Watch
    ) -> TurnAnswer | Fallback:
        """Write a turn whose answer may wait for what its `watch` is told; a fallback: nothing was done."""
        plain = self._plain(namespace, dag_id, turn, await self._context.queue_shard(shard))
        if isinstance(plain, Fallback):
            return plain
        texts = [*plain.datas, *(node.item for node in plain.nodes if node is not None)]
        texts += [result.output for result in turn.results if result.output is not None]
        size = 1 + len(plain.keys) // _COMMANDS_AS_TURN
        [taken] = await self._batcher(shard).submit([plain], namespace, size=size, texts=texts)
        if taken is None:
            return Fallback("run_state")
        self._tell(shard, plain, taken, watch)
        return TurnAnswer(turn.turn, taken.events, taken.more, waits=not taken.events, dag_no=taken.dag_no)

    def _plain(self, namespace: str, dag_id: str, turn: Turn, queue_shard: ShardNo) -> PlainTurn | Fallback:
        commands = turn.commands
        if turn.stuck is not None or not _KINDS.issuperset([command.kind for command in commands]):
            return Fallback("commands")
        if len(commands) > _COMMANDS_MAX:
            return Fallback("large")
        keys = [command.key for command in commands]
        steps = [command.key for command in commands if command.kind == "step"]
        if sorted(steps) != sorted(result.key for result in turn.results) or len(set(keys)) < len(keys):
            return Fallback("steps")
        nodes = [command.node for command in commands]
        item_ids = iter(ids.with_dag_tag(ids.new_ids(queue_shard, len(keys) - len(steps)), dag_id))
        return PlainTurn(
            namespace,
            dag_id,
            turn.generation,
            deciders.hash_of(turn.secret),
            turn.turn,
            turn.digest,
            turn.last,
            turn.seen,
            encode(turn.received or {}),
            sum((turn.received or {}).values()),
            turn.made_by,
            keys,
            [command.after for command in commands],
            [command.data for command in commands],
            [None if node is None else next(item_ids) for node in nodes],
            nodes,
            [(result.key, result.state, result.output, result.error) for result in turn.results],
        )

    def _batcher(self, shard: Shard) -> Batcher[PlainTurn, TakenTurn | None]:
        if shard.number not in self._batchers:
            settings = self._settings

            async def flush(turns: list[PlainTurn]) -> Sequence[TakenTurn | None]:
                return await store.turns.take_turns(
                    shard,
                    turns,
                    nodes_max=settings.nodes_per_dag_max,
                    unfinished_max=settings.run_unfinished_max,
                    overdue_s=settings.overdue_s,
                    rows_max=settings.history_events_max,
                    bytes_max=settings.page_bytes_max // len(turns),
                )

            limits = BatcherLimits(_TURNS_MAX, wait_s=settings.standing_wait_s_max)
            self._batchers[shard.number] = Batcher(flush, limits, Urgency.ENQUEUE, shard.pool)
        return self._batchers[shard.number]

    def _tell(self, shard: Shard, plain: PlainTurn, taken: TakenTurn, watch: Watch) -> None:
        """What is committed: the queue is told of tasks, and who follows the run of it."""
        sends: list[Send] = []
        for key, item_id, node in zip(plain.keys, plain.item_ids, plain.nodes, strict=True):
            if item_id is not None and node is not None:
                no = NodeNo((taken.dag_no << NODE_BITS) + taken.next_n + len(sends))
                item = Item(plain.dag_id, key, node.item)
                sends.append(Send(no, 1, "enqueue", item_id, plain.namespace, item=item))
        if sends:
            crash_point("after_commit_before_relay")
            self._context.dispatch(shard, sends)
            RELEASED.labels(shard.number).inc(len(sends))
        self._context.turned(shard, plain.dag_id, watch)
