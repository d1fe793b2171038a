"""Concurrent calls share a flush: a row that the database refuses must not fail its neighbours."""

import asyncio
import itertools
import json
from typing import Any

import pytest

from services.queue.leases import ack_flushes
from shared.errors import ShardUnavailable
from shared.ids import new_id, shard_of
from tests.support.flushes import together
from tests.support.queue_host import AT_ONCE, Api, QueueHost

JSON_TEXTS = ("payload", "metadata", "ack_context")
TRAP = """
CREATE FUNCTION {schema}.trap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (CASE WHEN TG_OP = 'DELETE' THEN OLD.payload ELSE NEW.payload END) = '"poison"' THEN
        RAISE EXCEPTION 'poison' USING ERRCODE = '22000';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER trap BEFORE {when} ON {schema}.item FOR EACH ROW EXECUTE FUNCTION {schema}.trap();
"""


async def set_trap(host: QueueHost, when: str) -> None:
    """Let the database refuse every item with the payload "poison"."""
    for store in host.stores.values():
        await host.clock.connection.execute(TRAP.format(schema=store.shard.address.schema, when=when))


def in_one_flush(host: QueueHost) -> None:
    """Hold every shard's next flush until the calls of this turn of the loop have joined it."""
    enqueues, acks = host.process.enqueues, host.process.ack_flushes
    for batcher in (*enqueues.general.flushes.values(), *enqueues.named.flushes.values(), *acks.flushes.values()):
        original = batcher._run

        async def held(lane: Any, original: Any = original) -> None:
            await asyncio.sleep(0.02)
            await original(lane)

        batcher._run = held


@pytest.mark.parametrize("has_id", [False, True])
@pytest.mark.parametrize("position", [0, 7, 15])
async def test_a_poisoned_enqueue_fails_alone(own_api: Api, position: int, has_id: bool) -> None:
    await set_trap(own_api.host, "INSERT")
    in_one_flush(own_api.host)
    payloads: list[object] = list(range(16))
    payloads[position] = "poison"

    def of_one_shard() -> dict[str, Any]:
        return {"id": own_api.new_id(0)} if has_id else {"affinity": "x"}

    answers = await asyncio.gather(
        *(own_api.post("enqueue", {"items": [{"topic": "t", "payload": p} | of_one_shard()]}) for p in payloads)
    )

    assert [answer.status_code for answer in answers].count(201) == 15
    assert answers[position].status_code == 422
    assert answers[position].json()["outcome"] == "none"
    taken = await own_api.dequeue("t", 100)
    assert sorted(item["payload"] for item in taken) == sorted(p for p in payloads if p != "poison")
    assert await own_api.host.count("item") == 15


async def test_items_of_several_kinds_in_one_flush_keep_what_is_their_own(own_api: Api) -> None:
    """What a flush says once for many items is said of no other; a separator within a text separates nothing."""
    in_one_flush(own_api.host)
    [store, *_] = own_api.host.stores.values()
    kinds: list[dict[str, Any]] = [
        {"topic": topic, "priority": priority} | more
        for topic in ("a", "b")
        for priority in (0, 1)
        for more in (
            {},
            {"ack_topic": "ends"},
            {"ack_topic": "ends", "ack_context": True},
            {"metadata": {"n": 0}},
            {"max_attempts": 3, "disabled": True},
            {"id": True},
            {"id": True, "ttl_s": 50, "disabled": True},
        )
    ]
    items = []
    for n, kind in enumerate(kinds * 3):
        item = kind | {"payload": f"{n}\x1e\n\u2028", "affinity": "x"}
        if "ack_context" in kind:
            item["ack_context"] = {"at": f"\x1e{n}"}
        if "id" in kind:
            item["id"] = new_id(store.number)
            del item["affinity"]
        items.append(item)
    calls = [items[i : i + 7] for i in range(0, len(items), 7)]
    answers = await asyncio.gather(*(own_api.post("enqueue", {"items": call}) for call in calls))

    results = [result for answer in answers for result in answer.json()["results"]]
    rows = await own_api.host.rows(
        """SELECT i.*, t.name AS topic, p.reason FROM item i JOIN topic t USING (topic_id)
        LEFT JOIN parked p ON p.id = i.id"""
    )
    found = {str(row["id"]): row for row in rows}
    assert len(results) == len(items) == len(found)
    for item, result in zip(items, results, strict=True):
        row = found[result["id"]]
        texts = [None if row[name] is None else json.loads(row[name]) for name in JSON_TEXTS]
        assert result["status"] == "enqueued" and texts == [item.get(name) for name in JSON_TEXTS]
        assert [row["topic"], row["priority"]] == [item["topic"], item["priority"]]
        assert (row["max_attempts"], row["ttl_s"]) == (item.get("max_attempts", 0), item.get("ttl_s"))
        assert (row["ack_topic_id"] is None) == ("ack_topic" not in item)
        assert row["remembered"] == ("id" in item)
        assert row["reason"] == ("disabled" if item.get("disabled") else None)


