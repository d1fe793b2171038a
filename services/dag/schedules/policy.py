"""What becomes of a slot: by its time, and by what else of its schedule is at work."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

Overlap = Literal["skip", "buffer_one", "allow"]
Decision = Literal["started", "skipped", "buffered"]


@dataclass(frozen=True, slots=True)
class Situation:
    """What counts when a slot is decided: now, by the shard's clock; whether a run of the schedule is unfinished,
    and whether a slot waits for that."""

    now: datetime
    unfinished: bool
    buffered: bool


def due_at(schedule_no: int, slot: datetime, jitter_s: float) -> datetime:
    """When a slot is to be decided: a part of the jitter behind its time, the same whoever asks."""
    if not jitter_s:
        return slot
    said = f"{schedule_no} {slot.timestamp()}".encode()
    share = int.from_bytes(hashlib.blake2b(said, digest_size=6).digest()) / 2**48
    return slot + timedelta(seconds=share * jitter_s)


def overlapping(overlap: str, situation: Situation) -> tuple[Decision, str | None]:
    """What becomes of a slot whose time is right, and why."""
    if overlap == "allow" or not situation.unfinished:
        return "started", None
    if overlap == "buffer_one" and not situation.buffered:
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
