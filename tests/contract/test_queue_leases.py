"""Ack, nack and extend: what a lease token allows, and for how long."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from headgate._ids import shard_of
from tests.support.queue_host import AT_ONCE, Api, QueueHost

NO_TOKEN = "00000000-0000-4000-8000-000000000000"


def with_token(leased: dict[str, object], token: object) -> dict[str, object]:
    return {**leased, "lease_token": token}


async def test_an_acked_item_is_gone(api: Api) -> None:
    await api.enqueue_one("t")
    leased = await api.dequeue_one("t")

    assert await api.ack(leased) == ["acked"]
    assert await api.state(leased["id"]) == "gone"
    assert await api.topic("t") == {}
    assert await api.host.count("item", f"id = '{leased['id']}'") == 0


async def test_a_batch_answers_each_element_in_order(api: Api) -> None:
    await api.enqueue(*({"topic": "t"} for _ in range(4)))
    held = await api.dequeue("t", 3)
    unseen = {"id": api.new_id(1), "lease_token": held[0]["lease_token"]}

    statuses = await api.ack(
        held[2], {"id": "not an id", "lease_token": "x"}, held[0], unseen, with_token(held[1], NO_TOKEN), held[0]
    )

    assert statuses == ["acked", "not_found", "acked", "not_found", "lease_lost", "already_acked"]
    assert await api.state(held[1]["id"]) == "leased"


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
@pytest.mark.parametrize("token", ["", "x", NO_TOKEN, "\u00e9" * 50, NO_TOKEN.upper(), "0" * 5000])
async def test_a_token_that_was_never_given_is_lease_lost(api: Api, verb: str, token: str) -> None:
    await api.enqueue_one("t")
    leased = await api.dequeue_one("t")

    assert await api._settle(verb, [with_token(leased, token)], {}) == ["lease_lost"]
    assert await api.state(leased["id"]) == "leased"


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
@pytest.mark.parametrize("item_id", ["", "x", NO_TOKEN, "01890a5d-ac96-774b-bcce-b302099aefff", "%00"])
async def test_an_id_that_was_never_given_is_not_found(api: Api, verb: str, item_id: str) -> None:
    await api.enqueue_one("t")
    leased = await api.dequeue_one("t")

    assert await api._settle(verb, [{**leased, "id": item_id}], {}) == ["not_found"]


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
async def test_another_items_token_is_lease_lost(api: Api, verb: str) -> None:
    await api.enqueue({"topic": "t"}, {"topic": "t"})
    [first] = await api.dequeue("t")
    [second] = await api.dequeue("t")

    assert await api._settle(verb, [with_token(first, second["lease_token"])], {}) == ["lease_lost"]
    assert await api.state(first["id"]) == "leased"


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
async def test_another_namespace_cannot_settle(api: Api, verb: str) -> None:
    other = Api(api.host)
    await other.enqueue_one("t", id=other.new_id(1))
    item_id = await api.enqueue_one("t", id=api.new_id(1))
    leased = await api.dequeue_one("t")

    assert await other._settle(verb, [leased], {}) == ["not_found"]
    assert await api.state(item_id) == "leased"
    assert await api.ack(leased) == ["acked"]
    assert await other._settle(verb, [leased], {}) == ["not_found"]


async def test_an_upper_case_id_and_token_are_the_same(api: Api) -> None:
    await api.enqueue_one("t")
    leased = await api.dequeue_one("t")
    shouted = {"id": leased["id"].upper(), "lease_token": leased["lease_token"].upper()}

    assert await api.ack(shouted) == ["acked"]


async def test_a_repeated_ack_is_already_acked_until_the_lease_would_have_run_out(api: Api) -> None:
    await api.enqueue({"topic": "t", "lease_s": 30}, {"topic": "t", "lease_s": 30, "id": api.new_id(0)})
    held = await api.dequeue("t", 2)
    assert await api.ack(*held) == ["acked", "acked"]
    await api.host.pass_time(29)
    assert await api.ack(*held) == ["already_acked", "already_acked"]
    assert set(await api.ack(*(with_token(item, NO_TOKEN) for item in held))) <= {"lease_lost", "not_found"}
    await api.host.pass_time(2)

    assert set(await api.ack(*held)) <= {"lease_lost", "not_found"}


async def test_already_acked_while_others_of_the_group_are_open_or_extended(api: Api) -> None:
    await api.enqueue(*({"topic": "t", "lease_s": 30} for _ in range(3)))
    first, second, third = await api.dequeue("t", 3)
    assert await api.ack(first) == ["acked"]
    assert await api.extend(second, lease_s=500) == ["extended"]
    assert await api.nack(third) == ["requeued"]

    assert await api.ack(first, second, third) == ["already_acked", "acked", "lease_lost"]
    assert await api.ack(second) == ["already_acked"]


async def test_an_expired_lease_that_nobody_took_back_may_be_acked(api: Api) -> None:
    await api.enqueue_one("t", lease_s=5)
    leased = await api.dequeue_one("t")
    await api.clock.advance(600)

    assert await api.ack(leased) == ["acked"]
    await api.host.reap()
    assert await api.dequeue("t") == []


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
async def test_a_lease_taken_back_is_lost_before_and_after_redelivery(api: Api, verb: str) -> None:
    item_id = await api.enqueue_one("t", lease_s=5, backoff=AT_ONCE)
    first = await api.dequeue_one("t")
    await api.host.pass_time(6)

    assert await api._settle(verb, [first], {}) == ["lease_lost"]
    second = await api.dequeue_one("t")
    assert (second["id"], second["attempt"]) == (item_id, 2)
    assert second["lease_token"] != first["lease_token"]
    assert await api._settle(verb, [first], {}) == ["lease_lost"]
    assert await api.ack(second) == ["acked"]
    assert await api._settle(verb, [first], {}) == ["lease_lost"]
    assert await api.ack(second) == ["already_acked"]


async def test_only_the_winner_of_a_redelivered_item_hears_already_acked(api: Api) -> None:
    await api.enqueue(*({"topic": "t", "lease_s": 5, "backoff": AT_ONCE} for _ in range(2)))
    held = await api.dequeue("t", 2)
    assert await api.ack(held[0]) == ["acked"]
    await api.host.pass_time(6)
    again = await api.dequeue_one("t", lease_s=60)

    assert await api.ack(held[1], again) == ["lease_lost", "acked"]


async def test_a_lease_that_did_not_run_out_is_left_alone(api: Api) -> None:
    """Also by the sweep that takes back another of its shard."""
    for lease_s in (3, 5):
        await api.enqueue_one("t", id=api.new_id(0), lease_s=lease_s, backoff=AT_ONCE)
    over, leased = await api.dequeue("t", 2)
    await api.host.pass_time(4)

    assert await api.state(leased["id"]) == "leased"
    assert [item["id"] for item in await api.dequeue("t", 2)] == [over["id"]]


async def test_extend_moves_the_end_of_the_named_items_only(api: Api) -> None:
    await api.enqueue(*({"topic": "t", "lease_s": 10, "payload": n, "backoff": AT_ONCE} for n in range(3)))
    held = await api.dequeue("t", 3)
    await api.clock.advance(8)

    assert await api.extend(held[1], lease_s=30) == ["extended"]
    await api.host.pass_time(4)

    assert await api.ack(*held) == ["lease_lost", "acked", "lease_lost"]
    assert [item["payload"] for item in await api.dequeue("t", 9)] == [0, 2]


async def test_of_a_lease_that_one_call_extends_twice_the_last_word_counts(api: Api) -> None:
    await api.enqueue_one("t", lease_s=100)
    leased = await api.dequeue_one("t")
    lost = {**leased, "lease_token": "00000000-0000-4000-8000-000000000000"}
    wanted = [(leased, 300.0), (lost, 900.0), (leased, 4.0)]
    body = [{"id": item["id"], "lease_token": item["lease_token"], "lease_s": end} for item, end in wanted]
    found = await api.results("extend", {"items": body})
    assert [result["status"] for result in found] == ["extended", "lease_lost", "extended"]

    await api.host.pass_time(5)
    assert await api.ack(leased) == ["lease_lost"]


async def test_extend_counts_from_now_and_may_shorten(api: Api) -> None:
    await api.enqueue_one("t", lease_s=1000)
    leased = await api.dequeue_one("t")
    assert await api.extend(leased, lease_s=2) == ["extended"]
    await api.host.pass_time(3)

    assert await api.ack(leased) == ["lease_lost"]


async def test_extend_without_a_length_takes_the_items_own(api: Api) -> None:
    await api.enqueue_one("t", lease_s=100)
    leased = await api.dequeue_one("t", lease_s=5)
    assert await api.extend(leased) == ["extended"]
    await api.host.pass_time(99)
    assert await api.extend(leased) == ["extended"]
    await api.host.pass_time(99)
    assert await api.ack(leased) == ["acked"]


async def test_nack_makes_deliverable_at_once_with_a_new_token(api: Api) -> None:
    await api.enqueue_one("t", metadata={"try": 1}, backoff=AT_ONCE)
    first = await api.dequeue_one("t")
    assert await api.nack(first, metadata={"try": 2}, error="no luck") == ["requeued"]
    assert (await api.item(first["id"]))["error"] == "no luck"

    second = await api.dequeue_one("t")
    assert second["attempt"] == 2
    assert second["metadata"] == {"try": 2}
    assert second["lease_token"] != first["lease_token"]
    assert await api.nack(first) == ["lease_lost"]
    assert await api.nack(second) == ["requeued"]
    assert (await api.dequeue_one("t"))["metadata"] == {"try": 2}


async def test_nack_goes_behind_what_was_ready_before(api: Api) -> None:
    await api.enqueue(*({"topic": "t", "payload": n, "backoff": AT_ONCE} for n in range(3)))
    [first] = await api.dequeue("t")
    await api.nack(first)

    assert [item["payload"] for item in await api.dequeue("t", 9)] == [1, 2, 0]


async def test_nack_of_one_item_leaves_the_others_of_its_group(api: Api) -> None:
    await api.enqueue(*({"topic": "t"} for _ in range(3)))
    held = await api.dequeue("t", 3)

    assert await api.nack(held[1], held[1]) == ["requeued", "lease_lost"]
    assert await api.ack(held[0], held[2]) == ["acked", "acked"]


async def test_a_nack_that_costs_nothing_repeats_the_attempt(api: Api) -> None:
    await api.enqueue_one("t", max_attempts=1)
    for _ in range(3):
        leased = await api.dequeue_one("t")
        assert leased["attempt"] == 1
        assert await api.nack(leased, costs_attempt=False) == ["requeued"]
    assert await api.nack(await api.dequeue_one("t")) == ["dead"]


async def test_attempts_are_used_up_by_nack_and_by_expiry(api: Api) -> None:
    await api.enqueue_one("t", max_attempts=3, lease_s=5, backoff=AT_ONCE)
    assert await api.nack(await api.dequeue_one("t")) == ["requeued"]
    second = await api.dequeue_one("t")
    await api.host.pass_time(6)
    third = await api.dequeue_one("t")
    assert (second["attempt"], third["attempt"]) == (2, 3)
    await api.host.pass_time(6)

    assert await api.state(third["id"]) == "dead"
    assert await api.dequeue("t") == []
    assert (await api.item(third["id"]))["attempt"] == 3
    assert (await api.topic("t"))["dead"] == 1


async def test_a_final_nack_is_the_death_of_the_item(api: Api) -> None:
    item_id = await api.enqueue_one("t")
    assert await api.nack(await api.dequeue_one("t"), final=True, error="hopeless") == ["dead"]

    item = await api.item(item_id)
    assert (item["state"], item["error"], item["attempt"]) == ("dead", "hopeless", 1)
    await api.host.pass_time(3600)
    assert await api.dequeue("t") == []


async def test_delay_of_nack_wins_over_backoff(api: Api) -> None:
    await api.enqueue_one("t", backoff={"base_s": 100, "factor": 2, "max_s": 1000})
    assert await api.nack(await api.dequeue_one("t"), delay_s=7) == ["requeued"]
    await api.host.pass_time(6)
    assert await api.dequeue("t") == []
    await api.host.pass_time(2)
    assert await api.nack(await api.dequeue_one("t"), delay_s=0) == ["requeued"]
    assert len(await api.dequeue("t")) == 1


async def test_backoff_grows_to_its_maximum_for_nacks_and_expiries(api: Api) -> None:
    await api.enqueue_one("t", backoff={"base_s": 10, "factor": 3, "max_s": 40, "jitter": 0}, lease_s=5)
    for turn, pause_s in enumerate((10, 30, 40, 40)):
        leased = await api.dequeue_one("t")
        assert leased["attempt"] == turn + 1
        if turn % 2:
            await api.host.pass_time(5.5)
        else:
            assert await api.nack(leased) == ["requeued"]
        assert (await api.topic("t"))["delayed"] == 1
        await api.host.pass_time(pause_s - 1)
        assert await api.dequeue("t") == []
        await api.host.pass_time(2)


async def test_a_leased_item_tells_when_its_lease_ends(api: Api) -> None:
    await api.enqueue({"topic": "t"}, {"topic": "t"}, {"topic": "t"})
    first, second = await api.dequeue("t", 2, lease_s=50)
    assert await api.extend(second, lease_s=500) == ["extended"]

    listed = (await api.get("items", topic="t")).json()["items"]
    ends = {item["id"]: item["lease_expires_at"] for item in listed}
    assert [(await api.item(item_id))["lease_expires_at"] for item_id in ends] == list(ends.values())
    assert datetime.fromisoformat(ends[first["id"]]) == datetime.fromisoformat(first["lease_expires_at"])
    assert datetime.fromisoformat(ends[second["id"]]) > datetime.fromisoformat(ends[first["id"]])
    assert list(ends.values()).count(None) == 1
    assert await api.nack(first) == ["requeued"]
    assert (await api.item(first["id"]))["lease_expires_at"] is None


@pytest.mark.parametrize("act", ["nack", "expiry"])
async def test_what_failed_waits_by_default_and_longer_each_time(api: Api, act: str) -> None:
    await api.enqueue_one("t", lease_s=5)
    for attempt, pause_s in enumerate((1, 2, 4, 8, 16, 32, 64, 128, 240, 240), 1):
        leased = await api.dequeue_one("t")
        assert leased["attempt"] == attempt
        if act == "nack":
            assert await api.nack(leased) == ["requeued"]
        else:
            await api.host.pass_time(5.1)
        assert (await api.topic("t"))["delayed"] == 1
        await api.host.pass_time(pause_s - 0.5)
        assert await api.dequeue("t") == []
        await api.host.pass_time(pause_s * 0.25 + 0.5)


async def test_items_that_failed_together_do_not_come_back_together(api: Api) -> None:
    ids = [await api.enqueue_one("t", backoff={"base_s": 100, "factor": 1}) for _ in range(20)]
    held = await api.dequeue("t", 20)
    await api.clock.freeze()
    assert set(await api.nack(*held)) == {"requeued"}
    due = [datetime.fromisoformat((await api.item(item_id))["deliver_at"]) for item_id in ids]
    spread_s = (max(due) - min(due)).total_seconds()
    assert len(set(due)) == 20 and 1 < spread_s <= 20, "a fifth of the pause, each somewhere in it"


@pytest.mark.parametrize(
    ("given", "pauses_s"), [({}, (10, 20, 40)), ({"factor": 1}, (10, 10)), ({"max_s": 15}, (10, 15, 15))]
)
async def test_a_backoff_may_leave_out_its_factor_and_its_maximum(
    api: Api, given: dict[str, float], pauses_s: tuple[int, ...]
) -> None:
    await api.enqueue_one("t", backoff={"base_s": 10, "jitter": 0, **given})
    for pause_s in pauses_s:
        assert await api.nack(await api.dequeue_one("t")) == ["requeued"]
        await api.host.pass_time(pause_s - 1)
        assert await api.dequeue("t") == []
        await api.host.pass_time(2)


async def test_an_at_most_once_item_is_never_delivered_twice(api: Api) -> None:
    for act in ("expire", "nack"):
        await api.enqueue_one("t", delivery="at_most_once", lease_s=5)
        leased = await api.dequeue_one("t")
        assert leased["attempt"] == 1
        if act == "nack":
            assert await api.nack(leased, costs_attempt=False) == ["dead"]
            assert await api.state(leased["id"]) == "dead"
        else:
            await api.host.pass_time(6)
            assert await api.state(leased["id"]) == "gone"
        await api.host.pass_time(60)
        assert await api.dequeue("t", 10) == []
        assert (await api.ack(leased))[0] in ("lease_lost", "not_found")


async def test_an_at_most_once_item_may_be_acked_and_extended(api: Api) -> None:
    await api.enqueue_one("t", delivery="at_most_once", lease_s=5)
    leased = await api.dequeue_one("t")
    assert await api.extend(leased, lease_s=50) == ["extended"]
    await api.host.pass_time(40)
    assert await api.ack(leased) == ["acked"]


async def test_ttl_ends_what_is_not_leased(api: Api) -> None:
    ready = await api.enqueue_one("t", ttl_s=10, priority=1)
    delayed = await api.enqueue_one("t", ttl_s=10, delay_s=9.5)
    await api.enqueue_one("t", ttl_s=10, priority=-1)
    leased = await api.dequeue("t", 1)
    await api.host.pass_time(9)
    assert [await api.state(i) for i in (ready, delayed)] == ["ready", "delayed"]
    await api.host.pass_time(2)

    assert [await api.state(i) for i in (ready, delayed)] == ["gone", "gone"]
    assert await api.state(leased[0]["id"]) == "leased"
    assert await api.ack(*leased) == ["acked"]
    assert await api.topic("t") == {}


async def test_an_item_past_its_ttl_is_not_delivered_even_before_anybody_ended_it(api: Api) -> None:
    item_id = await api.enqueue_one("t", ttl_s=10)
    await api.enqueue_one("t", payload="lives")
    await api.clock.advance(11)

    assert [item["payload"] for item in await api.dequeue("t", 9)] == ["lives"]
    await api.host.reap()
    assert await api.state(item_id) == "gone"


async def test_a_nacked_item_past_its_ttl_ends(api: Api) -> None:
    item_id = await api.enqueue_one("t", ttl_s=10)
    leased = await api.dequeue_one("t")
    await api.clock.advance(11)
    assert await api.nack(leased) == ["requeued"]

    assert await api.dequeue("t") == []
    await api.host.reap()
    assert await api.state(item_id) == "gone"


async def test_outputs_need_no_ack_topic(api: Api) -> None:
    await api.enqueue_one("t")

    assert await api.ack(await api.dequeue_one("t"), output={"any": ["json", None]}) == ["acked"]


async def test_lease_tokens_are_random_and_long(api: Api) -> None:
    await api.enqueue(*({"topic": "t"} for _ in range(20)))
    tokens = {(await api.dequeue("t"))[0]["lease_token"] for _ in range(20)}
    bits = [int(uuid.UUID(token)) for token in tokens]

    assert len(tokens) == 20
    for position in range(128):
        assert len({number >> position & 1 for number in bits}) == 2, position


async def test_leases_of_several_shards_are_settled_by_one_call(own_api: Api, own_host: QueueHost) -> None:
    for shard in (0, 1):
        await own_api.enqueue_one("t", id=own_api.new_id(shard))
    held = await own_api.dequeue("t", 2, lease_s=60)

    assert {shard_of(item["id"]) for item in held} == {0, 1}
    expires = [datetime.fromisoformat(item["lease_expires_at"]) for item in held]
    assert all(timedelta(55) > at - datetime.now(UTC) > timedelta(seconds=55) for at in expires)
    assert await own_api.extend(*held) == ["extended"] * 2
    assert await own_api.ack(*held) == ["acked"] * 2
    assert await own_host.count("item") == 0


async def test_an_old_lease_takes_back_nothing_of_a_later_item_under_its_id(own_api: Api) -> None:
    """A service-made id is not remembered while the lease under which it was acked runs on."""
    api = own_api
    item_id = await api.enqueue_one("t")
    assert await api.ack(await api.dequeue_one("t", lease_s=10)) == ["acked"]
    [again] = await api.enqueue({"topic": "t", "id": item_id})
    if again["status"] == "duplicate":
        return
    held = await api.dequeue_one("t", lease_s=60)
    await api.host.pass_time(11)
    assert await api.state(item_id) == "leased"
    assert await api.host.count("deferred") == await api.host.count("ready") == 0
    assert await api.dequeue("t", 5) == []
    await api.host.pass_time(60)
    await api.host.pass_time(2)  # its backoff
    assert [item["id"] for item in await api.dequeue("t", 5)] == [item_id], "once, after its own lease"
    assert await api.ack(held) == ["lease_lost"]


@pytest.mark.parametrize("told", [{}, {"ack_topic": "ends"}], ids=["plain", "told"])
async def test_an_old_lease_ends_nothing_of_a_later_item_under_its_id(own_api: Api, told: dict[str, str]) -> None:
    """Nor does it hold on to it, or give it back, also where both leases share a call."""
    api = own_api
    item_id = await api.enqueue_one("t")
    old = await api.dequeue_one("t", lease_s=600)
    assert await api.ack(old) == ["acked"]
    await api.host.pass_time(1)
    [again] = await api.enqueue({"topic": "t", "id": item_id, **told})
    assert again["status"] == "enqueued"
    for verb in (api.ack, api.nack, api.extend):
        assert (await verb(old))[0] in ("already_acked", "lease_lost")
        assert await api.state(item_id) == "ready"
    await api.host.pass_time(1)
    new = await api.dequeue_one("t", lease_s=600)
    assert new["id"] == item_id
    for verb in (api.ack, api.nack, api.extend):
        assert (await verb(old))[0] in ("already_acked", "lease_lost")
        assert await api.state(item_id) == "leased"
    assert (await api.extend(old, new))[1] == "extended"
    ends = [
        {"id": item_id, "lease_token": lease["lease_token"], "output": output}
        for lease, output in ((old, "evil"), (new, "good"))
    ]
    assert (await api.results("ack", {"items": ends}))[1]["status"] == "acked"
    if told:
        [end] = await api.dequeue("ends", 1)
        assert end["payload"]["output"] == "good"
