"""A DAG service on real shards and a fake queue, whose loops run only when the test says so."""

from datetime import UTC, datetime
from typing import Any

import httpx
from fastapi import FastAPI

from audit import dags
from audit.reading import Reader, Scope
from services.dag.api.parts import Orchestrator
from services.dag.app import Loops, create_app
from services.dag.settings import DagSettings
from shared.shards.shard_map import Shard
from tests.support import dag_log
from tests.support.bounded import steps
from tests.support.databases import Database
from tests.support.described import described
from tests.support.kept_connections import keep, keep_connections, look_through
from tests.support.queue_fake import FakeQueue
from tests.support.routes import share_routes

BASE = "/v1/namespaces/default/dags"


class DagWorld:
    """One DAG service; `call` speaks HTTP with it, `settle` lets everything that is due happen."""

    def __init__(self, database: Database, queue: FakeQueue, **settings: Any) -> None:
        self.database = database
        self.queue = queue
        self.settings = DagSettings(**{"shards": database.dag_shards, "ownership": "everyone", **settings})
        self.app: FastAPI = create_app(self.settings, queue=queue)
        share_routes(self.app)
        self.duties: Orchestrator = self.app.state.orchestrator
        self.loops: Loops = self.app.state.loops
        for shard in self.duties.context.shards:
            if shard.address.dsn == database.dsn:  # not what a test has put between
                keep_connections(shard)
        self._looking: dict[str, Any] = {}
        # As over a socket: hot verbs go the short way in.
        self.http = self.client(self.app.state.hot)

    @property
    def shard(self) -> Shard:
        """The first shard."""
        return next(iter(self.duties.context.shards))

    def client(self, app: Any) -> httpx.AsyncClient:
        """A client of the service, or of what its app is behind."""
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app, raise_app_exceptions=False),
            base_url="http://localhost",
            event_hooks={"response": [described("dag")]},
        )

    def go_by_routes(self) -> None:
        """From now on go the framework's way in."""
        self.http = self.client(self.app)

    async def call(self, method: str, path: str, body: Any = None, *, expect: int | None = None) -> Any:
        """A call below the DAGs of the default namespace; its body, its status as expected."""
        response = await self.http.request(method, BASE + path, json=body)
        if expect is not None:
            assert response.status_code == expect, f"{response.status_code}: {response.text[:500]}"
        assert response.status_code != 500, response.text
        return response.json()

    async def create(self, nodes: Any = None, **more: Any) -> str:
        """A new DAG's id. `nodes`: `{"b": ["a"], ...}` (key to upstreams) or request nodes."""
        body = dict(more)
        if nodes is not None:
            body["nodes"] = specs(nodes)
        made = await self.call("POST", "", body, expect=201)
        return str(made["id"])

    async def add(self, dag: str, nodes: Any, expect: int = 201, **more: Any) -> Any:
        return await self.call("POST", f"/{dag}/nodes", {"nodes": specs(nodes), **more}, expect=expect)

    async def link(self, dag: str, *edges: tuple[str, str], expect: int = 201) -> Any:
        body = {"dependencies": [{"upstream": up, "downstream": down} for up, down in edges]}
        return await self.call("POST", f"/{dag}/dependencies", body, expect=expect)

    async def verb(self, dag: str, verb: str, body: Any = None, expect: int = 200) -> Any:
        return await self.call("POST", f"/{dag}/{verb}", body or {}, expect=expect)

    async def dag(self, dag: str) -> Any:
        return await self.call("GET", f"/{dag}", expect=200)

    async def states(self, dag: str) -> dict[str, str]:
        """Every node's state."""
        page = await self.call("GET", f"/{dag}/nodes?limit=1000", expect=200)
        assert page["next_cursor"] is None
        return {node["key"]: node["state"] for node in page["items"]}

    async def node(self, dag: str, key: str) -> Any:
        response = await self.http.get(f"{BASE}/{dag}/node", params={"key": key})
        assert response.status_code == 200, response.text
        return response.json()

    async def blocked_by(self, dag: str, key: str) -> list[dict[str, Any]]:
        """What a node waits for; each since some time."""
        found = (await self.node(dag, key))["blocked_by"]
        assert all(datetime.fromisoformat(block.pop("since")) <= datetime.now(UTC) for block in found)
        return list(found)

    async def settle(self) -> None:
        """Outbox sent, completions applied, walks walked, until nothing is left to do at once."""
        for _ in steps():
            await self.loops.relay.idle()
            done = 0
            for shard in self.duties.context.shards:
                before = len(self.queue.calls)
                await self.loops.results[shard.number].drain()
                done += len(self.queue.calls) - before - 1
                done += await self.loops.walker.step(shard)
            if done == 0:
                await self.loops.relay.idle()
                return

    async def sweep(self) -> None:
        """What was left undone, as if its time had come."""
        for shard in self.duties.context.shards:
            connection = await self.looking_at(shard)
            await connection.execute("UPDATE outbox SET due_at = shard_now() - interval '1 s'")
            await connection.execute("UPDATE adding SET started_at = started_at - interval '1 h'")
            await self.loops.relay.step(shard)
            await self.loops.sweeper.step(shard)
        await self.settle()
        for shard in self.duties.context.shards:
            if await self.loops.timers.step(shard):
                await self.settle()

    async def connect(self) -> Any:
        """A plain connection to the first shard, for the caller alone."""
        return await self.database.connect(self.shard.address.schema)

    async def looking_at(self, shard: Shard) -> Any:
        """The plain connection to a shard that everybody here looks through."""
        schema = shard.address.schema
        if schema not in self._looking:
            self._looking[schema] = await look_through(self.database.dsn, schema)
        return self._looking[schema]

    async def rows(self, sql: str, *args: Any) -> list[Any]:
        """What a query finds on all shards."""
        found: list[Any] = []
        for shard in self.duties.context.shards:
            connection = await self.looking_at(shard)
            found += await connection.fetch(sql, *args)
        return found

    async def audit(self, dag: str | None = None) -> None:
        """Counters agree with the facts (D12), nothing is left undecided, and the log leads to it."""
        for shard in self.duties.context.shards:
            connection = await self.looking_at(shard)
            assert await dags.check(Reader(connection, shard.address), Scope(dag=dag)) == []
        await self._audit_log(dag)

    async def _audit_log(self, dag: str | None) -> None:
        """Each DAG's log leads to how its nodes stand, and tells of nothing that may not happen."""
        for shard in self.duties.context.shards:
            await dag_log.check(await self.looking_at(shard), dag)

    async def close(self) -> None:
        await self.loops.relay.close()
        await self.http.aclose()
        for schema, connection in self._looking.items():
            keep(connection, self.database.dsn, schema)
        await self.duties.context.shards.close()


def specs(nodes: Any) -> list[dict[str, Any]]:
    """`{"b": ["a"]}` as request nodes on the topic `work`."""
    if isinstance(nodes, list):
        return [{"topic": "work", **node} for node in nodes]
    return [{"key": key, "topic": "work"} | ({"upstream": ups} if ups else {}) for key, ups in nodes.items()]
