"""Event streams: every change once, in the order of the commits, from any place on, to the DAG's end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from services.dag.read.event_streams import Stream
from shared.errors import ShardUnavailable
from tests.support.bounded import steps
from tests.support.dag_world import BASE, DagWorld
from tests.support.locks import locked


def events_of(text: str) -> list[dict[str, Any]]:
    """The events in a stream's text; each frame's id and kind agree with its data."""
    found = []
    for frame in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
        if "data" in fields:
            data = json.loads(fields["data"])
            assert (fields["id"], fields["event"]) == (data["id"], data["kind"])
            found.append(data)
    return found


def short(events: list[dict[str, Any]]) -> list[str]:
    return [f"{event.get('key', 'DAG')} {event['state']}" for event in events]


async def replay(world: DagWorld, dag: str, query: str = "", **headers: str) -> list[dict[str, Any]]:
    """The whole stream of a DAG that has ended."""
    answer = await world.http.get(f"{BASE}/{dag}/events{query}", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_of(answer.text)


@asynccontextmanager
async def streaming(world: DagWorld, dag: str, after: int = 0) -> AsyncIterator[AsyncIterator[bytes]]:
    """A live stream, a page at a time."""
    stream = await world.duties.streams.open("default", dag, after)
    assert isinstance(stream, Stream)
    frames = stream.frames()
    assert (await anext(frames)).startswith(b"retry: ")
    try:
        yield frames
    finally:
        await frames.aclose()  # type: ignore[attr-defined]
        stream.close()


async def following(frames: AsyncIterator[bytes]) -> list[dict[str, Any]]:
    async with asyncio.timeout(60):
        return events_of((await anext(frames)).decode())


async def finished(world: DagWorld, nodes: Any, **more: Any) -> str:
    """A DAG that has run to its end."""
    dag = await world.create(nodes, **more)
    await world.settle()
    for _ in steps():
        if not (ready := world.queue.deliverable()):
            break
        for key in ready:
            world.queue.ack(key)
        await world.settle()
    return dag


async def test_every_change_is_told_once_and_in_order(world: DagWorld) -> None:
    dag = await finished(world, {"a": [], "b": ["a"]})
    events = await replay(world, dag)
    assert short(events) == [
        "DAG running",
        "a released",
        "b blocked",
        "a succeeded",
        "b released",
        "b succeeded",
        "DAG succeeded",
    ]
    assert [event["id"] for event in events] == [str(i) for i in range(1, 8)]
    assert (await world.dag(dag))["last_event_id"] == "7"
    assert {event["dag"] for event in events} == {dag}
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    assert events[0] | {"at": ""} == {
        "id": "1",
        "kind": "dag",
        "dag": dag,
        "at": "",
        "state": "running",
        "open": False,
        "held": False,
        "paused": False,
    }
    assert events[1] | {"at": ""} == {
        "id": "2",
        "kind": "node",
        "dag": dag,
        "at": "",
        "key": "a",
        "state": "released",
        "generation": 1,
    }


async def test_the_stream_of_a_dag_that_ends_again_in_the_step_that_begins_it_again_ends(world: DagWorld) -> None:
    dag = await world.create([{"key": "a", "external": ["x"]}, {"key": "b", "upstream": ["a"]}])
    await world.verb(dag, "skip", {"nodes": ["a", "b"]})
    await world.settle()
    assert (await world.dag(dag))["state"] == "succeeded"

    retried = await world.verb(dag, "retry", {"nodes": ["b"]})
    await world.settle()

    assert retried["state"] == "succeeded", "b is skipped again at once, as a is"
    async with asyncio.timeout(20):
        events = await replay(world, dag)
    assert short(events)[-3:] == ["DAG succeeded", "b skipped", "DAG succeeded"]
    assert [event["id"] for event in events] == [str(i) for i in range(1, len(events) + 1)]


async def test_resuming_from_any_event_gives_exactly_the_rest(world: DagWorld) -> None:
    dag = await finished(world, {"a": [], "b": ["a"], "c": ["a", "b"]})
    events = await replay(world, dag)
    for i in range(len(events)):
        assert await replay(world, dag, **{"Last-Event-ID": str(i)}) == events[i:]
        assert await replay(world, dag, f"?after={i}") == events[i:]
    assert await replay(world, dag, "?after=1", **{"Last-Event-ID": "4"}) == events[4:]
    for headers in ({"Last-Event-ID": str(len(events))}, {}):
        over = await world.http.get(f"{BASE}/{dag}/events?after={len(events)}", headers=headers)
        assert (over.status_code, over.content) == (204, b"")


@pytest.mark.parametrize(
    "bad", ["?after=99", "?after=-1", "?after=x", "?after=1e3", "?after=٣", "?after=" + "9" * 19]
)
async def test_a_place_that_is_none_is_refused(world: DagWorld, bad: str) -> None:
    dag = await finished(world, {"a": []})
    answer = await world.call("GET", f"/{dag}/events?after={bad}", expect=422)
    assert answer["errors"][0]["pointer"] == "/after"


async def test_more_changes_than_a_row_or_a_page_holds_come_whole(world: DagWorld) -> None:
    dag = await finished(world, {"r": [], **{f"n{i}": ["r"] for i in range(999)}})
    events = await replay(world, dag)
    assert [int(event["id"]) for event in events] == list(range(1, len(events) + 1))
    assert len(events) == 2 + 3 * 1000 - 1, "`r` was released as it was made"
    assert len({(event.get("key"), event["state"]) for event in events}) == len(events)
    longest = await world.rows("SELECT max(length(nodes)) AS chars FROM change")
    assert longest[0]["chars"] < 2000
    assert await replay(world, dag, "?after=1234") == events[1234:]


async def test_a_live_stream_tells_what_is_committed_and_ends_with_the_dag(world: DagWorld) -> None:
    dag = await world.create({"a": []}, open=True)
    await world.settle()
    async with streaming(world, dag) as frames:
        assert short(await following(frames)) == ["DAG running", "a released"]
        waiting = asyncio.ensure_future(following(frames))
        world.queue.ack("a")
        await world.settle()
        assert short(await waiting) == ["a succeeded"]
        await world.verb(dag, "pause")
        event = (await following(frames))[0]
        assert (event["kind"], event["state"], event["paused"]) == ("dag", "running", True)
        await world.verb(dag, "close")
        assert short(await following(frames)) == ["DAG succeeded"]
        with pytest.raises(StopAsyncIteration):
            await anext(frames)
    assert world.duties.streams.open_now == len(world.duties.context.watches) == 0


async def test_what_another_process_commits_is_seen_by_the_look_at_the_heads(world: DagWorld) -> None:
    other = DagWorld(world.database, world.queue)
    dag = await world.create({"a": []})
    await world.settle()
    async with streaming(world, dag, 2) as frames:
        waiting = asyncio.ensure_future(following(frames))
        world.queue.ack("a")
        await other.settle()
        while not waiting.done():
            await world.duties.context.watches.step(world.shard)
            await asyncio.sleep(0)
        assert short(await waiting) == ["a succeeded", "DAG succeeded"]
    await other.close()


async def test_changes_of_transactions_that_wait_for_one_another_are_numbered_as_they_commit(
    world: DagWorld,
) -> None:
    """A number is taken under the lock: a reader who has seen one has missed none before it."""
    dag = await world.create({"a": [], "b": []}, open=True)
    await world.settle()
    async with locked(world, dag) as until_waiting:
        pausing = asyncio.create_task(world.verb(dag, "pause"))
        await until_waiting(1)
        skipping = asyncio.create_task(world.add(dag, {"c": []}))
        await until_waiting(2)
        assert (await world.dag(dag))["last_event_id"] == "3"
    await asyncio.gather(pausing, skipping)
    async with streaming(world, dag, 3) as frames:
        assert short(await following(frames)) == ["DAG running", "c blocked"]


async def test_a_retry_is_told_as_a_new_generation(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    world.queue.die("a")
    await world.settle()
    before = await replay(world, dag)
    assert short(before)[-3:] == ["a failed", "b skipped", "DAG failed"]
    await world.verb(dag, "retry")
    await world.settle()
    world.queue.ack("a")
    await world.settle()
    world.queue.ack("b")
    await world.settle()
    after = (await replay(world, dag))[len(before) :]
    assert short(after) == [
        "DAG running",
        "b blocked",
        "a released",
        "a succeeded",
        "b released",
        "b succeeded",
        "DAG succeeded",
    ]
    assert {event["generation"] for event in after if event["kind"] == "node"} == {2}


async def test_a_stream_opened_between_an_end_and_a_retry_goes_on(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    await world.settle()
    world.queue.die("a")
    await world.settle()
    async with streaming(world, dag) as frames:
        await world.verb(dag, "retry")
        assert short(await following(frames))[-2:] == ["DAG running", "a released"]


async def test_a_cancel_is_told_from_its_beginning_to_its_end(world: DagWorld) -> None:
    dag = await world.create({"a": [], "b": ["a"]})
    await world.settle()
    async with streaming(world, dag, 3) as frames:
        await world.verb(dag, "cancel", expect=202)
        await world.settle()
        told = await following(frames)
        while told[-1]["state"] != "cancelled" or told[-1]["kind"] != "dag":
            told += await following(frames)
    assert short(told)[0] == "DAG cancelling"
    assert sorted(short(told)[1:-1]) == ["a cancelled", "b cancelled"]


async def test_streams_are_as_many_as_allowed_and_a_reader_that_leaves_makes_room(world: DagWorld) -> None:
    world.settings.__dict__["event_streams_max"] = 2
    dag = await world.create({"a": []}, open=True)
    async with streaming(world, dag), streaming(world, dag):
        refused = await world.http.get(f"{BASE}/{dag}/events")
        assert (refused.status_code, refused.json()["code"]) == (503, "too_many_streams")
        assert refused.headers["retry-after"]
    async with streaming(world, dag):
        assert world.duties.streams.open_now == 1
    # Hung up while it waits, over HTTP: its place is free again.
    gone = asyncio.Event()
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 3:
            gone.set()

    url = httpx.URL(f"http://localhost{BASE}/{dag}/events")
    scope = {
        "type": "http",
        "method": "GET",
        "path": url.path,
        "raw_path": url.raw_path,
        "query_string": b"",
        "headers": [],
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }
    async with asyncio.timeout(60):
        await world.app(scope, receive, send)  # type: ignore[arg-type]
    assert b"running" in sent[2]["body"]
    assert world.duties.streams.open_now == len(world.duties.context.watches) == 0


async def test_a_quiet_stream_is_kept_alive_and_ended_after_its_time(world: DagWorld) -> None:
    world.settings.__dict__["event_keepalive_s"] = 0.0
    dag = await world.create({"a": []}, open=True)
    async with streaming(world, dag, 2) as frames:
        assert await anext(frames) == b":\n\n"
        world.settings.__dict__["event_stream_s_max"] = 0.0
    async with streaming(world, dag, 2) as frames:
        with pytest.raises(StopAsyncIteration):
            await anext(frames)


async def test_a_shard_that_goes_away_ends_the_stream_without_an_error(
    world: DagWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = await world.create({"a": []}, open=True)
    async with streaming(world, dag) as frames:
        assert await following(frames)

        async def fail(*_args: Any) -> Any:
            raise ShardUnavailable("away")

        monkeypatch.setattr("services.dag.store.reads.changes_after", fail)
        await world.verb(dag, "pause")
        with pytest.raises(StopAsyncIteration):
            await anext(frames)


async def test_a_shutdown_ends_waits_and_streams_at_once(world: DagWorld) -> None:
    dag = await world.create({"a": []}, open=True)
    waiting = asyncio.create_task(world.call("GET", f"/{dag}/wait?timeout_s=30"))
    streaming_all = asyncio.create_task(world.http.get(f"{BASE}/{dag}/events"))
    async with asyncio.timeout(60):
        while len(world.duties.context.watches) < 2:
            await asyncio.sleep(0)
        await world.app.state.leave()
        refused = await waiting
        assert (refused["code"], refused["outcome"]) == ("shutting_down", "none")
        assert short(events_of((await streaming_all).text)) == ["DAG running", "a released"]
    late = await world.http.get(f"{BASE}/{dag}/events")
    assert (late.status_code, late.json()["code"]) == (503, "shutting_down")
    assert (await world.call("GET", f"/{dag}/wait?timeout_s=0"))["state"] == "running"


async def test_another_tenants_stream_is_not_there(world: DagWorld) -> None:
    dag = await world.create({"a": []})
    answer = await world.http.get(f"/v1/namespaces/other/dags/{dag}/events")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_stream_ends_once_its_reader_is_not_welcome_any_more(world: DagWorld) -> None:
    """Its token was revoked, or has expired: not only the next call is to notice."""
    dag = await world.create({"a": []}, open=True)
    tokens = [True]
    stream = await world.duties.streams.open("default", dag, 0, lambda: tokens[0])
    assert stream is not None
    frames = stream.frames()
    assert b"retry" in await anext(frames)
    assert b"event: " in await anext(frames)
    tokens[0] = False
    await world.add(dag, {"b": []})
    assert [frame async for frame in frames] == []
    stream.close()
