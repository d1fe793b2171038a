"""Enqueue: items are taken in. Calls of plain items and all others go two ways, told apart here."""

from __future__ import annotations

from collections.abc import Sequence

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.enqueue.general_enqueue import GeneralEnqueues
from services.queue.enqueue.placement import Placement
from services.queue.enqueue.simple_enqueue import SimpleEnqueues, parts_of
from services.queue.errors import unless_overloaded
from services.queue.model import Even, NewItem, PlainItem, PlainPart, Result
from services.queue.settings import QueueSettings
from services.queue.store.shard_store import Store
from shared.admission.connection_priority import Urgency
from shared.http.access import Caller
from shared.shards.shard_map import ShardMap


class Enqueues:
    """Calls of the verb."""

    def __init__(
        self, shards: ShardMap, dispatch: Dispatch, placement: Placement, settings: QueueSettings
    ) -> None:
        self.simple = SimpleEnqueues(dispatch, placement, settings)
        self.general = GeneralEnqueues(shards, dispatch, placement, settings)

    def join(self, store: Store) -> None:
        """Serve one more shard."""
        self.simple.join(store)
        self.general.join(store)

    async def enqueue(
        self, namespace: str, items: list[NewItem] | list[PlainItem], caller: Caller
    ) -> Even | list[Result]:
        """Take items in; one result per item, in order.

        Keyless items of a call that bring no id and no affinity go to one shard, in one transaction.
        """
        if isinstance(items[0], PlainItem):
            return await self.enqueue_plain(namespace, parts_of(items))
        return unless_overloaded(await self.general.enqueue(namespace, items, caller), Urgency.ENQUEUE)

    async def enqueue_plain(self, namespace: str, parts: Sequence[PlainPart]) -> Even | list[Result]:
        """As `enqueue`, for a call of plain items, by their kinds."""
        found = await self.simple.enqueue(namespace, parts)
        return found if isinstance(found, Even) else unless_overloaded(found, Urgency.ENQUEUE)
