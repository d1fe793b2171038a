"""Streams of a DAG's changes, as server-sent events: each from where its reader left off, to the DAG's end.

A stream keeps nothing but its place in the shard's log: it reads a page of it when its reader has taken the last
one, so it holds no more than a page, and a slow reader only falls behind. Whoever reads nothing at all is cut by
the server (`write_s_max`). A stream that ends before the DAG does (shutdown, its shard away or with another
history, its reader's token revoked, `event_stream_s_max`) is continued by the same call with the id of the last
event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from services.dag import changes, store
from services.dag.changes import Logged
from services.dag.errors import TooManyStreams
from services.dag.model import Dag
from services.dag.run.context import Context, shutting_down
from services.dag.run.watches import Watch
from shared.errors import NotFound, Unavailable, invalid
from shared.log import log
from shared.shards.shard_map import Shard

# One page is what one stream holds in memory: some hundred events, each with a key of up to a kilobyte.
_ROWS_PER_PAGE: Final = 5
_RETRY_MS: Final = 1_000
_OVER: Final = frozenset({"succeeded", "failed", "cancelled"})


class Streams:
    """Opens streams, at most `event_streams_max` at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self.open_now = 0

    async def open(
        self, namespace: str, dag_id: str, after: int, is_welcome: Callable[[], bool] = lambda: True
    ) -> Stream | None:
        """A stream of the changes after number `after`, for as long as its reader is welcome; None when the DAG
        has ended and that was the last.

        Raises:
            NotFound: there is no such DAG.
            Invalid: the DAG has not come to change `after`.
            TooManyStreams: this process has enough of them.
            ShuttingDown: it is to be asked for elsewhere.
        """
        shard, canonical = self._context.shard_of(dag_id)
        dag = await store.reads.get_dag(shard, canonical, namespace)
        if dag is None:
            raise NotFound("there is no such DAG in this namespace")
        if after > dag.last_event:
            raise invalid("/after", "the DAG has no event with this id")
        if dag.over and after == dag.last_event:
            return None
        if self._context.watches.leaving:
            raise shutting_down()
        if self.open_now >= self._settings.event_streams_max:
            raise TooManyStreams("too many event streams are open here; try again", retry_after_s=5.0)
        return Stream(self, self._context, shard, dag, after, is_welcome)


class Stream:
    """One reader's stream; counts as open until `close`."""

    def __init__(
        self,
        streams: Streams,
        context: Context,
        shard: Shard,
        dag: Dag,
        after: int,
        is_welcome: Callable[[], bool],
    ) -> None:
        self._streams = streams
        self._context = context
        self._settings = context.settings
        self._shard = shard
        self._edition = shard.history.edition
        self._dag = dag
        self._after = after
        self._is_welcome = is_welcome
        self._at_end = self._was_quiet = False
        streams.open_now += 1

    def close(self) -> None:
        """Its reader is gone, or has it all."""
        self._streams.open_now -= 1

    async def frames(self) -> AsyncIterator[bytes]:
        """What goes over the wire, a page at a time."""
        yield b"retry: %d\n\n" % _RETRY_MS
        clock = self._context.clock
        until_s = clock.monotonic_s() + self._settings.event_stream_s_max
        with self._context.watches.watching(self._shard, self._dag.id, self._after) as watch:
            while not self._context.watches.leaving and clock.monotonic_s() < until_s and self._is_welcome():
                try:
                    # The DAG's number may be another's by now.
                    self._shard.history.check(self._edition)
                    # Shielded, so that a reader who hangs up does not cost the connection to the shard.
                    page = await asyncio.shield(self._read())
                except Unavailable as error:
                    log.warning("an event stream was ended", shard=self._shard.number, error=error.detail)
                    return
                if page:
                    watch.seen = self._after
                    yield page
                elif self._at_end:
                    return
                elif not await self._changed(watch):
                    self._was_quiet = True
                    yield b":\n\n"

    async def _changed(self, watch: Watch) -> bool:
        """Wait for the next change; False when there was none for `event_keepalive_s`."""
        try:
            async with asyncio.timeout(self._settings.event_keepalive_s):
                await watch.event.wait()
        except TimeoutError:
            return False
        watch.event.clear()
        return True

    async def _read(self) -> bytes:
        rows = await store.reads.changes_after(self._shard, self._dag.no, self._after, _ROWS_PER_PAGE)
        found = [change for row in rows for change in changes.read(*row) if change.number > self._after]
        nos = {self._dag.node_no(n): n for n in changes.numbers(found)}
        keys = await store.reads.node_keys(self._shard, list(nos)) if nos else {}
        if (self._dag.over or self._was_quiet) and await self._is_dropped():
            # Of what was read a part may be missing: the next call says what became of the DAG.
            self._at_end = True
            return b""
        self._was_quiet = False
        if not found:
            return b""
        named = {nos[no]: key for no, key in keys.items()}
        self._after = found[-1].number
        self._at_end = found[-1].n is None and found[-1].state in _OVER
        return b"".join(_frame(self._dag.id, change, named) for change in found)

    async def _is_dropped(self) -> bool:
        """Whether the DAG's time was over, and its log went with it."""
        return await store.reads.get_dag(self._shard, self._dag.id, self._dag.namespace) is None


def _frame(dag_id: str, change: Logged, keys: dict[int, str]) -> bytes:
    data: dict[str, Any] = {"id": str(change.number), "at": change.at, "dag": dag_id}
    if change.n is None:
        kind, more = "dag", change.dag
    else:
        kind = "node"
        more = {"key": keys.get(change.n), "state": change.state, "generation": change.generation}
    body = msgspec.json.encode(data | {"kind": kind} | more)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (change.number, kind.encode(), body)
