"""What nobody is at: add calls that stopped half-way, deadlines, and the folding of totals."""

from __future__ import annotations

from collections.abc import Awaitable

from services.dag import store
from services.dag.build.queue_registration import QueueRegistrar
from services.dag.model import DagNo
from services.dag.run.context import Context
from services.dag.run.control import Controller
from shared.errors import ServiceError
from shared.log import log
from shared.loop import part_failed
from shared.shards.shard_map import Shard

_ADDS_PER_STEP = 16
_DAGS_PER_STEP = 100
_EXTERNALS_PER_STEP = 1_000
TALLY_ROWS_MIN = 100
_TALLY_ROWS_MAX = 5_000


class Sweeper:
    """Looks after one process's share of what was left; two sweepers at once do no harm."""

    def __init__(self, context: Context, registrar: QueueRegistrar, controller: Controller) -> None:
        self._context = context
        self._settings = context.settings
        self._registrar = registrar
        self._controller = controller

    async def step(self, shard: Shard) -> int:
        """One bounded look at a shard; how much was done."""
        return await self._finish_adds(shard) + await self._expire(shard) + await self._fold(shard)

    async def _finish_adds(self, shard: Shard) -> int:
        stopped = await store.duties.claim_stopped_adds(
            shard, age_s=self._settings.stopped_add_s, rows_max=_ADDS_PER_STEP
        )
        done = 0
        for unfinished in stopped:
            try:
                await self._registrar.drive(shard, unfinished)
                done += 1
            except ServiceError as error:
                log.warning("a stopped add could not be finished", dag_no=unfinished.dag_no, error=error.detail)
            except Exception:
                # One add's trouble must not hold up the others; its row is still there.
                log.exception("a stopped add could not be finished", dag_no=unfinished.dag_no)
        return done

    async def _expire(self, shard: Shard) -> int:
        overdue = await store.duties.overdue_dags(shard, _DAGS_PER_STEP)
        done = 0
        for dag_no in overdue:
            done += await self._try(dag_no, self._controller.expire(shard, dag_no))
        waiting = await store.edges.overdue_externals(shard, _EXTERNALS_PER_STEP)
        for dag_no, externals in waiting.items():
            done += await self._try(dag_no, self._controller.expire_externals(shard, dag_no, externals))
        return done

    async def _try(self, dag_no: DagNo, work: Awaitable[None]) -> int:
        """One DAG's deadline; its trouble must not hold up the others. 1 when it was done."""
        try:
            await work
        except Exception as error:
            part_failed("a deadline could not be applied", error, dag_no=dag_no)
            return 0
        return 1

    async def _fold(self, shard: Shard) -> int:
        folded = await store.duties.fold_tally(shard, rows_min=TALLY_ROWS_MIN, rows_max=_TALLY_ROWS_MAX)
        return 1 if folded > _TALLY_ROWS_MAX else 0
