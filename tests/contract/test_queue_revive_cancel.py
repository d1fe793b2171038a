"""Disabled items and their revival; cancel in every state."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate._ids import shard_of
from services.queue.duties.retention import ENDED_SLACK_S, PACKED_AGE_S
from tests.support.queue_host import Api


async def test_a_disabled_item_is_invisible_until_revived(api: Api) -> None:
    item_id = await api.enqueue_one("t", disabled=True, payload=1)
    await api.host.pass_time(3600)
    assert await api.dequeue("t", 5) == []
    assert await api.state(item_id) == "disabled"
    assert (await api.topic("t"))["disabled"] == 1

    assert await api.revive(item_id) == ["revived"]
    assert await api.state(item_id) == "ready"
    assert (await api.dequeue_one("t"))["payload"] == 1


async def test_revive_gives_inputs(api: Api) -> None:
    kept = await api.enqueue_one("t", disabled=True, inputs={"old": 1})
    given = await api.enqueue_one("t", disabled=True, inputs={"old": 1})
    await api.revive(kept)
    await api.revive(given, inputs={"up": [1, "é"]})

    assert [item["inputs"] for item in await api.dequeue("t", 5)] == [{"old": 1}, {"up": [1, "é"]}]


async def test_delay_and_ttl_count_from_revive(api: Api) -> None:
    item_id = await api.enqueue_one("t", disabled=True, delay_s=10, ttl_s=30)
    await api.host.pass_time(1000)
    assert await api.revive(item_id) == ["revived"]
    assert await api.state(item_id) == "delayed"
    await api.host.pass_time(9)
    assert await api.dequeue("t") == []
    await api.host.pass_time(2)
    assert await api.state(item_id) == "ready"
    await api.host.pass_time(18)
    assert await api.state(item_id) == "ready"
    await api.host.pass_time(2)
    assert await api.state(item_id) == "gone"


async def test_a_revived_item_is_not_early(api: Api) -> None:
    later = (datetime.now(UTC) + timedelta(seconds=100)).isoformat()
    item_id = await api.enqueue_one("t", disabled=True, deliver_after=later)
    assert await api.revive(item_id) == ["revived"]

    assert await api.dequeue("t") == []
    assert await api.state(item_id) == "delayed"
    await api.host.pass_time(101)
    assert (await api.dequeue_one("t"))["id"] == item_id


async def test_a_revived_item_keeps_its_place_by_priority_and_time_of_revival(api: Api) -> None:
    disabled = await api.enqueue_one("t", disabled=True, payload="revived")
    urgent = await api.enqueue_one("t", disabled=True, payload="urgent", priority=-1)
    await api.enqueue_one("t", payload="ready")
    await api.revive(disabled, urgent)

    assert [item["payload"] for item in await api.dequeue("t", 5)] == ["urgent", "ready", "revived"]


async def test_revive_twice_or_late_moves_nothing(api: Api) -> None:
    item_id = await api.enqueue_one("t", disabled=True, id=api.new_id(0))
    assert await api.revive(item_id, item_id) == ["revived", "already_enabled"]
    leased = await api.dequeue_one("t")
    assert await api.revive(item_id, inputs={"late": True}) == ["already_enabled"]
    assert await api.state(item_id) == "leased"
    assert await api.ack(leased) == ["acked"]
    assert await api.revive(item_id) == ["finished"]
    assert await api.dequeue("t") == []


async def test_revive_of_what_ended_or_never_was(api: Api) -> None:
    dead = await api.enqueue_one("t", id=api.new_id(0))
    await api.nack(await api.dequeue_one("t"), final=True)
    cancelled = await api.enqueue_one("t", disabled=True)
    await api.cancel(cancelled)
    expired = await api.enqueue_one("t", id=api.new_id(1), ttl_s=1)
    await api.host.pass_time(2)
    ready = await api.enqueue_one("t")

    found = await api.revive(dead, cancelled, expired, ready, api.new_id(2), "no id", api.new_id(77))
    assert found == ["finished", "cancelled", "finished", "already_enabled", "not_found", "not_found", "not_found"]
    assert await api.state(dead) == "dead"


async def test_another_namespace_neither_revives_nor_cancels(api: Api) -> None:
    other = Api(api.host)
    await other.enqueue_one("t", id=other.new_id(1))
    disabled = await api.enqueue_one("t", disabled=True, id=api.new_id(1))

    assert await other.revive(disabled) == ["not_found"]
    assert await other.cancel(disabled) == ["not_found"]
    assert await api.state(disabled) == "disabled"
    await api.cancel(disabled)
    assert await other.cancel(disabled) == ["not_found"]
    assert await other.revive(disabled) == ["not_found"]


@pytest.mark.parametrize("keyed", [False, True], ids=["made here", "id of the caller"])
@pytest.mark.parametrize("state", ["ready", "delayed", "disabled", "leased"])
async def test_a_cancelled_item_is_never_delivered(api: Api, state: str, keyed: bool) -> None:
    fields = {"delayed": {"delay_s": 5}, "disabled": {"disabled": True}}.get(state, {})
    item_id = await api.enqueue_one("t", **fields, **({"id": api.new_id(1)} if keyed else {}))
    leased = await api.dequeue("t") if state == "leased" else []
    assert await api.state(item_id) == state

    assert await api.cancel(item_id) == ["cancelled"]
    assert await api.cancel(item_id) == ["already_cancelled"]
    assert await api.revive(item_id) == ["cancelled"]
    assert await api.state(item_id) == "gone"
    await api.host.pass_time(100)
    assert await api.dequeue("t") == []
    assert await api.topic("t") == {}
    assert await api.host.count("item", f"id = '{item_id}'") == 0
    for item in leased:
        assert item["id"] == item_id


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
async def test_the_holder_of_a_cancelled_item_is_told(api: Api, verb: str) -> None:
    await api.enqueue(*({"topic": "t"} for _ in range(2)))
    first, second = await api.dequeue("t", 2)
    assert await api.cancel(first["id"]) == ["cancelled"]

    assert await api._settle(verb, [first, second], {}) == [
        "cancelled",
        {"ack": "acked", "nack": "requeued", "extend": "extended"}[verb],
    ]


async def test_a_cancel_under_a_long_lease_is_told_until_it_would_have_run_out(own_api: Api) -> None:
    """However often the memory of ended items has rotated meanwhile."""
    api, rotation_s = own_api, own_api.host.settings.id_window_s + 200
    ids = [await api.enqueue_one("t", lease_s=4 * rotation_s) for _ in range(5)]
    acked, *cancelled = await api.dequeue("t", 5)
    assert await api.ack(acked) == ["acked"]
    assert await api.cancel(*(item["id"] for item in cancelled)) == ["cancelled"] * 4
    for _ in range(3):
        await api.clock.advance(rotation_s)
        await api.host.retain()

    assert await api.ack(cancelled[0], acked) == ["cancelled", "already_acked"]
    assert await api.nack(cancelled[1]) == await api.extend(cancelled[2]) == ["cancelled"]
    assert await api.cancel(cancelled[3]["id"], acked["id"]) == ["already_cancelled", "finished"]

    for _ in range(2):
        await api.host.pass_time(2 * rotation_s)
        await api.host.retain()
    assert await api.host.count("ended") + await api.host.count("ended_old") == 0
    assert await api.cancel(*ids) == ["not_found"] * 5


async def test_cancel_of_what_ended(api: Api) -> None:
    acked = await api.enqueue_one("t", id=api.new_id(0))
    await api.ack(await api.dequeue_one("t"))
    dead = await api.enqueue_one("t")
    await api.nack(await api.dequeue_one("t"), final=True)
    expired = await api.enqueue_one("t", id=api.new_id(0), ttl_s=1)
    await api.host.pass_time(2)

    assert await api.cancel(acked, dead, expired) == ["finished", "finished", "finished"]
    assert await api.state(dead) == "dead"


async def test_cancel_of_malformed_old_and_foreign_ids_is_not_found(api: Api) -> None:
    old = api.new_id(0, age_s=api.host.settings.id_window_s + 10)

    found = await api.cancel("", "x", old, api.new_id(77), "\u0000", "00000000-0000-4000-8000-000000000000")
    assert found == ["not_found"] * 6
    assert await api.host.count("ended", f"id = '{old}'") == 0


async def test_a_cancel_that_cannot_be_kept_is_refused(api: Api) -> None:
    """The enqueue of such an id is refused now and taken later, when nothing would remember the cancel."""
    early = api.new_id(0, age_s=-api.host.settings.id_ahead_s_max - 10)
    [found] = await api.results("cancel", {"ids": [early]})
    assert found == {"id": early, "status": "refused", "code": "id_in_future", "outcome": "none"}

    await api.host.pass_time(20)
    assert await api.cancel(early) == ["cancelled"]
    assert [result["status"] for result in await api.enqueue({"topic": "t", "id": early})] == ["cancelled"]


async def test_results_of_a_cancel_call_are_in_order(api: Api) -> None:
    ids = [await api.enqueue_one("t", id=api.new_id(shard)) for shard in (2, 0, 1)]
    unseen = api.new_id(1)
    results = await api.results("cancel", {"ids": [ids[1], unseen, "x", ids[0], ids[1], ids[2]]})

    assert [r["id"] for r in results] == [ids[1], unseen, "x", ids[0], ids[1], ids[2]]
    assert [r["status"] for r in results] == [
        *("cancelled", "cancelled", "not_found", "cancelled"),
        *("already_cancelled", "cancelled"),
    ]


async def test_cancels_of_unseen_ids_are_capped_and_said_so(api: Api) -> None:
    host = api.host
    real = host.settings.unseen_cancels_max
    assert real >= 1000
    try:
        object.__setattr__(host.settings, "unseen_cancels_max", 3)
        ids = [api.new_id(0) for _ in range(4)]
        assert await api.cancel(*ids[:2]) == ["cancelled"] * 2
        living = await api.enqueue_one("t", id=api.new_id(0))
        [first, second, third] = await api.results("cancel", {"ids": [ids[2], ids[3], living]})
        assert third["status"] == "cancelled"
        assert [first["status"], second["status"]] == ["refused", "refused"]
        assert first["code"] == "cancel_limit"
        assert first["outcome"] == "none"
        assert [r["status"] for r in await api.enqueue(*({"topic": "t", "id": i} for i in ids))] == [
            "cancelled",
            "cancelled",
            "enqueued",
            "enqueued",
        ]
        assert await api.cancel(api.new_id(0)) == ["cancelled"]
        assert await Api(host).cancel(api.new_id(0)) == ["cancelled"]
        at_once = await Api(host).results("cancel", {"ids": [api.new_id(0) for _ in range(4)]})
        assert {result.get("code") for result in at_once} == {"cancel_limit"}
        as_dag = api.as_dag_service()
        assert await as_dag.cancel(*(api.new_id(0) for _ in range(10))) == ["cancelled"] * 10
    finally:
        object.__setattr__(host.settings, "unseen_cancels_max", real)


@pytest.mark.parametrize("when", ["at once", "before the sweep", "after the sweep", "as the sweep comes"])
async def test_an_acked_item_with_an_id_made_by_the_service_is_finished(
    own_api: Api, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written for such an id when it is acked: its lease group remembers it, then the sweep of that."""
    api, stranger = own_api, Api(own_api.host)
    item_id = await api.enqueue_one("t", lease_s=5)
    assert await api.ack(await api.dequeue_one("t")) == ["acked"]
    store = api.host.stores[shard_of(item_id)]
    if when != "at once":
        await api.clock.advance(6)
    if when == "after the sweep":
        await api.host.reap()
    if when == "as the sweep comes":
        acked_lately = store.acked_lately

        async def after_a_sweep(ids: list[str]) -> Any:
            await api.host.reap()
            return await acked_lately(ids)

        monkeypatch.setattr(store, "acked_lately", after_a_sweep)

    assert await stranger.cancel(item_id) == ["not_found"], "another namespace learns nothing"
    assert await api.cancel(item_id, item_id) == ["finished", "finished"]
    assert await api.revive(item_id) == ["finished"]
    assert await api.host.count("unseen_cancel") == 0, "no cancel of an unseen id is charged"


