"""What a create call with a key asks for, as a digest: by it a later call with the same key is judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from services.dag.model import NewDag, NewEdge
from services.dag.queue_items import canonical


def marked(
    new: NewDag, keys: Sequence[str], fingerprints: Sequence[bytes], dependencies: Iterable[NewEdge]
) -> NewDag:
    """The DAG to create, with the digest of its settings, nodes and dependencies if it has a key. The order of
    nodes and dependencies does not matter, and a default said is a default left out."""
    if new.key is None:
        return new
    metadata = None if new.metadata is None else json.loads(new.metadata)
    settings = [new.name, new.open, new.held, new.on_failure, new.deadline_s, metadata]
    lifts = [new.started_lift or 0, new.path_lift or 0]
    nodes = sorted(zip(keys, map(bytes.hex, fingerprints), strict=True))
    edges = sorted({(edge.upstream, edge.downstream) for edge in dependencies})
    text = canonical([settings, lifts, nodes, edges])
    return replace(new, content=hashlib.blake2b(text.encode(), digest_size=16).digest())
