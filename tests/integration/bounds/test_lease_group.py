"""A thousand items of 10 KiB in one lease group: whatever becomes of them, their payloads stay where they are.

What a process is told, and what it tells, is bounded by the count of items and not by their size.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate import wire
from tests.support.queue_host import Api
from tests.support.traffic import traffic

COUNT = wire.BATCH_MAX
PAYLOAD = 10 * 1024
LEASE_S = 30.0
# Of one item without its payload, either way: ids, tokens, times.
AROUND = 500

Fate = Callable[[Api, list[dict[str, Any]]], Awaitable[Any]]


def said(verb: str, **fields: Any) -> Fate:
    async def say(api: Api, held: list[dict[str, Any]]) -> None:
        answer = await api.post(verb, {"items": [{**item, **fields} for item in held]})
        assert {result["status"] for result in answer.json()["results"]} == {DONE[verb]}

    return say


async def cancelled(api: Api, held: list[dict[str, Any]]) -> None:
    answer = await api.post("cancel", {"ids": [item["id"] for item in held]})
    assert {result["status"] for result in answer.json()["results"]} == {"cancelled"}


async def ran_out(api: Api, _held: list[dict[str, Any]]) -> None:
    await api.host.clock.advance(LEASE_S + 1)
    await api.host.reap()


DONE = {"ack": "acked", "nack": "requeued", "extend": "extended"}
FATES: dict[str, tuple[Fate, int]] = {
    "acked": (said("ack"), 0),
    "given back": (said("nack"), COUNT),
    "extended": (said("extend", lease_s=60), COUNT),
    "cancelled": (cancelled, 0),
    "out of time": (ran_out, COUNT),
}


@pytest.mark.parametrize("fate", FATES)
async def test_what_becomes_of_a_large_lease_group_does_not_move_its_payloads(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    items = [{"topic": "t", "id": own_api.new_id(0), "payload": "x" * (PAYLOAD - 2)} for _ in range(COUNT)]
    await own_api.enqueue(*items)
    with traffic(monkeypatch) as claim:
        taken = await own_api.dequeue("t", COUNT, lease_s=LEASE_S)
    assert len(taken) == COUNT
    assert COUNT * PAYLOAD <= claim.told[0] <= COUNT * (PAYLOAD + AROUND), "each payload goes over once"
    held = [{"id": item["id"], "lease_token": item["lease_token"]} for item in taken]
    act, left = FATES[fate]

    with traffic(monkeypatch) as met:
        await act(own_api, held)

    assert met.statements
    assert met.rows[0] <= COUNT, met.rows
    assert met.told[0] <= COUNT * AROUND, met.told
    assert met.given[0] <= COUNT * AROUND, met.given
    assert len((await own_api.get("items", limit=1_000)).json()["items"]) == left