async def test_an_acked_items_id_is_remembered_no_longer_than_it_may_be_new(own_api: Api) -> None:
    """Those of completions for the DAG service are not at all."""
    window_s, dag = own_api.host.settings.id_window_s, own_api.as_dag_service("_dag")
    for api in (own_api, dag):
        await api.enqueue_one("young", lease_s=5)
        await api.ack(await api.dequeue_one("young"))
    old = await own_api.enqueue_one("old", lease_s=window_s + 60)
    await own_api.ack(await own_api.dequeue_one("old"))
    await own_api.host.pass_time(6)
    await own_api.host.retain()
    assert await own_api.host.count("acked") == 1

    await own_api.host.pass_time(window_s + 60)

    assert await own_api.host.count("acked") == 1
    assert await own_api.cancel(old) == ["not_found"]
    await own_api.clock.advance(ENDED_SLACK_S + PACKED_AGE_S)
    await own_api.host.retain()
    assert await own_api.host.counts("acked", "ended") == {"acked": 0, "ended": 0}


async def test_many_acked_ids_are_remembered_in_a_few_rows_and_each_is_known(own_api: Api) -> None:
    """Also what was cancelled under the same lease; and none that is given once more runs a second time."""
    api, stranger = own_api, Api(own_api.host)
    await api.enqueue(*({"topic": "t", "id": api.new_id(0)} for _ in range(3)))
    await api.enqueue(*({"topic": "t"} for _ in range(400)))
    leased = await api.dequeue("t", 1_000, lease_s=5)
    ids = [item["id"] for item in leased]
    assert await api.cancel(ids[1]) == ["cancelled"]
    assert await api.ack(*(item for item in leased if item["id"] != ids[1])) == ["acked"] * 402
    await api.host.pass_time(6)

    assert await api.host.count("acked") < 20 and await api.host.count("lease") == 0
    assert await stranger.cancel(*ids) == ["not_found"] * 403
    assert await api.cancel(*ids) == ["finished", "already_cancelled", *["finished"] * 401]
    others = [api.new_id(shard_of(item_id)) for item_id in ids]
    assert await api.cancel(*others) == ["cancelled"] * 403
    again = await api.enqueue(*({"topic": "t", "id": item_id} for item_id in ids))
    assert [result["status"] for result in again] == ["duplicate", "cancelled", *["duplicate"] * 401]
    assert await api.dequeue("t", 1_000) == []


async def test_an_expired_item_with_an_id_made_by_the_service_is_finished(api: Api) -> None:
    item_id = await api.enqueue_one("t", ttl_s=10)
    await api.host.pass_time(11)

    assert await api.cancel(item_id) == ["finished"]
    assert await api.revive(item_id) == ["finished"]
