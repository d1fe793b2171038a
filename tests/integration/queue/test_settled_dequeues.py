"""A dequeue that settles, cut off anywhere: what it settled is settled once, what it leased is nobody's loss."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate._ids import shard_of
from tests.integration.queue.test_hung_up_consumer import Connection, until_waiting, waiters
from tests.integration.queue.test_shard_down import AWAY, element
from tests.support.ports import free_port
from tests.support.queue_host import AT_ONCE, Api, QueueHost, queue_host


def body(done: Any = (), back: Any = (), topic: str = "t", **fields: Any) -> dict[str, Any]:
    """A dequeue of five that acks and nacks these."""
    names = ("id", "lease_token")
    acks, nacks = ([{name: item[name] for name in names} for item in items] for items in (done, back))
    return {"topics": [{"topic": topic, "count": 5}], "settle": {"acks": acks, "nacks": nacks}, **fields}


def statuses(results: dict[str, Any]) -> list[str]:
    return [one["status"] for verb in ("acks", "nacks") for one in results[verb]]


async def leases(api: Api, count: int, topic: str = "t", **fields: Any) -> list[dict[str, Any]]:
    for number in range(count):
        await api.enqueue_one(topic, id=api.new_id(number % 2), **fields)
    return await api.dequeue(topic, count)


class _DiedError(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("point", ["before acks", "after acks", "after nacks", "after the claim"])
async def test_a_process_that_dies_at_any_point_is_asked_again_elsewhere(
    own_api: Api, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    done, back = await leases(own_api, 2, "other", ack_topic="done", backoff=AT_ONCE)
    fresh = await own_api.enqueue_one("t", lease_s=5, backoff=AT_ONCE)
    process = own_api.host.process
    calls = {
        "before acks": (process.acks, "ack", False),
        "after acks": (process.acks, "ack", True),
        "after nacks": (process.nacks, "nack", True),
        "after the claim": (process.dequeues, "dequeue", True),
    }
    part, name, done_first = calls[point]
    original = getattr(part, name)

    async def dies(*args: Any, **options: Any) -> Any:
        if done_first:
            await original(*args, **options)
        raise _DiedError

    wanted = body([done], [back], worker="w")
    with monkeypatch.context() as patch:
        patch.setattr(part, name, dies)
        with pytest.raises(_DiedError):
            await own_api.post("dequeue", wanted)
    async with queue_host(own_api.host.database, own_api.clock) as survivor:
        api = own_api.on(survivor)
        answer = (await api.post("dequeue", wanted)).json()
        assert (
            statuses(answer["results"])
            == {
                "before acks": ["acked", "requeued"],
                "after acks": ["already_acked", "requeued"],
                "after nacks": ["already_acked", "lease_lost"],
                "after the claim": ["already_acked", "lease_lost"],
            }[point]
        )
        assert [told["id"] for told in await api.completions("done")] == [done["id"]]
        found = answer["items"]
        if point == "after the claim":
            assert found == []
            await survivor.pass_time(6)
            found = await api.dequeue("t", 5)
        assert [item["id"] for item in found] == [fresh]
        [again] = await api.dequeue("other", 5)
        assert (again["id"], again["attempt"]) == (back["id"], 2)


async def test_cut_off_at_any_moment_it_leaks_nothing(own_api: Api) -> None:
    """Also between commit and answer: every item is whole, ended once at most, and no connection is lost."""
    for turn in range(40):
        done, back = await leases(own_api, 2, ack_topic="done", backoff=AT_ONCE)
        await own_api.enqueue_one("next", lease_s=5, backoff=AT_ONCE)
        wanted = body([done], [back], "next")
        task = asyncio.create_task(own_api.post("dequeue", wanted))
        for _ in range(turn):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        again = (await own_api.post("dequeue", wanted)).json()
        assert again["results"]["acks"][0]["status"] in ("acked", "already_acked")
        assert again["results"]["nacks"][0]["status"] in ("requeued", "lease_lost")
        assert [told["id"] for told in await own_api.completions("done")] == [done["id"]]
        assert (await own_api.cancel(back["id"])) == ["cancelled"]
        await own_api.completions("done")
        await own_api.host.pass_time(6)
        held = again["items"] if again["items"] else []
        found = (
            held if held and await own_api.state(held[0]["id"]) == "leased" else await own_api.dequeue("next", 5)
        )
        assert len(found) == 1
        await own_api.ack(*found)
    assert await own_api.host.count("item") == 0
    assert (await own_api.host.client.get("/readyz")).status_code == 200


async def test_who_hangs_up_while_it_waits_has_settled(own_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    [done] = await leases(own_api, 1, "other", ack_topic="done")
    gone = Connection(own_api, body([done], wait_s=20))
    await until_waiting(own_api, 1)
    gone.hang_up()
    await asyncio.wait_for(gone.task, 5)

    answer = json.loads(gone.answer)
    assert (answer["items"], statuses(answer["results"])) == ([], ["acked"])
    assert waiters(own_api, "t") == 0
    again = (await own_api.post("dequeue", body([done]))).json()
    assert statuses(again["results"]) == ["already_acked"]
    assert len(await own_api.completions("done")) == 1


async def test_who_hangs_up_while_it_settles_is_leased_nothing(own_api: Api) -> None:
    """Its acks were taken; its items stay with those who are still there."""
    [done] = await leases(own_api, 1, "other")
    fresh = await own_api.enqueue_one("t", max_attempts=1)
    acks = own_api.host.process.acks
    original, connection = acks.ack, Connection(own_api, body([done], wait_s=20))

    async def ack(*args: Any) -> Any:
        found = await original(*args)
        connection.hang_up()
        await asyncio.sleep(0.01)
        return found

    acks.ack = ack  # type: ignore[method-assign]
    await connection.task
    acks.ack = original  # type: ignore[method-assign]

    assert json.loads(connection.answer)["items"] == []
    assert await own_api.state(done["id"]) == "gone"
    leased = await own_api.dequeue_one("t")
    assert (leased["id"], leased["attempt"]) == (fresh, 1)


async def test_a_process_that_drains_settles_and_answers(own_api: Api) -> None:
    """A call that waits is answered as its process leaves; one that comes then is settled, too."""
    own_api.host.dispatch._settings.__dict__["poll_s"] = 3600.0  # it does not come to look by itself
    first, second = await leases(own_api, 2, "other")
    waiting = asyncio.create_task(own_api.post("dequeue", body([first], wait_s=20)))
    line = own_api.host.dispatch.line(own_api.namespace, "t")
    while not (line.calls and line.waiting):  # it has settled, and waits
        assert not waiting.done(), waiting.result().text
        await asyncio.sleep(0.001)
    own_api.host.dispatch.leave()

    answer = (await asyncio.wait_for(waiting, 15)).json()
    assert (answer["items"], statuses(answer["results"])) == ([], ["acked"])
    late = (await own_api.post("dequeue", body([], [second]))).json()
    assert statuses(late["results"]) == ["requeued"]


@pytest.fixture
async def half(own_host: QueueHost) -> AsyncIterator[QueueHost]:
    """A process whose shard 1 is on a server that nobody runs."""
    away = f"0={own_host.database.dsn} 1=postgresql://postgres@127.0.0.1:{free_port()}/none"
    async with queue_host(own_host.database, own_host.clock, shards=away) as made:
        yield made


async def test_elements_of_a_shard_that_is_away_are_refused_and_the_rest_is_settled(
    half: QueueHost, own_api: Api
) -> None:
    leased = await leases(own_api, 4, "other")
    fresh = await own_api.enqueue_one("t", id=own_api.new_id(0))
    near, far = ([item for item in leased if shard_of(item["id"]) == shard] for shard in (0, 1))
    api = own_api.on(half)

    answer = (await api.post("dequeue", body([near[0], far[0]], [far[1], near[1]], wait_s=20))).json()

    acks, nacks = (list(map(element, answer["results"][verb])) for verb in ("acks", "nacks"))
    assert acks == [("acked", None, None), AWAY]
    assert nacks == [AWAY, ("requeued", None, None)]
    assert [item["id"] for item in answer["items"]] == [fresh]
    assert await own_api.state(far[0]["id"]) == "leased"
