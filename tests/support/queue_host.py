"""One queue process inside the test's loop, without its background loops: time and duties move by hand."""

import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
import httpx

from headgate._ids import IdMaker
from services.queue.app import create_app
from services.queue.duties.empty_topics import EmptyTopics
from services.queue.duties.reaper import Reaper
from services.queue.duties.retention import Retention
from services.queue.settings import QueueSettings
from services.queue.store.shard_store import Store
from tests.support.apps import DAG_TOKEN
from tests.support.databases import Database
from tests.support.described import described
from tests.support.kept_connections import keep, look_through
from tests.support.routes import share_routes

# The backoff of items that come back at once.
AT_ONCE = {"base_s": 0}
DAG_HEADERS = {"Authorization": f"Bearer {DAG_TOKEN}"}
_STEPS_MAX = 1_000
_numbers = itertools.count(1)

_CLOCK = """
CREATE TABLE IF NOT EXISTS public.test_clock (ahead_s double precision NOT NULL, frozen timestamptz);
INSERT INTO public.test_clock SELECT 0, NULL WHERE NOT EXISTS (SELECT FROM public.test_clock);
"""
_SHARD_NOW = """
CREATE OR REPLACE FUNCTION {schema}.shard_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
'SELECT coalesce(frozen, clock_timestamp()) + make_interval(secs => ahead_s) FROM public.test_clock';
"""


class ShardClock:
    """The time of every shard of one database."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.ahead_s = 0.0
        self.frozen_s: float | None = None

    @classmethod
    async def install(cls, database: Database) -> "ShardClock":
        """Put a clock that can be moved in place of `shard_now()`."""
        made = await cls.beside(database)
        for address in database.addresses:
            await made.rule(address.schema)
        return made

    @classmethod
    async def beside(cls, database: Database) -> "ShardClock":
        """A clock of a database that has no shard yet."""
        connection = await asyncpg.connect(database.dsn)
        await connection.execute(_CLOCK)
        return cls(connection)

    async def rule(self, schema: str) -> None:
        """Stand in place of a shard's `shard_now()`."""
        await self.connection.execute(_SHARD_NOW.format(schema=schema))

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass at once."""
        self.ahead_s += seconds
        await self.connection.execute("UPDATE public.test_clock SET ahead_s = $1", self.ahead_s)

    async def freeze(self, at_s: float | None = None) -> None:
        """Stand still until `reset`, now or at a time since the epoch; `advance` still moves it."""
        frozen = "UPDATE public.test_clock SET frozen = coalesce(to_timestamp($1), clock_timestamp())"
        self.frozen_s = await self.connection.fetchval(
            f"{frozen} RETURNING extract(epoch FROM frozen)::float8", at_s
        )

    async def reset(self) -> None:
        """Show the machine's time again."""
        if self.ahead_s == 0.0 and self.frozen_s is None:
            return
        self.ahead_s, self.frozen_s = 0.0, None
        await self.connection.execute("UPDATE public.test_clock SET ahead_s = 0, frozen = NULL")

    def now_s(self) -> float:
        """The shards' time, in seconds since the epoch."""
        return (time.time() if self.frozen_s is None else self.frozen_s) + self.ahead_s

    async def close(self) -> None:
        await self.connection.close()


