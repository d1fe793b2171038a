"""The parts of one queue process, as the routes see them."""

from __future__ import annotations

from dataclasses import dataclass

from services.queue.duties.health import Health
from services.queue.leases.broker import Broker
from services.queue.leases.item_states import Standings
from services.queue.leases.lease_ops import Settlement
from services.queue.operations.agreement import Agreement
from services.queue.operations.bulk import Operations
from services.queue.operations.dead_items import DeadItems
from services.queue.operations.topics import Topics
from services.queue.quotas import Quotas
from services.queue.settings import QueueSettings
from shared.shards.ownership import Ownership


@dataclass(frozen=True, slots=True)
class QueueProcess:
    """Everything a request may need."""

    settings: QueueSettings
    broker: Broker
    settlement: Settlement
    topics: Topics
    standings: Standings
    operations: Operations
    dead: DeadItems
    health: Health
    ownership: Ownership
    quotas: Quotas
    agreement: Agreement
