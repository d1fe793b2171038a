"""What is set for a topic with limits, and the arithmetic of its gates. Pure."""

from __future__ import annotations

import json
from typing import NamedTuple

from services.queue.store.gates import GateRow, KeyGateRow

# A grant of which nobody tells what became of it counts for so long. No claim takes as long.
GRANT_S = 60.0
# A gate that had no room is asked again so soon, if nothing is heard of it before.
AGAIN_S = 1.0

Pair = tuple[str, str]


class TopicLimits(NamedTuple):
    """What is set for a topic: items a second, how many at once at most, how many in flight; and the same for each
    fairness key. None: no limit."""

    rate: float | None = None
    burst: int = 1
    concurrency: int | None = None
    key_rate: float | None = None
    key_burst: int = 1
    key_concurrency: int | None = None

    @property
    def are_set(self) -> bool:
        """Else nothing is limited, though the topic may be throttled."""
        return self.are_whole or self.are_by_key

    @property
    def are_whole(self) -> bool:
        """Whether the topic as a whole is limited."""
        return self.rate is not None or self.concurrency is not None

    @property
    def are_by_key(self) -> bool:
        """Whether each key is."""
        return self.key_rate is not None or self.key_concurrency is not None

    @classmethod
    def of(cls, text: str) -> TopicLimits:
        """As they are kept."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """As they are kept."""
        return json.dumps(self._asdict(), sort_keys=True)


class Grant(NamedTuple):
    """How many items may be claimed, and how long to wait for more. `is_kept`: the gate is to be told of them."""

    items: int
    again_s: float = AGAIN_S
    is_kept: bool = True


def filled(row: GateRow | KeyGateRow, rate: float, burst: int) -> float:
    """How many tokens a gate has by now."""
    passed_s = max((row.at - row.filled_at).total_seconds(), 0.0)
    return min((burst if row.tokens is None else row.tokens) + passed_s * rate, burst)
