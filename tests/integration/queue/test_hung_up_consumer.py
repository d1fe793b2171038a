"""A consumer that hung up: nothing is claimed for it, and what was claimed goes back at once."""

import asyncio
import json
from typing import Any

import pytest

from shared.http.fast_http import Exchange
from tests.support.apps import queue_service
from tests.support.databases import Database
from tests.support.queue_host import Api


class Connection:
    """One HTTP request below the client library, so that the test decides when the peer hangs up."""

    def __init__(self, api: Api, body: dict[str, Any]) -> None:
        self._api = api
        self._body = json.dumps(body).encode()
        self._gone = asyncio.Event()
        self._sent = False
        self.status = 0
        self.answer = b""
        self.task = asyncio.create_task(self._run())

    def hang_up(self) -> None:
        self._gone.set()

    async def _run(self) -> None:
        path = f"/v1/namespaces/{self._api.namespace}/dequeue"
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "http_version": "1.1",
            "scheme": "http",
        }
        await self._api.host.app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.answer += message.get("body", b"")


def waiters(api: Api, topic: str) -> int:
    line = api.host.dispatch._lines.get((api.namespace, topic))
    return 0 if line is None else len(line.waiting)


async def until_waiting(api: Api, count: int) -> None:
    while waiters(api, "t") != count:
        await asyncio.sleep(0.001)


def spy_on_claims(api: Api) -> list[str]:
    """The ids of all claims from here on."""
    claims: list[str] = []
    for store in api.host.stores.values():
        original = store.claim

        async def claim(wanted: Any, _original: Any = original, **options: Any) -> Any:
            claims.extend(key.id for one in wanted for key in one.keys)
            return await _original(wanted, **options)

        store.claim = claim  # type: ignore[method-assign]
    return claims


BODY = {"topics": [{"topic": "t", "count": 5}], "wait_s": 20}


async def test_a_waiter_that_hung_up_is_not_claimed_for(own_api: Api) -> None:
    gone = Connection(own_api, BODY)
    await until_waiting(own_api, 1)
    gone.hang_up()
    await asyncio.wait_for(gone.task, 15)
    await own_api.enqueue_one("t")

    assert json.loads(gone.answer) == {"items": []}
    leased = await own_api.dequeue_one("t")
    assert leased["attempt"] == 1
    assert await own_api.host.count("lease") == 1


async def test_the_next_waiter_gets_what_woke_one_that_hung_up(own_api: Api) -> None:
    gone, patient = Connection(own_api, BODY), None
    await until_waiting(own_api, 1)
    patient = Connection(own_api, BODY)
    await until_waiting(own_api, 2)
    gone.hang_up()
    claims = spy_on_claims(own_api)
    item_id = await own_api.enqueue_one("t")
    await asyncio.wait_for(asyncio.gather(gone.task, patient.task), 2)

    assert json.loads(gone.answer)["items"] == []
    [leased] = json.loads(patient.answer)["items"]
    assert (leased["id"], leased["attempt"]) == (item_id, 1)
    assert claims == [item_id]


async def hung_up_during_the_claim(api: Api) -> Connection:
    """A consumer whose peer goes away while the claim is under way."""
    connection = Connection(api, BODY)
    await until_waiting(api, 1)
    store = api.host.stores[0]
    original = store.claim

    async def claim(*args: Any, **options: Any) -> Any:
        rows = await original(*args, **options)
        connection.hang_up()
        await asyncio.sleep(0.01)
        return rows

    for each in api.host.stores.values():
        each.claim = claim if each is store else each.claim  # type: ignore[method-assign]
    await api.enqueue_one("t", id=api.new_id(0), delivery="at_least_once")
    await connection.task
    store.claim = original  # type: ignore[method-assign]
    return connection


async def test_what_was_claimed_for_a_peer_that_left_is_handed_back_at_once(own_api: Api) -> None:
    connection = await hung_up_during_the_claim(own_api)

    assert json.loads(connection.answer)["items"] == []
    leased = await own_api.dequeue_one("t")
    assert leased["attempt"] == 1  # it cost nothing


async def test_an_at_most_once_item_that_nobody_was_told_of_is_handed_back(own_api: Api) -> None:
    connection = Connection(own_api, BODY)
    await until_waiting(own_api, 1)
    store = own_api.host.stores[0]
    original = store.claim

    async def claim(*args: Any, **options: Any) -> Any:
        rows = await original(*args, **options)
        connection.hang_up()
        await asyncio.sleep(0.01)
        return rows

    store.claim = claim  # type: ignore[method-assign]
    item_id = await own_api.enqueue_one("t", id=own_api.new_id(0), delivery="at_most_once")
    await connection.task
    store.claim = original  # type: ignore[method-assign]

    assert json.loads(connection.answer)["items"] == []
    leased = await own_api.dequeue_one("t")
    assert (leased["id"], leased["attempt"]) == (item_id, 1)


@pytest.mark.parametrize("wait_s", [0, 20])
async def test_a_client_that_hung_up_costs_its_items_no_attempt(own_api: Api, wait_s: float) -> None:
    """Also one that would not have waited, and an item that has only one attempt."""
    await own_api.enqueue_one("t", id=own_api.new_id(0), max_attempts=1)
    store = own_api.host.stores[0]
    original = store.claim
    connection = Connection(own_api, {**BODY, "wait_s": wait_s})

    async def claim(*args: Any, **options: Any) -> Any:
        rows = await original(*args, **options)
        connection.hang_up()
        await asyncio.sleep(0.01)
        return rows

    store.claim = claim  # type: ignore[method-assign]
    await connection.task
    store.claim = original  # type: ignore[method-assign]

    assert json.loads(connection.answer)["items"] == []
    assert (await own_api.dequeue_one("t"))["attempt"] == 1


@pytest.mark.parametrize("wait_s", [0, 20])
async def test_a_peer_that_closed_its_connection_has_its_items_handed_back(
    database: Database, redis_url: str, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    """Through the server and the short way below ASGI; the claim ends after the connection."""
    calls: list[asyncio.Future[None]] = []
    original_gone = Exchange.gone

    def gone(exchange: Exchange) -> asyncio.Future[None]:
        calls.append(original_gone(exchange))
        return calls[-1]

    monkeypatch.setattr(Exchange, "gone", gone)
    async with queue_service(database, redis_url) as service:
        path = "/v1/namespaces/default"
        items = [{"topic": "t", "max_attempts": 1} for _ in range(5)]
        await service.client.post(f"{path}/enqueue", json={"items": items})
        claimed, closed = asyncio.Event(), asyncio.Event()
        for store in service.app.state.process.stores.values():
            original = store.claim

            async def claim(*args: Any, _original: Any = original, **options: Any) -> Any:
                rows = await _original(*args, **options)
                claimed.set()
                await closed.wait()
                return rows

            store.claim = claim
        body = json.dumps({"topics": [{"topic": "t", "count": 5}], "wait_s": wait_s})
        _, writer = await asyncio.open_connection("127.0.0.1", service.client.base_url.port)
        head = f"POST {path}/dequeue HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        async with asyncio.timeout(60):
            await claimed.wait()
            writer.transport.abort()
            await calls[0]
            closed.set()
            found: list[Any] = []
            while len(found) < 5:
                answer = await service.client.post(
                    f"{path}/dequeue", json={"topics": [{"topic": "t", "count": 5}], "wait_s": 1}
                )
                found += answer.json()["items"]
    assert {item["attempt"] for item in found} == {1}
