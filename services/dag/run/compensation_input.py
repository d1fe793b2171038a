"""What compensations are given of what they undo, with `pass_outputs`.

Under the key of the other node its output, as if that were an upstream; as `payload:<key>` what its item was made
of; and as `inputs:<key>` what its upstreams have come to: what it was given, but for one that ended, or ran again,
after its release. Of a success that a retry has replaced the first two are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.dag import queue_items, store
from services.dag.model import NodeNo
from shared.postgres.connections import Transaction


async def inputs(
    tx: Transaction,
    nos: Sequence[NodeNo],
    *,
    bytes_max: int,
    step_bytes_max: int | None = None,
    over: bool = False,
) -> dict[NodeNo, list[tuple[str, str]]]:
    """(name, JSON text) of all that these compensations are given, by number; nothing for one with over
    `bytes_max`, nor for those past `step_bytes_max` together.

    Of a DAG that is `over` the rows are looked for wherever they are.
    """
    found = await store.cleanup.undone_sizes(tx, nos, over=over)
    asking = [each.of_no for each in found if each.has_inputs]
    given_sizes = await store.cleanup.given_sizes(tx, asking, over=over) if asking else {}
    left = bytes_max * len(nos) if step_bytes_max is None else step_bytes_max
    fitting = []
    for each in found:
        size = each.bytes + given_sizes.get(each.of_no, 0)
        if size <= min(left, bytes_max):
            left -= size
            fitting.append(each)
    given: dict[NodeNo, list[tuple[str, str]]] = {each.of_no: [] for each in fitting if each.has_inputs}
    for of_no, name, value in await store.cleanup.given(tx, list(given), over=over) if given else ():
        given[of_no].append((name, value))
    told: dict[NodeNo, list[tuple[str, str]]] = {}
    for row in await store.cleanup.undone(tx, [each.no for each in fitting], over=over) if fitting else ():
        parts = [(row.key, row.output), (f"payload:{row.key}", row.payload)]
        if row.of_no in given:
            parts.append((f"inputs:{row.key}", queue_items.inputs_body(given[row.of_no])))
        told[row.no] = [(name, value) for name, value in parts if value is not None]
    return told
