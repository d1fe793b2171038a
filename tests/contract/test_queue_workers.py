"""Who takes items: learned from named dequeues, extends and reports, and listed until their lease has ended."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.queue.duties.fairness_keys import FairnessKeys
from services.queue.duties.notices import Notices
from tests.support.queue_host import Api, QueueHost, queue_host
from tests.support.traffic import traffic

MAIL: dict[str, Any] = {"topic": "mail", "slots": 8, "running": 3}


class Watch:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s


@pytest.fixture
async def watch(host: QueueHost) -> AsyncIterator[Watch]:
    """The clock by which the host sees workers."""
    known = host.process.workers
    before, made = known._clock, Watch()
    known._clock = known.news._clock = made
    known._known.clear()
    yield made
    known._clock = known.news._clock = before
    known._known.clear()


async def report(api: Api, name: str, **said: Any) -> list[str]:
    answer = await api.post("workers", {"name": name, **said})
    assert answer.status_code == 200, answer.text
    found: list[str] = answer.json()["cancelled"]
    return found


async def page(api: Api, **query: Any) -> dict[str, Any]:
    answer = await api.get("workers", **query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def names(api: Api, **query: Any) -> list[str]:
    return [worker["name"] for worker in (await page(api, **query))["items"]]


async def test_a_worker_is_what_it_reports(api: Api, watch: Watch) -> None:
    await api.clock.freeze(2_000_000_000)
    await report(api, "w-1", host="h", version="a1b2", topics=[MAIL, {"topic": "x", "slots": 1}], age_s=60)
    await api.host.process.workers.step()
    [found] = (await page(api))["items"]
    assert found == {
        "name": "w-1",
        "state": "alive",
        "host": "h",
        "version": "a1b2",
        "topics": [MAIL, {"topic": "x", "slots": 1, "running": 0}],
        "slots": 9,
        "running": 3,
        "since": "2033-05-18T03:32:20Z",
        "last_seen": "2033-05-18T03:33:20Z",
    }


async def test_a_worker_that_names_itself_in_dequeues_is_known_by_its_topics(api: Api, watch: Watch) -> None:
    await api.enqueue_one("b", lease_s=100)
    await api.dequeue("a", worker="curl-1")
    await api.dequeue("b", worker="curl-1")
    await api.dequeue("b")
    await api.host.process.workers.step()
    [found] = (await page(api))["items"]
    assert (found["name"], found["topics"]) == ("curl-1", [{"topic": "a"}, {"topic": "b"}])
    assert (found["host"], found["slots"], found["running"]) == (None, None, None)


async def test_an_extension_keeps_a_worker_that_asks_for_nothing(api: Api, watch: Watch) -> None:
    await api.enqueue_one("t")
    leased = await api.dequeue_one("t", worker="curl-1", lease_s=100)
    for _ in range(3):
        watch.now_s += 90
        await api.clock.advance(90)
        assert await api.extend(leased, lease_s=100) == ["extended"]
        await api.host.process.workers.step()
    assert await names(api) == ["curl-1"]
    await api.clock.advance(101)
    assert await names(api) == [] and await names(api, gone=True) == ["curl-1"]


async def test_one_that_was_killed_is_gone_within_its_lease_and_one_that_leaves_at_once(
    api: Api, watch: Watch
) -> None:
    for name in ("killed", "left"):
        await report(api, name, lease_s=10, topics=[MAIL])
        await api.dequeue("mail", worker=name, wait_s=0)
    await api.host.process.workers.step()
    await report(api, "left", leaving=True)
    await api.dequeue("mail", worker="left", wait_s=0)  # that was on its way
    await api.host.process.workers.step()
    assert await names(api) == ["killed"]
    await api.clock.advance(10)
    assert await names(api) == [] and await names(api, gone=True) == ["killed", "left"]
    await api.clock.advance(api.host.settings.worker_retention_s)
    await api.host.retain()
    assert await names(api, gone=True) == []


async def test_a_row_is_written_every_few_seconds_at_most_and_all_in_one_statement(
    own_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = own_api.host.process.workers
    known._clock = watch = Watch()
    written = 0
    for _ in range(20):
        watch.now_s += 0.5
        for name in ("a", "b", "c"):
            await own_api.dequeue("t", worker=name, wait_s=0)
        with traffic(monkeypatch) as seen:
            await known.step()
        assert seen.statements <= len(own_api.host.stores)
        written += seen.statements
    assert written <= 3 * len(own_api.host.stores)


async def test_a_consumer_costs_no_statement_more_with_a_name(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for worker in ({}, {}, {"worker": "w"}):  # the first looks up names
        await api.enqueue_one("t", id=api.new_id(0))
        with traffic(monkeypatch) as seen:
            leased = await api.dequeue_one("t", **worker)
            await api.extend(leased)
            await api.ack(leased)
        counts.append(seen.statements)
    assert counts[1] == counts[2]
    assert await api.host.count("worker", f"namespace = '{api.namespace}'") == 0, "not by the calls"


async def test_another_tenant_sees_and_changes_nothing(api: Api, watch: Watch) -> None:
    other = Api(api.host)
    await report(api, "w", host="mine")
    await report(other, "w", host="its")
    await api.host.process.workers.step()
    assert [worker["host"] for worker in (await page(api))["items"]] == ["mine"]
    assert [worker["host"] for worker in (await page(other))["items"]] == ["its"]


async def test_workers_are_listed_page_by_page(api: Api, watch: Watch) -> None:
    wanted = [f"w-{n:02}" for n in range(25)]
    for name in wanted:
        await report(api, name)
    await api.host.process.workers.step()
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await page(api, limit=4, **cursor)
        found += [worker["name"] for worker in answer["items"]]
        if answer["next_cursor"] is None:
            break
        cursor = {"cursor": answer["next_cursor"]}
    assert found == wanted
    assert (await api.get("workers", cursor="nonsense")).status_code == 422


async def test_rows_of_a_namespace_and_what_is_seen_are_bounded(own_api: Api) -> None:
    settings = own_api.host.settings.__dict__
    settings["workers_max"], settings["workers_seen_max"] = 3, 60
    known = own_api.host.process.workers
    for n in range(100):
        await report(own_api, f"w-{n}")
    assert sum(map(len, known._known.values())) == 60
    await known.step()
    rows = await own_api.host.rows("SELECT count(*) AS n FROM worker")
    assert all(row["n"] <= 3 for row in rows) and sum(row["n"] for row in rows) > 0


async def test_a_namespace_that_names_thousands_keeps_no_other_from_being_seen(own_api: Api) -> None:
    own_api.host.settings.__dict__["workers_seen_max"] = 6
    for n in range(20):
        await report(own_api, f"w-{n}")
    quiet = Api(own_api.host)
    await report(quiet, "late", topics=[MAIL])
    await quiet.dequeue("mail", worker="named", wait_s=0)
    for n in range(20, 40):
        await report(own_api, f"w-{n}")
    await own_api.host.process.workers.step()
    assert await names(quiet) == ["late", "named"]
    assert len(await names(own_api)) == 4


async def test_a_report_of_a_worker_for_whom_there_is_no_room_is_held_until_something_is_cancelled(
    own_api: Api,
) -> None:
    """Else whoever asks again after each answer would ask all the time, once anything was cancelled."""
    own_api.host.settings.__dict__["workers_seen_max"] = 1
    await report(own_api, "known")
    first, second = [await own_api.enqueue_one("t") for _ in range(2)]
    await own_api.dequeue("t", 2)
    assert await report(own_api, "more") == []
    await own_api.cancel(first)
    news = own_api.host.process.workers.news
    asking = asyncio.create_task(report(own_api, "more", wait_s=30))
    async with asyncio.timeout(20):
        while not news._waiting:
            await asyncio.sleep(0)
        await own_api.cancel(second)
        assert await asking == [second]


async def test_two_processes_that_see_one_worker_agree(own_api: Api) -> None:
    """The report wins over what others learned, and a late write of an older report over nothing."""
    first = own_api.host.process.workers
    await report(own_api, "w", topics=[MAIL], host="new")
    await first.step()
    async with queue_host(own_api.host.database, own_api.host.clock) as other:
        api = own_api.on(other)
        await api.dequeue("else", worker="w", wait_s=0)
        await other.process.workers.step()
        [found] = (await page(own_api))["items"]
        assert (found["host"], found["topics"]) == ("new", [MAIL])
        await report(api, "w", host="newer")
        [[known]] = [ours.values() for ours in other.process.workers._known.values()]
        known.seen_s -= 30
        await other.process.workers.step()
        assert [worker["host"] for worker in (await page(own_api))["items"]] == ["new"]


async def test_calls_to_a_process_that_is_not_reported_to_any_more_do_not_undo_reports(own_api: Api) -> None:
    """A worker's reports go to another process once a connection is lost, while its dequeues stay."""
    first = own_api.host.process.workers
    first._clock = clock = Watch()
    await report(own_api, "w", topics=[MAIL], lease_s=5)
    await first.step()
    async with queue_host(own_api.host.database, own_api.host.clock) as other:
        await report(own_api.on(other), "w", topics=[{**MAIL, "running": 7}], lease_s=60)
        await other.process.workers.step()
        clock.now_s += 30
        await own_api.dequeue("mail", worker="w", wait_s=0)
        await first.step()
        [found] = (await page(own_api))["items"]
        assert (found["state"], found["running"]) == ("alive", 7)


