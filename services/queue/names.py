"""Namespaces and topics of one shard by number: rows are never deleted, so what is known stays true."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from shared.shards import Shard
from shared.sql import load

SQL = load(Path(__file__).parent / "sql")


class TopicRef(NamedTuple):
    """A topic of one shard."""

    namespace_id: int
    topic_id: int


class Names:
    """The numbers that one shard gave to names."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._topics: dict[tuple[str, str], TopicRef] = {}
        self._names: dict[int, tuple[str, str]] = {}
        self._namespaces: dict[str, int] = {}

    def known(self, namespace: str, topic: str) -> TopicRef | None:
        """The numbers of a topic, if this process has met it."""
        return self._topics.get((namespace, topic))

    def known_namespace(self, namespace: str) -> int | None:
        """The number of a namespace, if this process has met it."""
        return self._namespaces.get(namespace)

    def pair(self, topic_id: int) -> tuple[str, str] | None:
        """The (namespace, topic) of a number, if this process has met it."""
        return self._names.get(topic_id)

    async def make(self, pairs: Iterable[tuple[str, str]]) -> None:
        """See to it that every (namespace, topic) has a row here and is known."""
        missing = sorted({pair for pair in pairs if pair not in self._topics})
        if not missing:
            return
        await self._find(missing)
        missing = [pair for pair in missing if pair not in self._topics]
        if not missing:
            return
        pool = self._shard.pool
        await pool.fetch(SQL.make_namespaces, names=sorted({ns for ns, _ in missing}), declared=False)
        await self.read_namespaces()
        await pool.fetch(
            SQL.make_topics,
            namespace_ids=[self._namespaces[ns] for ns, _ in missing],
            names=[name for _, name in missing],
        )
        await self._find(missing)

    async def find(self, namespace: str, topic: str) -> TopicRef | None:
        """The numbers of a topic, or None while no item of it has ever come to this shard."""
        [found] = await self.find_all([(namespace, topic)])
        return found

    async def find_all(self, pairs: Sequence[tuple[str, str]]) -> list[TopicRef | None]:
        """As `find`, for several (namespace, topic), in their order."""
        missing = sorted({pair for pair in pairs if pair not in self._topics})
        if missing:
            await self._find(missing)
        return [self._topics.get(pair) for pair in pairs]

    async def namespace_id(self, namespace: str) -> int | None:
        """The number of a namespace, or None while it is unknown here."""
        if namespace not in self._namespaces:
            await self.read_namespaces()
        return self._namespaces.get(namespace)

    async def make_namespace(self, namespace: str) -> int:
        """The number of a namespace, made now if need be."""
        found = await self.namespace_id(namespace)
        if found is None:
            await self._shard.pool.fetch(SQL.make_namespaces, names=[namespace], declared=False)
            await self.read_namespaces()
            found = self._namespaces[namespace]
        return found

    async def read_namespaces(self) -> list[tuple[str, str]]:
        """All (name, settings) of the shard's namespaces."""
        rows = await self._shard.pool.fetch(SQL.namespaces)
        self._namespaces.update({row["name"]: row["namespace_id"] for row in rows})
        return [(row["name"], row["settings"]) for row in rows]

    async def name_of(self, topic_ids: Iterable[int]) -> dict[int, tuple[str, str]]:
        """The (namespace, topic) of numbers of this shard."""
        wanted = set(topic_ids)
        unknown = [number for number in wanted if number not in self._names]
        if unknown:
            for row in await self._shard.pool.fetch(SQL.name_topics, topic_ids=unknown):
                self._names[row["topic_id"]] = (row["namespace"], row["topic"])
        return {number: self._names[number] for number in wanted if number in self._names}

    async def _find(self, pairs: list[tuple[str, str]]) -> None:
        rows = await self._shard.pool.fetch(
            SQL.find_topics, namespaces=[ns for ns, _ in pairs], names=[name for _, name in pairs]
        )
        for row in rows:
            pair = (row["namespace"], row["name"])
            self._topics[pair] = TopicRef(row["namespace_id"], row["topic_id"])
            self._names[row["topic_id"]] = pair
