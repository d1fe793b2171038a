"""Namespaces and topics of one shard by number, as this process has met them lately.

A number says which names it stands for as long as the shard's server tells the same history
(`shared.postgres.history`); then everything here is dropped. A topic that was empty for long is deleted, and its
number never given again. So a number that is remembered may be void, but stands for no other names. What writes
under one looks at it together with its names (`store_enqueue`), and so does what looks for items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from services.queue.model import NamespaceId, TopicId
from shared.lately import Lately
from shared.postgres.sql import load
from shared.shards.shard_map import Shard

SQL = load(Path(__file__).parent / "sql")

Pair: TypeAlias = tuple[str, str]


class TopicRef(NamedTuple):
    """A topic of one shard."""

    namespace_id: NamespaceId
    topic_id: TopicId


class Names:
    """The numbers that one shard gave to names; `names_max` of topics, and of namespaces, are remembered."""

    def __init__(self, shard: Shard, names_max: int) -> None:
        self._shard = shard
        self._topics: Lately[Pair, TopicRef] = Lately(names_max)
        self._names: Lately[TopicId, Pair] = Lately(names_max)
        self._namespaces: Lately[str, NamespaceId] = Lately(names_max)
        shard.history.listeners.append(self.forget_all)

    def known(self, namespace: str, topic: str) -> TopicRef | None:
        """The numbers of a topic, if this process remembers them."""
        return self._topics.get((namespace, topic))

    def known_namespace(self, namespace: str) -> NamespaceId | None:
        """The number of a namespace, if this process remembers it."""
        return self._namespaces.get(namespace)

    def pair(self, topic_id: TopicId) -> Pair | None:
        """The (namespace, topic) of a number, if this process remembers it."""
        return self._names.get(topic_id)

    async def make(self, pairs: Iterable[Pair]) -> dict[Pair, TopicRef]:
        """See to it that every (namespace, topic) has a row here; their numbers."""
        wanted = set(pairs)
        found = await self._found(wanted)
        if len(found) < len(wanted):
            missing = sorted(wanted - found.keys())
            pool = self._shard.pool
            namespaces, topics = [ns for ns, _ in missing], [name for _, name in missing]
            await self.make_namespaces(namespaces)
            await pool.fetch(SQL.make_topics, namespaces=namespaces, names=topics)
            found |= await self._find(missing)
        return found

    async def find(self, namespace: str, topic: str) -> TopicRef | None:
        """The numbers of a topic, or None while there is none of this name here; as the shard has it now."""
        found = await self._find([(namespace, topic)], also_retiring=True)
        return found.get((namespace, topic))

    async def find_all(self, pairs: Sequence[Pair]) -> list[TopicRef | None]:
        """The numbers of several (namespace, topic), in their order, as this process remembers them, or as they
        are; only good for looking at items."""
        found = await self._found(pairs, also_retiring=True)
        return [found.get(pair) for pair in pairs]

    async def namespace_id(self, namespace: str) -> NamespaceId | None:
        """The number of a namespace, or None while it is unknown here."""
        return (await self.namespace_ids([namespace])).get(namespace)

    async def namespace_ids(self, namespaces: Iterable[str]) -> dict[str, NamespaceId]:
        """The numbers of those namespaces that are known here."""
        known = {name: self._namespaces.get(name) for name in namespaces}
        unknown = [name for name, number in known.items() if number is None]
        if unknown:
            for row in await self._shard.pool.fetch(SQL.find_namespaces, names=unknown):
                known[row["name"]] = self._namespaces[row["name"]] = row["namespace_id"]
        return {name: number for name, number in known.items() if number is not None}

    async def make_namespace(self, namespace: str) -> NamespaceId:
        """The number of a namespace, made now if need be."""
        found = await self.namespace_id(namespace)
        if found is None:
            await self.make_namespaces([namespace])
            found = await self.namespace_id(namespace)
            assert found is not None, "namespaces are never deleted"
        return found

    async def make_namespaces(self, namespaces: Iterable[str]) -> None:
        """See to it that these have rows here."""
        unknown = sorted({name for name in namespaces if self._namespaces.get(name) is None})
        if unknown:
            await self._shard.pool.fetch(SQL.make_namespaces, names=unknown, declared=False)

    async def name_of(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, Pair]:
        """The (namespace, topic) of numbers of this shard."""
        known = {number: self._names.get(number) for number in set(topic_ids)}
        unknown = [number for number, pair in known.items() if pair is None]
        if unknown:
            rows = await self._shard.pool.fetch(SQL.name_topics, topic_ids=unknown)
            for row in rows:
                known[row["topic_id"]] = self._names[row["topic_id"]] = (row["namespace"], row["topic"])
        return {number: pair for number, pair in known.items() if pair is not None}

    def forget(self, topic_ids: Iterable[TopicId]) -> None:
        """There are no topics of these numbers any more."""
        for number in topic_ids:
            pair = self._names.pop(number)
            known = None if pair is None else self._topics.get(pair)
            if pair is not None and known is not None and known.topic_id == number:
                self._topics.pop(pair)

    def forget_all(self) -> None:
        """The shard has another history: every number may stand for something else."""
        for remembered in (self._topics, self._names, self._namespaces):
            remembered.clear()

    async def _found(self, pairs: Iterable[Pair], *, also_retiring: bool = False) -> dict[Pair, TopicRef]:
        """Of those that are here, or are remembered."""
        found: dict[Pair, TopicRef] = {}
        missing: set[Pair] = set()
        for pair in pairs:
            ref = self._topics.get(pair)
            if ref is None:
                missing.add(pair)
            else:
                found[pair] = ref
        return found | await self._find(sorted(missing), also_retiring=also_retiring) if missing else found

    async def _find(self, pairs: Sequence[Pair], *, also_retiring: bool = False) -> dict[Pair, TopicRef]:
        rows = await self._shard.pool.fetch(
            SQL.find_topics,
            namespaces=[ns for ns, _ in pairs],
            names=[name for _, name in pairs],
            also_retiring=also_retiring,
        )
        found = {}
        for row in rows:
            pair = (row["namespace"], row["name"])
            found[pair] = self._topics[pair] = TopicRef(row["namespace_id"], row["topic_id"])
            self._names[row["topic_id"]] = pair
            self._namespaces[row["namespace"]] = row["namespace_id"]
        return found