@pytest.mark.parametrize(
    ("said", "pointer"),
    [
        ({}, "/name"),
        ({"name": ""}, "/name"),
        ({"name": "x" * 201}, "/name"),
        ({"name": "\0"}, "/name"),
        ({"name": "w", "lease_s": 0}, "/lease_s"),
        ({"name": "w", "age_s": -1}, "/age_s"),
        ({"name": "w", "wait_s": 31}, "/wait_s"),
        ({"name": "w", "topics": [{"topic": "a b", "slots": 1}]}, "/topics/0/topic"),
        ({"name": "w", "topics": [{"topic": "a", "slots": 0}]}, "/topics/0/slots"),
        ({"name": "w", "topics": [{"topic": f"t{n}", "slots": 1} for n in range(101)]}, "/topics"),
        ({"name": "w", "pid": 1}, "/pid"),
    ],
)
async def test_bad_reports_are_refused(api: Api, said: dict[str, Any], pointer: str) -> None:
    answer = await api.post("workers", said)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer


# What was cancelled


async def test_a_waiting_report_is_told_of_a_cancel_at_once(api: Api, watch: Watch) -> None:
    item = await api.enqueue_one("t")
    waiting_item = await api.enqueue_one("u")
    await api.dequeue_one("t", worker="w")
    waiting = asyncio.create_task(report(api, "w", wait_s=30))
    await _held(api)
    assert await api.cancel(item, waiting_item) == ["cancelled", "cancelled"]
    assert await waiting == [item], "what nobody held is no news"
    assert await report(api, "w") == [], "once"


