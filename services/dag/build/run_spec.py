"""A node in whose place a run of a workflow goes, as the JSON text that it keeps; and where runs live; pure.

Such a node is one of three: a run of its own (`child`), one that nobody waits for (`start`), or a signal to one
(`send`).
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final, NamedTuple

from services.dag.queue_items import encode
from shared.shards.map_file import SLOTS
from shared.shards.shard_map import Shard, ShardMap

_BEGIN: Final = '{"run":'


class RunSpec(NamedTuple):
    """What a node of a run does. `input`, `metadata`, `data` are JSON text; `name` and `data` are a signal's. A
    run without an id is given one when its node is made."""

    does: str
    workflow_id: str
    type: str = ""
    input: str | None = None
    version: str | None = None
    deadline_s: float | None = None
    priority: int = 0
    metadata: str | None = None
    parent_close: str = "cancel"
    name: str = ""
    data: str = "null"


def dump(spec: RunSpec) -> str:
    """As its node keeps it."""
    return encode({"run": spec._asdict()})


def is_run(text: str) -> bool:
    """Whether this is what a node of a run keeps."""
    return text.startswith(_BEGIN)


def load(text: str) -> RunSpec:
    """The reverse of `dump`."""
    fields: dict[str, Any] = json.loads(text)["run"]
    return RunSpec(**fields)


def home_of(shards: ShardMap, namespace: str, workflow_id: str) -> Shard:
    """The shard on which a workflow's id lives, with all its runs."""
    return shards.of_slot(zlib.crc32(f"{namespace}/{workflow_id}".encode()) % SLOTS)
