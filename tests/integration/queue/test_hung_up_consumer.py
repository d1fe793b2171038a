"""A consumer that hung up: nothing is claimed for it, and what was claimed goes back at once."""

import asyncio
import json
from typing import Any

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
    await asyncio.wait_for(gone.task, 1)
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


async def test_an_at_most_once_item_is_never_handed_back(own_api: Api) -> None:
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
    item_id = await own_api.enqueue_one(
        "t", id=own_api.new_id(0), delivery="at_most_once", lease_s=5, ack_topic="done"
    )
    await connection.task

    assert await own_api.dequeue("t") == []
    await own_api.host.pass_time(6)
    assert await own_api.dequeue("t") == []
    assert [(part["id"], part["outcome"]) for part in await own_api.completions("done")] == [(item_id, "expired")]
