"""The HTTP shape of what jobs log."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Response

from headgate import wire
from services.queue.api.body_decoders import too_large
from services.queue.api.routes import CallerOf, Limit, ProcessOf
from services.queue.api.verbs import enter
from services.queue.leases.job_logs import START, LoggedBatch, LogPlace
from shared.errors import invalid
from shared.http import cursors
from shared.http.edge import body_of, json_response

router = APIRouter()


@router.post(
    "/v1/namespaces/{ns}/logs",
    response_model=wire.Results[wire.LogResult],
    operation_id="write_logs",
    tags=["items"],
)
async def write_logs(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    body: Annotated[wire.LogsRequest, body_of(wire.LogsRequest)],
) -> Response:
    """Keep lines that jobs have logged, of items that the caller holds; one result per element, in order.

    Of an item that it has acked the caller may still write until the lease would have run out.

    A call may be repeated: of one lease a `number` that is not above the last one is not written again.
    """
    enter(ns, caller, "consume")
    batches = [_batch(i, batch, process.settings.log_batch_bytes_max) for i, batch in enumerate(body.items)]
    return json_response({"results": await process.job_logs.write(ns, batches)})


@router.get(
    "/v1/namespaces/{ns}/items/{item_id}/logs",
    response_model=wire.LogPage,
    operation_id="item_logs",
    tags=["items"],
)
async def item_logs(
    ns: str,
    item_id: str,
    caller: CallerOf,
    process: ProcessOf,
    limit: Limit = wire.PAGE_LIMIT_DEFAULT,
    cursor: str | None = None,
) -> Response:
    """What the item's job has logged, over all workers, in the order of time; also of one that has ended.

    `tail`, as `cursor`, goes on behind these lines once there are more.
    """
    enter(ns, caller, "consume", "ops")
    query = f"logs|{ns}|{item_id}"
    found, after, has_more = await process.job_logs.read(ns, item_id, limit, _place(query, cursor))
    tail = cursors.encode(query, f"{after.seq}.{after.lines}")
    return json_response({"items": found, "next_cursor": tail if has_more else None, "tail": tail})


def _batch(position: int, batch: wire.LogBatch, bytes_max: int) -> LoggedBatch:
    lines = [(line.age_s, line.level, line.logger, line.text) for line in batch.lines]
    text = json.dumps(lines, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > bytes_max:
        raise too_large(f"/items/{position}/lines", bytes_max)
    return LoggedBatch(batch.id, batch.lease_token, batch.attempt, batch.number, text, len(lines))


def _place(query: str, cursor: str | None) -> LogPlace:
    if cursor is None:
        return START
    seq, _, lines = cursors.decode(query, cursor).partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (seq, lines)):
        raise invalid("/cursor", "this is not a cursor of this list; pass `next_cursor` or `tail` as it came")
    return LogPlace(int(seq), int(lines))