class QueueHost:
    """A queue process: its app behind a client, its parts, and its duties as methods."""

    def __init__(self, database: Database, clock: ShardClock, **settings: Any) -> None:
        given = {
            "shards": database.queue_shards,
            "HEADGATE_DAG_TOKEN": DAG_TOKEN,
            "ownership": "everyone",
            **settings,
        }
        self.settings = QueueSettings(**given)
        self.database = database
        self.clock = clock
        self.app: Any = create_app(self.settings)
        share_routes(self.app.app)
        self.process = self.app.app.state.process
        self.stores: dict[int, Store] = self.process.stores
        self.dispatch = self.process.dispatch
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app),
            base_url="http://localhost",
            timeout=30.0,
            event_hooks={"response": [described("queue")]},
        )
        expiry = self.process.expiry
        self.reapers = [Reaper(store, self.dispatch, expiry, self.settings) for store in self.stores.values()]
        self.retentions = [Retention(store, self.settings) for store in self.stores.values()]

    async def reap(self) -> None:
        """What time does to items, on every shard, until nothing is left to do."""
        for reaper in self.reapers:
            await _exhaust(partial(reap_once, reaper))
            await _exhaust(reaper.expire_step)

    async def retain(self) -> None:
        """Each duty of retention on every shard, once."""
        for retention in self.retentions:
            for step in retention.steps().values():
                await step()

    async def delete_topics(self) -> None:
        """The duty that deletes empty topics, on every shard: marks, waits for what runs, deletes."""
        for store in self.stores.values():
            duty = EmptyTopics(store, self.settings)
            for _ in range(_STEPS_MAX):
                if await duty.step() == 0 and duty.is_idle:
                    break

    async def fold(self) -> None:
        """Fold the counts of every shard."""
        for retention in self.retentions:
            await retention.fold_step()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass and be noticed."""
        await self.clock.advance(seconds)
        await self.reap()

    async def rows(self, sql: str, *args: Any) -> list[Any]:
        """Rows of a query over every queue shard."""
        found = []
        for store in self.stores.values():
            address = store.shard.address
            connection = await look_through(address.dsn, address.schema)
            found += await connection.fetch(sql, *args)
            keep(connection, address.dsn, address.schema)
        return found

    async def counts(self, *tables: str) -> dict[str, int]:
        """How many rows each of these tables holds over all shards, in one round trip."""
        schemas = [store.shard.address.schema for store in self.stores.values()]
        columns = (
            " + ".join(f"(SELECT count(*) FROM {schema}.{table})" for schema in schemas) + f" AS {table}"
            for table in tables
        )
        return dict(await self.clock.connection.fetchrow(f"SELECT {', '.join(columns)}"))

    async def count(self, table: str, where: str = "true") -> int:
        """How many rows a table holds over all shards."""
        return sum(row["n"] for row in await self.rows(f"SELECT count(*) AS n FROM {table} WHERE {where}"))

    async def close(self) -> None:
        await self.client.aclose()
        for store in self.stores.values():
            await store.shard.close()


async def reap_once(reaper: Reaper) -> int:
    """One look at a shard, and one step for delays and leases; how much these did."""
    await reaper.look()
    return await reaper.promote_step() + await reaper.sweep_step()


async def _exhaust(step: Any) -> None:
    for _ in range(_STEPS_MAX):
        if await step() == 0:
            return
    raise AssertionError("a duty never came to its end")


@asynccontextmanager
async def queue_host(
    database: Database, clock: ShardClock | None = None, **settings: Any
) -> AsyncIterator[QueueHost]:
    """A queue process on a database's shards; keywords override its settings."""
    own = None if clock is not None else await ShardClock.install(database)
    host = QueueHost(database, clock or own, **settings)  # type: ignore[arg-type]
    try:
        yield host
    finally:
        await host.close()
        if own is not None:
            await own.close()