async def test_a_poisoned_ack_fails_alone(own_api: Api) -> None:
    payloads = [*range(9), "poison"]
    for payload in payloads:
        await own_api.enqueue_one("t", payload=payload, affinity="x")
    leased = await own_api.dequeue("t", 100)
    assert len(leased) == 10
    await set_trap(own_api.host, "DELETE")
    in_one_flush(own_api.host)
    answers = await asyncio.gather(
        *(
            own_api.post("ack", {"items": [{"id": item["id"], "lease_token": item["lease_token"]}]})
            for item in leased
        )
    )

    failed = [item["payload"] for item, answer in zip(leased, answers, strict=True) if answer.status_code != 200]
    assert failed == ["poison"]
    assert await own_api.host.count("item") == 1
    assert await own_api.state(next(item["id"] for item in leased if item["payload"] == "poison")) == "leased"


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("by", ["the same call", "the same namespace", "another namespace"])
async def test_the_output_of_an_ack_that_is_lost_is_nobodys(own_api: Api, by: str, place: int) -> None:
    """It comes in the flush of the holder's ack, before it or behind it, and names the same item."""
    other = Api(own_api.host)
    item_id = await own_api.enqueue_one("t", ack_topic="done")
    await other.enqueue_one("t", id=new_id(shard_of(item_id)))
    leased = await own_api.dequeue_one("t")
    good = {"id": item_id, "lease_token": leased["lease_token"], "output": "GOOD"}
    lost = {"id": item_id, "lease_token": "01234567-89ab-4cde-8f01-23456789abcd", "output": "EVIL"}
    if by == "the same call":
        items = [good]
        items.insert(place, lost)
        calls = [own_api.results("ack", {"items": items})]
    else:
        calls = [own_api.results("ack", {"items": [good]})]
        stranger = own_api if by == "the same namespace" else other
        calls.insert(place, stranger.results("ack", {"items": [lost]}))

    answers = await together(own_api.host, calls)

    statuses = [result["status"] for results in answers for result in results]
    assert statuses.pop(1 - place) == "acked" and statuses[0] in ("lease_lost", "not_found")
    [told] = await own_api.completions("done")
    assert told["output"] == "GOOD"


async def test_of_an_ack_that_is_repeated_the_first_says_what_it_gave(own_api: Api) -> None:
    item_id = await own_api.enqueue_one("t", ack_topic="done")
    ack = {"id": item_id, "lease_token": (await own_api.dequeue_one("t"))["lease_token"]}

    results = await own_api.results("ack", {"items": [ack, ack | {"output": "late"}]})

    assert [result["status"] for result in results] == ["acked", "already_acked"]
    [told] = await own_api.completions("done")
    assert "output" not in told


async def test_an_id_that_two_namespaces_enqueue_in_one_flush_is_the_firsts(own_api: Api) -> None:
    """Also where the second's item is of a kind that is written before the first's."""
    other = Api(own_api.host)
    item_id, third = own_api.new_id(0), own_api.new_id(0)
    for api in (own_api, other):  # names that are not known yet are asked for before the flush
        await api.enqueue_one("t", id=own_api.new_id(0), disabled=True)
        await api.enqueue_one("done", id=own_api.new_id(0), disabled=True)
    calls = [
        other.enqueue({"topic": "t", "id": third, "payload": "third", "ack_topic": "done"}),
        own_api.enqueue({"topic": "t", "id": item_id, "payload": "mine", "max_attempts": 9}),
        other.enqueue({"topic": "t", "id": item_id, "payload": "theirs", "ack_topic": "done"}),
    ]

    answers = await together(own_api.host, calls)

    [[ahead], [mine], [theirs]] = answers
    assert (ahead["status"], mine["status"], theirs["status"]) == ("enqueued", "enqueued", "refused")
    assert theirs["code"] == "id_unavailable"
    assert (await own_api.item(item_id))["payload"] == "mine"
    assert [item["payload"] for item in await other.dequeue("t", 5)] == ["third"]


async def test_a_token_that_two_namespaces_name_in_one_flush(own_api: Api) -> None:
    """Whoever learned a token changes nothing for its holder, whose acks are judged one by one."""
    other = Api(own_api.host)
    made = await own_api.enqueue(*({"topic": "t", "payload": n, "affinity": "x"} for n in range(4)))
    await other.enqueue_one("t", id=new_id(shard_of(made[0]["id"])))
    first, second, *rest = [(item["id"], item["lease_token"]) for item in await own_api.dequeue("t", 4)]
    guessed = (second[0], "01234567-89ab-4cde-8f01-23456789abcd")
    calls = [
        (own_api, [first, second, guessed, first], ["acked", "acked", "lease_lost", "already_acked"]),
        (other, [first, rest[0]], ["not_found", "not_found"]),
        (own_api, rest, ["acked", "acked"]),
    ]
    in_one_flush(own_api.host)

    answers = await asyncio.gather(
        *(
            api.results("ack", {"items": [{"id": item_id, "lease_token": token} for item_id, token in pairs]})
            for api, pairs, _ in calls
        )
    )

    assert [[result["status"] for result in results] for results in answers] == [told for _, _, told in calls]
    assert await own_api.host.count("item") == 1


