"""Enqueue: items are taken in. Calls of plain items, with ids by their callers or without, and all others go three
ways, told apart here."""

from __future__ import annotations

from services.queue.dispatch.dispatcher import Dispatch
from services.queue.enqueue.general_enqueue import GeneralEnqueues
from services.queue.enqueue.named_enqueue import NamedEnqueues
from services.queue.enqueue.placement import Placement
from services.queue.enqueue.simple_enqueue import SimpleEnqueues, plain_call
from services.queue.errors import unless_overloaded
from services.queue.model import Even, NewItem, PlainCall, PlainItem, Result
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
        self.named = NamedEnqueues(self.general, dispatch, settings)

    def join(self, store: Store) -> None:
        """Serve one more shard."""
        self.simple.join(store)
        self.general.join(store)
        self.named.join(store)

    async def enqueue(
        self, namespace: str, items: list[NewItem] | list[PlainItem], caller: Caller
    ) -> Even | list[Result]:
        """Take items in; one result per item, in order.

        Keyless items of a call that bring no id and no affinity go to one shard, in one transaction.
        """
        if isinstance(items[0], PlainItem):
            return await self.enqueue_plain(namespace, plain_call(items))
        return unless_overloaded(await self.general.enqueue(namespace, items, caller), Urgency.ENQUEUE)

    async def enqueue_plain(self, namespace: str, call: PlainCall) -> Even | list[Result]:
        """As `enqueue`, for a call of plain items."""
        if call.ids is None:
            found = await self.simple.enqueue(namespace, call.parts)
        else:
            found = await self.named.enqueue(namespace, call.parts, call.ids)
        return found if isinstance(found, Even) else unless_overloaded(found, Urgency.ENQUEUE)