async def test_a_cancel_at_another_process_is_told_with_the_next_look(own_api: Api) -> None:
    async with queue_host(own_api.host.database, own_api.host.clock) as other:
        api = own_api.on(other)
        mine = own_api.host.process
        lanes = FairnessKeys(own_api.host.stores, own_api.host.dispatch, own_api.host.settings)
        notices = Notices(own_api.host.stores, mine.quotas, mine.topics, lanes, mine.workers.news, mine.gates)
        item = await own_api.enqueue_one("t")
        await own_api.dequeue_one("t", worker="w")
        waiting = asyncio.create_task(report(own_api, "w", wait_s=30))
        await _held(own_api)
        await api.cancel(item)
        assert not waiting.done()
        await notices.step()
        assert await waiting == [item]
        await notices.step()
        assert await report(own_api, "w") == [], "it is read again for a while, and told once"


async def test_what_was_cancelled_between_two_reports_is_told_by_the_second(api: Api, watch: Watch) -> None:
    item = await api.enqueue_one("t")
    await api.dequeue_one("t", worker="w")
    assert await report(api, "w") == []
    await api.cancel(item)
    assert await report(api, "w", wait_s=30) == [item]


async def test_another_tenant_is_told_nothing(api: Api, watch: Watch) -> None:
    other = Api(api.host)
    item = await api.enqueue_one("t")
    await api.dequeue_one("t")
    await report(other, "w")
    await report(api, "w")
    await api.cancel(item)
    assert await report(other, "w") == []
    assert await report(api, "w") == [item]


async def test_news_is_bounded_and_not_kept_where_nobody_asks(api: Api, watch: Watch) -> None:
    news = api.host.process.workers.news
    news.hear(api.namespace, ["x"])
    assert api.namespace not in news._heard, "nobody has asked"
    await report(api, "w")
    news.hear(api.namespace, map(str, range(api.host.settings.cancel_news_max + 10)))
    assert len(news._heard[api.namespace]) == api.host.settings.cancel_news_max
    assert len(await report(api, "w")) == 1000
    watch.now_s += 20
    news.hear(api.namespace, ["y"])
    assert list(news._heard[api.namespace]) == ["y"], "old news is none"
    watch.now_s += 60
    news.forget()
    assert not news._heard and not news.is_heeded


async def test_what_waits_is_answered_when_the_process_leaves(own_api: Api) -> None:
    waiting = asyncio.create_task(report(own_api, "w", wait_s=30))
    await _held(own_api)
    own_api.host.process.workers.news.leave()
    assert await waiting == []


async def test_rows_of_cancels_go_after_a_minute(api: Api) -> None:
    item = await api.enqueue_one("t")
    await api.dequeue_one("t")
    await api.cancel(item)
    assert await api.host.count("cancelled_lease", f"item_id = '{item}'") == 1
    await api.clock.advance(61)
    await api.host.retain()
    assert await api.host.count("cancelled_lease", f"item_id = '{item}'") == 0


async def _held(api: Api) -> None:
    """A report of the namespace is waiting."""
    async with asyncio.timeout(10):
        while api.namespace not in api.host.process.workers.news._waiting:
            await asyncio.sleep(0)
