"""Values that the jobs of a DAG share: written with compare-and-set, kept as long as the DAG.

A write names the version that it has seen. Of two that have seen the same one is refused, and reads again: no
update is lost. It also carries an id of its own, so that one whose answer was lost can be sent again.
"""

from __future__ import annotations

import uuid
from typing import Final

from services.dag import store
from services.dag.errors import DagFinished, LimitExceeded, VersionConflict, WriteReused
from services.dag.run.context import Context
from services.dag.store.shared_values import Value, ValueWritten
from shared.errors import NotFound
from shared.http import cursors

# So many writes of one value may come between a write and its repeat, and the repeat is still recognised.
_WRITES_REMEMBERED: Final = 64


class SharedValues:
    """Reads and writes values of DAGs."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings

    async def put(
        self, namespace: str, dag_id: str, key: str, value: str, *, version: int | None, write_id: str | None
    ) -> ValueWritten:
        """Write a value, JSON text, where it has this version (0: it is new; None: whatever it has).

        Raises:
            VersionConflict: it has another one.
            WriteReused: another value was written under this id.
            DagFinished: the DAG has ended.
            LimitExceeded: the DAG would have too many values, or too large ones.
        """
        shard, dag_id = self._context.shard_of(dag_id)
        settings = self._settings
        written = await store.shared_values.put(
            shard,
            dag_id,
            namespace,
            key,
            value,
            version=version,
            write_id=write_id or str(uuid.uuid4()),
            keys_max=settings.values_per_dag_max,
            bytes_max=settings.dag_values_bytes_max,
            writes_max=_WRITES_REMEMBERED,
        )
        match written.status:
            case "put":
                return written
            case "not_found":
                raise NotFound("there is no such DAG in this namespace")
            case "reused":
                raise WriteReused("another value was written under this write_id; use a new one for a new value")
            case "over":
                raise DagFinished("the DAG has ended; its values stay as they are")
            case "conflict":
                raise VersionConflict(
                    f"the value has version {written.version}; read it, and write what follows from it"
                )
            case "keys":
                raise LimitExceeded(f"the DAG would have over {settings.values_per_dag_max} values")
            case _:
                raise LimitExceeded(f"the DAG's values would take over {settings.dag_values_bytes_max} bytes")

    async def get(self, namespace: str, dag_id: str, key: str) -> Value:
        """A value.

        Raises:
            NotFound: there is no such DAG, or it has no such value.
        """
        shard, dag_id = self._context.shard_of(dag_id)
        is_there, value = await store.shared_values.get(shard, dag_id, namespace, key)
        if value is None:
            raise NotFound(
                "the DAG has no value of this key" if is_there else "there is no such DAG in this namespace"
            )
        return value

    async def page(
        self, namespace: str, dag_id: str, *, limit: int, cursor: str | None
    ) -> tuple[list[Value], str | None]:
        """A page of values, in the order of their keys; shorter than `limit` where they are large."""
        shard, dag_id = self._context.shard_of(dag_id)
        dag = await store.reads.get_dag(shard, dag_id, namespace)
        if dag is None:
            raise NotFound("there is no such DAG in this namespace")
        query = f"values|{dag.id}"
        after = "" if cursor is None else cursors.decode(query, cursor)
        found = await store.shared_values.page(
            shard, dag.no, after, rows_max=limit + 1, bytes_max=self._settings.page_bytes_max
        )
        if dag.over and await store.reads.get_dag(shard, dag_id, namespace) is None:
            raise NotFound("there is no such DAG in this namespace")  # it was dropped meanwhile
        is_last = len(found) <= limit and sum(len(each.value.encode()) for each in found) < (
            self._settings.page_bytes_max
        )
        found = found[:limit]
        return found, None if is_last or not found else cursors.encode(query, found[-1].key)
