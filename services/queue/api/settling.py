"""What a dequeue call settles before it takes items: acks, then nacks, each element answered as by those verbs.

All of it is committed before anything is looked for. What fails from then on costs the call its items and not its
results: an answer with them says what would otherwise be asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from services.queue.leases.ack import Acks
from services.queue.leases.nack import Nack, Nacks
from services.queue.model import NULL, Result, Returned, Settle, refused
from shared.admission.connection_priority import Urgency, urgency
from shared.errors import ServiceError


class SettleResults(NamedTuple):
    """One result per element, in order."""

    acks: Sequence[Result] = ()
    nacks: Sequence[Result] = ()

    def __bool__(self) -> bool:
        return bool(self.acks or self.nacks)

    def wait_s(self, asked_s: float) -> float:
        """How long the call waits for items: its caller is to hear at once of what is to be sent again."""
        is_refused = any(result.status == "refused" for result in chain(self.acks, self.nacks))
        return 0.0 if is_refused else asked_s


async def settle(acking: Acks, nacking: Nacks, namespace: str, wanted: Settle) -> SettleResults:
    """Apply it.

    Raises:
        ServiceError: as ack and nack do, and nothing was settled.
    """
    acks: Sequence[Result] = ()
    nacks: Sequence[Result] = ()
    with urgency(Urgency.SETTLE):
        if wanted.acks:
            acks = await acking.ack(namespace, wanted.acks)
        if wanted.nacks:
            try:
                nacks = await nacking.nack(namespace, nacks_of(wanted.nacks))
            except ServiceError as error:
                if not acks:
                    raise
                nacks = [refused(nack.id, error.code, error.outcome) for nack in wanted.nacks]
    return SettleResults(acks, nacks)


def nacks_of(elements: Sequence[Returned]) -> list[Nack]:
    """The elements of a call, as they are applied."""
    return [
        Nack(
            nack.id,
            nack.lease_token,
            nack.delay_s,
            None if nack.metadata == NULL else bytes(nack.metadata).decode(),
            nack.error,
            nack.final,
            nack.costs_attempt,
            nack.throttle_s,
            nack.throttle_key,
        )
        for nack in elements
    ]
