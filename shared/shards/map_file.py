"""The shard map as data: which shards there are, where each lives, and which of them each slot calls home.

Idempotency keys and affinities hash to 4,096 slots. Named in the environment, shards share the slots evenly and
for good. In a file each slot's home is written down, so that a new shard takes nothing from the others until
somebody moves slots to it (`python -m shards`). The file is JSON and is replaced whole::

    {"service": "queue", "version": 7,
     "shards": [{"number": 0, "dsn": "postgresql://...", "state": "active", "epoch": 1, "incarnation": "..."}],
     "slots": [[0, 4095, 0]]}

`state` is `active`, or `draining`: nothing new without an id comes there. `epoch` and `incarnation` are what the
shard itself says of who it is; see `ShardAddress.is_met_by`.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.ids import SHARDS_MAX, ShardNo
from shared.settings import ShardAddress, parse_shards

SLOTS = 4096

SlotRange = tuple[int, int, int]


def slot_of(namespace: str, key: str) -> int:
    """The slot of an idempotency key or affinity."""
    return zlib.crc32(f"{namespace}\0{key}".encode()) % SLOTS


@dataclass(frozen=True, slots=True)
class Plan:
    """One version of a shard map; version 0 is the environment's. `homes` has a shard's number for each slot."""

    service: str
    version: int
    shards: tuple[ShardAddress, ...]
    homes: tuple[ShardNo, ...]

    def slots_of(self, number: ShardNo) -> list[int]:
        """The slots that call a shard home."""
        return [slot for slot, home in enumerate(self.homes) if home == number]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    number: Annotated[int, Field(ge=0, lt=SHARDS_MAX)]
    dsn: Annotated[str, Field(min_length=1)]
    state: Literal["active", "draining"] = "active"
    epoch: Annotated[int, Field(ge=0)] = 0
    incarnation: str = ""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    service: str
    version: Annotated[int, Field(ge=1)]
    shards: Annotated[list[_Entry], Field(min_length=1)]
    slots: list[SlotRange]


def load(text: str, path: Path | None, service: str) -> Plan:
    """The map that a service was given, by its variable or by its file.

    Raises:
        ValueError: both or neither was given, or what was given is no map; the message names the variable.
    """
    variable = f"HEADGATE_{service.upper()}_SHARDS"
    if path is not None:
        if text:
            raise ValueError(f"{variable} and {variable}_FILE are both set; unset one")
        return read(path, service)
    if not text.strip():
        raise ValueError(
            f"{variable} is not set; say where the shards are, like postgresql://user@host/database#4, "
            f"or name a map's file in {variable}_FILE"
        )
    try:
        shards = tuple(parse_shards(text, service))
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from error
    return Plan(service, 0, shards, spread([shard.number for shard in shards]))


def spread(numbers: Sequence[ShardNo]) -> tuple[ShardNo, ...]:
    """Homes for all slots, in even and unbroken ranges."""
    return tuple(numbers[slot * len(numbers) // SLOTS] for slot in range(SLOTS))


def read(path: Path, service: str) -> Plan:
    """Read a map's file.

    Raises:
        ValueError: it cannot be read, or is no map of this service.
    """
    try:
        found = _File.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"the shard map {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise ValueError(f"the shard map {path}: {place}: {fault['msg']}") from error
    numbers = {entry.number for entry in found.shards}
    if found.service != service:
        raise ValueError(f"the shard map {path} is the {found.service} service's")
    if len(numbers) != len(found.shards):
        raise ValueError(f"the shard map {path} names a shard twice")
    shards = tuple(
        ShardAddress(
            ShardNo(entry.number),
            f"{service}_{entry.number:03d}",
            entry.dsn,
            draining=entry.state == "draining",
            epoch=entry.epoch,
            incarnation=entry.incarnation,
        )
        for entry in sorted(found.shards, key=lambda entry: entry.number)
    )
    return Plan(service, found.version, shards, _homes(path, found.slots, numbers))


def write(path: Path, plan: Plan) -> None:
    """Replace a map's file at once; who reads it finds the old map or the new one, also after a crash."""
    entries = [
        {
            "number": shard.number,
            "dsn": shard.dsn,
            "state": "draining" if shard.draining else "active",
            "epoch": shard.epoch,
            "incarnation": shard.incarnation,
        }
        for shard in plan.shards
    ]
    text = f'{{"service": {json.dumps(plan.service)}, "version": {plan.version},\n "shards": [\n  '
    text += ",\n  ".join(json.dumps(entry) for entry in entries)
    text += '],\n "slots": [\n  ' + ",\n  ".join(json.dumps(part) for part in ranges(plan.homes)) + "]}\n"
    # It holds passwords: a new file is its owner's alone, a replaced one keeps its mode and owner.
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            if path.exists():
                known = path.stat()
                os.fchmod(file.fileno(), known.st_mode & 0o777)
                if os.geteuid() == 0:
                    os.fchown(file.fileno(), known.st_uid, known.st_gid)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def ranges(homes: Iterable[int]) -> list[SlotRange]:
    """Homes as (first slot, last slot, shard)."""
    found: list[SlotRange] = []
    for slot, home in enumerate(homes):
        if found and found[-1][2] == home:
            found[-1] = (found[-1][0], slot, home)
        else:
            found.append((slot, slot, home))
    return found


def _homes(path: Path, parts: Sequence[SlotRange], numbers: set[int]) -> tuple[ShardNo, ...]:
    homes: list[ShardNo] = []
    for first, last, home in sorted(parts):
        if first != len(homes) or last < first or last >= SLOTS or home not in numbers:
            raise ValueError(f"the shard map {path}: slots {first} to {last} do not follow, or have no home")
        homes += [ShardNo(home)] * (last - first + 1)
    if len(homes) != SLOTS:
        raise ValueError(f"the shard map {path}: slots from {len(homes)} on have no home")
    return tuple(homes)
