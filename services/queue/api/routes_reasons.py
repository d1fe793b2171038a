"""The HTTP shape of why an item, a topic or a namespace does not go on."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from headgate import wire
from services.queue.api.routes import CallerOf, ProcessOf
from services.queue.api.verbs import enter
from services.queue.operations.reasons import Reasons
from shared.clock import SystemClock
from shared.errors import invalid
from shared.http.edge import json_response

router = APIRouter()


@router.get("/v1/namespaces/{ns}/why", response_model=wire.Why, operation_id="why", tags=["topics"])
async def why(
    ns: str,
    caller: CallerOf,
    process: ProcessOf,
    topic: Annotated[str | None, Query(pattern=wire.TOPIC_PATTERN)] = None,
    item: Annotated[str | None, Query(max_length=100)] = None,
) -> Response:
    """Why a topic's items are not handed out, an item has not ended, or, without either, what holds all up."""
    enter(ns, caller, "consume", "ops")
    if topic is not None and item is not None:
        raise invalid("/topic", "name a topic or an item, one of them, or neither for the namespace")
    reasons = Reasons(process.topics, process.dispatch.asked, process.shards, SystemClock())
    if topic is not None:
        return json_response(await reasons.of_topic(ns, topic))
    if item is not None:
        return json_response(await reasons.of_item(ns, item))
    return json_response(await reasons.of_namespace(ns))
