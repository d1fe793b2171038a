"""Who waits for which DAG, in this process: calls that wait for an end, calls that wait for news of a run, among
them the turns of runs that are awake, and streams of changes.

A commit of this process wakes them at once, and so does what other processes tell (`queue_events`): of ends, of
news of runs, and of changes while there are streams. Changes by other processes are found by a look at the
newest change of every watched DAG of a shard, in one statement, every `watch_s`. That look finds every change;
the rest only reduces latency.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

from services.dag import store
from services.dag.model import Dag
from shared.ids import DAG_TAG, ShardNo
from shared.shards.shard_map import Shard

_DAGS_PER_LOOK = 1_000
_ANY = 1 << 62
# What a watch has seen that wakes by whatever is told of a run, and by nothing that is looked for here.
NEWS: Final = 1 << 61
_OVER = frozenset({"succeeded", "failed", "cancelled"})


class Watch:
    """One waiter. `seen` is the last change that it knows; None: only the DAG's end matters. `dag` is the DAG as
    it ended, where this process has ended it or read it since; `own` the DAG as the waiter itself writes it."""

    def __init__(self, seen: int | None) -> None:
        self.seen = seen
        self.event = asyncio.Event()
        self.dag: Dag | None = None
        self.own: Dag | None = None

    def begin(self, dag: Dag) -> None:
        """The waiter has the lock of this DAG: what it was told before it sees, and what it writes it knows."""
        self.own = dag
        self.event.clear()


class Watches:
    """All waiters of a process; `leaving` once it shuts down, which wakes them all for good.

    `stream_listeners` are told when the first stream comes, and when the last is gone.
    """

    def __init__(self) -> None:
        self.leaving = False
        self.stream_listeners: list[Callable[[bool], None]] = []
        self._streamed: dict[str, set[str]] = {}  # by DAG tag
        self._by_shard: dict[ShardNo, dict[str, set[Watch]]] = {}

    def __len__(self) -> int:
        return sum(len(watches) for dags in self._by_shard.values() for watches in dags.values())

    @contextmanager
    def watching(self, shard: Shard, dag_id: str, seen: int | None = None) -> Iterator[Watch]:
        """A watch whose event is set when the DAG has changed, or ended, beyond what it has seen."""
        watch = Watch(seen)
        if self.leaving:
            watch.event.set()
        dags = self._by_shard.setdefault(shard.number, {})
        watches = dags.setdefault(dag_id, set())
        watches.add(watch)
        is_stream = seen is not None and seen != NEWS
        if is_stream:
            self._streams(dag_id)
        try:
            yield watch
        finally:
            watches.discard(watch)
            if not watches:
                del dags[dag_id]
            if is_stream and all(other.seen is None or other.seen == NEWS for other in watches):
                self._streams_no_more(dag_id)

    def _streams(self, dag_id: str) -> None:
        is_first = not self._streamed
        self._streamed.setdefault(dag_id[DAG_TAG], set()).add(dag_id)
        if is_first:
            self._tell_of_streams(True)

    def _streams_no_more(self, dag_id: str) -> None:
        tag = self._streamed[dag_id[DAG_TAG]]
        tag.discard(dag_id)
        if not tag:
            del self._streamed[dag_id[DAG_TAG]]
        if not self._streamed:
            self._tell_of_streams(False)

    def _tell_of_streams(self, are_there: bool) -> None:
        for listener in self.stream_listeners:
            listener(are_there)

    def streamed(self, tags: Iterable[str]) -> list[str]:
        """The DAGs of some DAG tags that somebody has a stream of."""
        return [dag_id for tag in tags for dag_id in self._streamed.get(tag, ())]

    def tell(self, shard: Shard, dag: Dag) -> None:
        """A transaction has written this DAG."""
        if dags := self._by_shard.get(shard.number):
            watches = [watch for watch in dags.get(dag.id, ()) if watch.own is not dag]
            for watch in watches:
                watch.dag = dag if dag.over else None
            # Of a run, an event that its code is told need be no change of the DAG; and its end is told while the
            # rest of its DAG is still being cancelled.
            number = dag.last_event if dag.workflow is None else _ANY
            self._wake(watches, number, dag.over or dag.ends_as is not None)

    def told(self, number: ShardNo, dag_id: str, but: Watch | None = None) -> None:
        """There is news of a run: who follows it looks for itself."""
        for watch in self._by_shard.get(number, {}).get(dag_id, ()):
            if watch.seen is not None and watch is not but:
                watch.event.set()

    def has(self, number: ShardNo, dag_id: str) -> bool:
        """Whether somebody watches this DAG of the shard of that number."""
        return dag_id in self._by_shard.get(number, ())

    async def read(self, shard: Shard, dag_ids: Sequence[str]) -> None:
        """Look at some DAGs now, and tell of them."""
        for dag in (await store.reads.get_dags(shard, dag_ids)).values():
            self.tell(shard, dag)

    def leave(self) -> None:
        """The process shuts down: nobody is to wait any longer."""
        self.leaving = True
        for dags in self._by_shard.values():
            for watches in dags.values():
                for watch in watches:
                    watch.event.set()

    async def step(self, shard: Shard) -> int:
        """Look at the heads of all watched DAGs of a shard; always 0, so that a pause follows."""
        dags = self._by_shard.get(shard.number, {})
        ids = iter(list(dags))
        while part := list(islice(ids, _DAGS_PER_LOOK)):
            for dag_id, last_event, state in await store.reads.heads(shard, part):
                self._wake(dags.get(dag_id, ()), last_event, state in _OVER)
        return 0

    @staticmethod
    def _wake(watches: Iterable[Watch], last_event: int, over: bool) -> None:
        for watch in watches:
            if over if watch.seen is None else last_event > watch.seen:
                watch.event.set()