def failing(store: Any, call: str, nth: int) -> None:
    """The shard does not answer one call, the nth of a kind."""
    original, calls = getattr(store, call), itertools.count(1)

    async def made(*args: Any, **named: Any) -> Any:
        if next(calls) == nth:
            raise ShardUnavailable("the shard did not answer", outcome="unknown")
        return await original(*args, **named)

    setattr(store, call, made)


@pytest.mark.parametrize(("look", "outcome"), [("known", "none"), ("held_under", "unknown")])
async def test_acks_of_a_flush_are_told_though_its_look_at_others_fails(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, look: str, outcome: str
) -> None:
    """Two calls share a flush: all of one is acked; of the other an ack came too late, which is looked into."""
    made = await own_api.enqueue(*({"topic": "t", "payload": n, "affinity": "x"} for n in range(3)))
    first, second, third = await own_api.dequeue("t", 3)
    late = {"id": third["id"], "lease_token": "01234567-89ab-4cde-8f01-23456789abcd"}
    in_one_flush(own_api.host)
    monkeypatch.setattr(ack_flushes, "held_under", ack_flushes.held_under)  # put back after the test
    failing(ack_flushes if look == "held_under" else own_api.host.stores[shard_of(made[0]["id"])], look, 1)

    calls = [[first], [second, late]]
    answers = await asyncio.gather(
        *(
            own_api.results(
                "ack", {"items": [{key: item[key] for key in ("id", "lease_token")} for item in items]}
            )
            for items in calls
        )
    )

    assert [result["status"] for results in answers for result in results] == ["acked", "acked", "refused"]
    assert (answers[1][1]["code"], answers[1][1]["outcome"]) == ("shard_unavailable", outcome)
    assert await own_api.state(third["id"]) == "leased"
    assert await own_api.ack(first, second, third) == ["already_acked", "already_acked", "acked"]


async def test_acks_of_one_namespace_are_told_though_those_of_another_fail(own_api: Api) -> None:
    other = Api(own_api.host)
    made = await own_api.enqueue(*({"topic": "t", "payload": n, "affinity": "x"} for n in range(2)))
    await other.enqueue_one("t", id=new_id(shard_of(made[0]["id"])))
    first, second = await own_api.dequeue("t", 2)
    in_one_flush(own_api.host)
    failing(own_api.host.stores[shard_of(first["id"])], "ack", 2)

    mine, theirs = await asyncio.gather(
        own_api.results(
            "ack", {"items": [{key: item[key] for key in ("id", "lease_token")} for item in (first, second)]}
        ),
        other.results("ack", {"items": [{"id": first["id"], "lease_token": first["lease_token"]}]}),
    )

    told = [(result["status"], result.get("outcome")) for result in (*mine, *theirs)]
    is_acked = await own_api.state(first["id"]) == "gone"
    assert told == [
        *([("acked", None)] * 2 if is_acked else [("refused", "unknown")] * 2),
        ("not_found", None) if not is_acked else ("refused", "unknown"),
    ]


async def test_one_bad_row_does_not_stop_the_sweep(own_api: Api) -> None:
    """Every other lease is taken back though one item cannot be (its row cannot be written)."""
    for payload in ("a", "poison", "b", "c"):
        await own_api.enqueue_one("t", payload=payload, lease_s=5, affinity="x", backoff=AT_ONCE)
    for _ in range(4):
        await own_api.dequeue("t")
    await set_trap(own_api.host, "UPDATE")
    await own_api.clock.advance(10)
    await own_api.host.reap()

    assert [item["payload"] for item in await own_api.dequeue("t", 10)] == ["a", "b", "c"]
    await own_api.clock.advance(100)
    await own_api.host.reap()
    assert len(await own_api.dequeue("t", 10)) == 3


async def test_one_bad_row_does_not_stop_the_end_of_ttls(own_api: Api) -> None:
    ids = {p: await own_api.enqueue_one("t", payload=p, ttl_s=5, affinity="x") for p in ("a", "poison", "b")}
    await set_trap(own_api.host, "DELETE")
    await own_api.clock.advance(10)
    for reaper in own_api.host.reapers:
        await reaper.expire_step()

    assert {p: await own_api.state(i) for p, i in ids.items()} == {"a": "gone", "poison": "ready", "b": "gone"}


async def test_a_caller_that_left_does_not_undo_what_others_share(own_api: Api) -> None:
    in_one_flush(own_api.host)
    tasks = [
        asyncio.create_task(own_api.post("enqueue", {"items": [{"topic": "t", "payload": n, "affinity": "x"}]}))
        for n in range(6)
    ]
    await asyncio.sleep(0.005)
    tasks[0].cancel()
    tasks[3].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)

    kept = [n for n, answer in enumerate(found) if not isinstance(answer, BaseException)]
    assert kept == [1, 2, 4, 5]
    assert {item["payload"] for item in await own_api.dequeue("t", 10)} >= set(kept)
