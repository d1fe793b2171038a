"""The parts of one queue process, as the routes see them."""

from __future__ import annotations

from dataclasses import dataclass

from services.queue.dispatch.dequeue import Dequeues
from services.queue.dispatch.dispatcher import Dispatch
from services.queue.enqueue.enqueue import Enqueues
from services.queue.enqueue.placement import Placement
from services.queue.gates.topic_gates import Gates
from services.queue.leases.ack import Acks
from services.queue.leases.ack_flushes import AckFlushes
from services.queue.leases.cancel import Cancels
from services.queue.leases.dag_news import DagNews
from services.queue.leases.expiry import Expiry
from services.queue.leases.extend import Extends
from services.queue.leases.hand_backs import HandBacks
from services.queue.leases.item_states import ItemStates
from services.queue.leases.job_logs import JobLogs
from services.queue.leases.nack import Nacks
from services.queue.leases.revive import Revives
from services.queue.operations.agreement import Agreement
from services.queue.operations.bulk import Operations
from services.queue.operations.dead_items import DeadItems
from services.queue.operations.health import Health
from services.queue.operations.known_workers import KnownWorkers
from services.queue.operations.topics import Topics
from services.queue.quotas import Quotas
from services.queue.settings import QueueSettings
from services.queue.store.shard_store import Store
from shared.ids import ShardNo
from shared.shards.ownership import Ownership
from shared.shards.shard_map import ShardMap


@dataclass(frozen=True, slots=True)
class QueueProcess:
    """Everything a request may need."""

    settings: QueueSettings
    shards: ShardMap
    stores: dict[ShardNo, Store]
    dispatch: Dispatch
    placement: Placement
    enqueues: Enqueues
    dequeues: Dequeues
    acks: Acks
    ack_flushes: AckFlushes
    dag_news: DagNews
    nacks: Nacks
    hand_backs: HandBacks
    extends: Extends
    revives: Revives
    cancels: Cancels
    expiry: Expiry
    topics: Topics
    item_states: ItemStates
    job_logs: JobLogs
    workers: KnownWorkers
    operations: Operations
    dead: DeadItems
    health: Health
    ownership: Ownership
    quotas: Quotas
    gates: Gates
    agreement: Agreement

    def take_calls_of(self, store: Store) -> None:
        """Serve calls about one more shard."""
        for room in (self.enqueues, self.dequeues, self.ack_flushes, self.revives):
            room.join(store)
        self.stores[store.number] = store
