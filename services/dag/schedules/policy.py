"""What becomes of a slot: by its time, and by what else of its schedule is at work."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow"]
Decision = Literal["started", "skipped", "buffered"]

# Slots that wait for a run to end, at most, by overlap policy; a new one beyond that is left out.
BUFFERED_MAX: Final = {"buffer_one": 1, "buffer_all": 100, "cancel_other": 1}


@dataclass(frozen=True, slots=True)
class Situation:
    """What counts when a slot is decided: now, by the shard's clock; whether a run of the schedule is unfinished,
    and how many slots wait for that."""

    now: datetime
    unfinished: bool
    buffered: int


def due_at(schedule_no: int, slot: datetime, jitter_s: float) -> datetime:
    """When a slot is to be decided: a part of the jitter behind its time, the same whoever asks."""
    if not jitter_s:
        return slot
    said = f"{schedule_no} {slot.timestamp()}".encode()
    share = int.from_bytes(hashlib.blake2b(said, digest_size=6).digest()) / 2**48
    return slot + timedelta(seconds=share * jitter_s)


def overlapping(overlap: str, situation: Situation) -> tuple[Decision, str | None]:
    """What becomes of a slot whose time is right, and why."""
    if overlap in ("allow", "terminate_other") or not situation.unfinished:
        return "started", None
    if situation.buffered < BUFFERED_MAX.get(overlap, 0):
        return "buffered", None
    return "skipped", "overlap"


def decide(
    situation: Situation, *, due: datetime, paused: bool, overlap: str, catchup_s: float
) -> tuple[Decision, str | None]:
    """What becomes of a slot that is due, and why."""
    if paused:
        return "skipped", "paused"
    if situation.now - due > timedelta(seconds=catchup_s):
        return "skipped", "missed"
    return overlapping(overlap, situation)
