"""The first node of a run of a workflow: its items, and its generations.

A parked run's decider is blocked, in a generation of its own, whose item is enqueued when there is something to be
told. No end of its item ends the run: only a turn does. One that ended without a turn gets another generation.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from services.dag import store
from services.dag.model import DECIDER, Dag, NewNode, Ref
from services.dag.queue_items import encode
from services.dag.run.decisions import Settlement
from services.dag.store.runs import Decider, Run
from shared import ids
from shared.ids import ShardNo
from shared.postgres.connections import Transaction

TOPIC: Final = "wf/"
PINNED_TOPIC: Final = "wfv/"

_SECRET_BYTES: Final = 16
_LEASE_S: Final = 60.0
# Before a decider is delivered again whose item ended without a turn; and at most, of a run that is stuck.
LOST_DELAY_S: Final = 5.0
_STUCK_DELAY_S: Final = 1.0
_STUCK_DELAY_S_MAX: Final = 300.0
_DOUBLINGS_MAX: Final = 16


def new_secret() -> str:
    """What only the holder of one generation's item knows."""
    return secrets.token_hex(_SECRET_BYTES)


def hash_of(secret: str) -> bytes:
    """What is kept of it."""
    return hashlib.sha256(secret.encode()).digest()


def knows(run: Run, secret: str) -> bool:
    """Whether this is the secret of the run's living generation."""
    return secrets.compare_digest(hash_of(secret), bytes(run.secret_hash))


def topic_of(type: str, version: str | None) -> str:
    """Where a run's deliveries are: those of a pinned run where only workers of its version look. A version has no
    slash, so no two types have one topic."""
    return f"{TOPIC}{type}" if version is None else f"{PINNED_TOPIC}{version}/{type}"


def item(type: str, version: str | None, secret: str, priority: int, delay_s: float = 0.0) -> str:
    """The decider's queue item, as its node keeps it."""
    fields = {
        "topic": topic_of(type, version),
        "payload": {"secret": secret},
        "priority": priority,
        "lease_s": _LEASE_S,
        "max_attempts": 0,
    }
    return encode(fields | ({"delay_s": delay_s} if delay_s else {}))


def node(type: str, version: str | None, secret: str, priority: int) -> NewNode:
    """The first node of a new run."""
    return NewNode(
        key=DECIDER,
        topic=topic_of(type, version),
        trigger="all_succeeded",
        pass_outputs=False,
        upstream=(),
        external=(),
        item=item(type, version, secret, priority),
        fingerprint=hashlib.blake2b(DECIDER.encode(), digest_size=16).digest(),
    )


def stuck_delay_s(attempts: int) -> float:
    """How long a run is left alone whose turns came to nothing so often in a row."""
    return min(_STUCK_DELAY_S * 2.0 ** min(attempts - 1, _DOUBLINGS_MAX), _STUCK_DELAY_S_MAX)


async def renew(
    tx: Transaction,
    settlement: Settlement,
    dag: Dag,
    run: Run,
    old: Decider,
    *,
    state: str,
    delay_s: float = 0.0,
    queue_shard: ShardNo | None = None,
) -> Decider:
    """Begin the decider's next generation: parked (`blocked`), or to be delivered (`released`). Its item stays on
    the queue's shard where the last one was, unless another is named."""
    here = ids.shard_of(old.item_id) if queue_shard is None else queue_shard
    [item_id] = ids.with_dag_tag([ids.new_id(here)], dag.id)
    secret = new_secret()
    generation = await store.runs.renew_decider(
        tx,
        dag.no,
        state=state,
        item_id=item_id,
        secret_hash=hash_of(secret),
        topic=topic_of(run.type, run.version),
        item=item(run.type, run.version, secret, run.priority, delay_s),
    )
    settlement.decider_renewed(dag, old.state, Ref(dag.node_no(0), generation), item_id, state)
    return Decider(item_id, state, generation)


async def deliver_again(
    tx: Transaction,
    settlement: Settlement,
    dag: Dag,
    generation: int,
    *,
    delay_s: float = LOST_DELAY_S,
    queue_shard: ShardNo | None = None,
) -> None:
    """The item of a decider's generation ended without a turn that parked or ended the run, or is lost: make
    another, with a secret of its own."""
    if dag.state != "running":
        return
    run = await store.runs.of(tx, dag.no)
    old = await store.runs.decider(tx, dag.no)
    if run.over or old.state != "released" or old.generation != generation:
        return
    await renew(tx, settlement, dag, run, old, state="released", delay_s=delay_s, queue_shard=queue_shard)