class Api:
    """The verbs of one namespace, as a client sends them."""

    def __init__(self, host: QueueHost, namespace: str | None = None) -> None:
        self.host = host
        self.clock = host.clock
        self.namespace = namespace or f"ns{next(_numbers)}"
        self.headers: dict[str, str] = {}
        self._ids = IdMaker(now_ms=lambda: int(self.clock.now_s() * 1000))

    def on(self, host: QueueHost) -> "Api":
        """The same namespace at another process."""
        return Api(host, self.namespace)

    def as_dag_service(self, namespace: str | None = None) -> "Api":
        """The same namespace (or another) with the DAG service's own token."""
        api = Api(self.host, namespace or self.namespace)
        api.headers = DAG_HEADERS
        return api

    def new_id(self, shard: int = 0, age_s: float = 0.0) -> str:
        """An id such as a caller makes, by the shard's time."""
        if not age_s:
            return self._ids.make(shard)[0]
        return IdMaker(now_ms=lambda: int((self.clock.now_s() - age_s) * 1000)).make(shard)[0]

    async def post(self, verb: str, body: Any) -> httpx.Response:
        """POST to a verb of the namespace."""
        path = f"/v1/namespaces/{self.namespace}/{verb}"
        return await self.host.client.post(path, json=body, headers=self.headers)

    async def get(self, path: str, **query: Any) -> httpx.Response:
        """GET below the namespace."""
        path = f"/v1/namespaces/{self.namespace}/{path}".rstrip("/")
        return await self.host.client.get(path, params=query, headers=self.headers)

    async def results(self, verb: str, body: Any) -> list[dict[str, Any]]:
        """The results of a batch that is taken."""
        answer = await self.post(verb, body)
        assert answer.status_code == (201 if verb == "enqueue" else 200), answer.text
        found: list[dict[str, Any]] = answer.json()["results"]
        return found

    async def enqueue(self, *items: dict[str, Any]) -> list[dict[str, Any]]:
        return await self.results("enqueue", {"items": items})

    async def enqueue_one(self, topic: str, **fields: Any) -> str:
        """Enqueue one item that is taken; its id."""
        [result] = await self.enqueue({"topic": topic, **fields})
        assert result["status"] == "enqueued", result
        return str(result["id"])

    async def dequeue(self, topic: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        answer = await self.post("dequeue", {"topics": [{"topic": topic, "count": count}], **fields})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    async def dequeue_one(self, topic: str, **fields: Any) -> dict[str, Any]:
        """Dequeue the one item that must be there."""
        [leased] = await self.dequeue(topic, 2, **fields)
        return leased

    async def ack(self, *leased: dict[str, Any], **fields: Any) -> list[str]:
        return await self._settle("ack", leased, fields)

    async def nack(self, *leased: dict[str, Any], **fields: Any) -> list[str]:
        return await self._settle("nack", leased, fields)

    async def extend(self, *leased: dict[str, Any], **fields: Any) -> list[str]:
        return await self._settle("extend", leased, fields)

    async def _settle(self, verb: str, leased: Any, fields: dict[str, Any]) -> list[str]:
        items = [{"id": item["id"], "lease_token": item["lease_token"], **fields} for item in leased]
        return [result["status"] for result in await self.results(verb, {"items": items})]

    async def revive(self, *ids: str, **fields: Any) -> list[str]:
        items = [{"id": item_id, **fields} for item_id in ids]
        return [result["status"] for result in await self.results("revive", {"items": items})]

    async def cancel(self, *ids: str) -> list[str]:
        return [result["status"] for result in await self.results("cancel", {"ids": ids})]

    async def item(self, item_id: str) -> dict[str, Any]:
        """An item that is there."""
        answer = await self.get(f"items/{item_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def state(self, item_id: str) -> str:
        """An item's state, or `gone`."""
        answer = await self.get(f"items/{item_id}")
        assert answer.status_code in (200, 404), answer.text
        return str(answer.json()["state"]) if answer.status_code == 200 else "gone"

    async def topic(self, topic: str) -> dict[str, Any]:
        """One topic's counts; empty when it is not active."""
        answer = await self.get("topics", limit=1000)
        assert answer.status_code == 200, answer.text
        return next((row for row in answer.json()["items"] if row["topic"] == topic), {})

    async def completions(self, topic: str) -> list[dict[str, Any]]:
        """Take every completion item of an ack topic; their payloads."""
        leased = await self.dequeue(topic, 100)
        if leased:
            assert set(await self.ack(*leased)) == {"acked"}
        return [item["payload"] for item in leased]
