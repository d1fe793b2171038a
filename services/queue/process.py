"""The parts of one queue process, as the routes see them."""

from __future__ import annotations

from dataclasses import dataclass

from services.queue.broker import Broker
from services.queue.dead import DeadItems
from services.queue.health import Health
from services.queue.operations import Operations
from services.queue.quotas import Quotas
from services.queue.settings import QueueSettings
from services.queue.settle import Settlement
from services.queue.standing import Standings
from services.queue.topics import Topics
from shared.ownership import Ownership


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
