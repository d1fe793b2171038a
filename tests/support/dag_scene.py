"""One DAG, two slowed-down services that change it, and an ordinary one that sets the scene and carries on."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from services.dag.model import Ending, Ref
from shared.postgres.connections import Transaction
from shared.postgres.sql import Statement
from tests.support.bounded import steps
from tests.support.dag_world import BASE, DagWorld, specs
from tests.support.databases import Database
from tests.support.interleave import Actor, dag_actor_on, explore

_COMPLETE_HERE = Statement(
    "complete_here",
    (
        "dag_ids",
        "node_keys",
        "generations",
        "item_ids",
        "attempts",
        "outputs",
        "starts",
        "workers",
        "failures",
        "queue_shard",
        "folds",
    ),
    "SELECT o_taken::text[] AS taken, o_released::text[] AS released, o_made AS made "
    "FROM complete_here($1, $2, $3, $4::uuid[], $5, $6, $7, $8, $9, $10, $11)",
)

Verb = Callable[[Actor], Awaitable[Any]]
# The nodes' states after two answers, and the state that the DAG comes to when all is acked then.
Outcome = tuple[dict[str, str], str]
Allowed = dict[tuple[Any, Any], Outcome]


@dataclass
class Scene:
    """What races share; verbs take the actor that does them and give what may go together with the other's."""

    world: DagWorld
    actors: list[Actor]
    watcher: Any
    dag: str = ""

    async def clear(self) -> None:
        """Nothing is on its way, as after a run that was not carried on."""
        self.world.queue.forget()
        await self.watcher.execute("DELETE FROM outbox; DELETE FROM adding; DELETE FROM spread; DELETE FROM scan")
        await self.watcher.execute("DELETE FROM reopening; DELETE FROM reach")
        await self.watcher.execute("UPDATE dag SET deadline_at = NULL WHERE deadline_at IS NOT NULL")

    async def rows_of(self, key: str) -> list[Any]:
        """A node's number and its item's id."""
        query = "SELECT n.no, n.item_id::text FROM node n JOIN dag ON dag.no = dag_no WHERE id = $1 AND n.key = $2"
        return await self.world.rows(query, self.dag, key)

    async def post(self, actor: Actor, path: str, body: Any = None) -> int:
        response = await actor.process.http.post(f"{BASE}/{self.dag}/{path}", json=body or {})
        return int(response.status_code)

    def posts(self, path: str, body: Any = None) -> Verb:
        """A call with one body."""
        return lambda actor: self.post(actor, path, body)

    def adds(self, nodes: Any) -> Verb:
        return self.posts("nodes", {"nodes": specs(nodes)})

    def links(self, up: str, down: str) -> Verb:
        return self.posts("dependencies", {"dependencies": [{"upstream": up, "downstream": down}]})

    async def drain(self, actor: Actor) -> None:
        """What the queue has to tell of ended items is applied."""
        await actor.process.loops.results[0].drain()

    def ends(self, key: str, state: Any = "succeeded", generation: int = 1) -> Verb:
        """One node's completion is applied, whatever the queue says of others."""

        async def end(actor: Actor) -> int:
            ending = Ending(self.dag, key, generation, state, 1, None, None, None)
            return int(await actor.process.duties.completer.apply(actor.process.shard, [ending]))

        return end

    def folds(self, key: str, failure: str | None = None) -> Verb:
        """The ack of a node's item, that is delivered, or its last failure (an error as JSON text), goes on with
        its DAG if it can: `folded`, or `told` by a completion item."""

        async def fold(actor: Actor) -> str:
            queue = self.world.queue
            item = queue.item_of(key)
            assert item.state == "ready", f"{key} is {item.state}"
            context = item.body["ack_context"]
            given = {"dag_ids": [context["dag"]], "node_keys": [key], "generations": [item.generation]}
            given |= {"item_ids": [item.body["id"]], "attempts": [1], "outputs": [None]}
            given |= {"starts": [None], "workers": [None], "failures": [failure], "queue_shard": 0, "folds": 3}

            async def work(tx: Transaction) -> tuple[list[str], list[str]] | None:
                [row] = await tx.fetch(_COMPLETE_HERE, **given) or [None]
                if row is None or not row["taken"]:
                    return None
                opened = row["released"] or []
                assert all(queue.items[item_id].state == "disabled" for item_id in opened)
                return list(opened), list(row["made"] or ())

            found = await actor.process.shard.pool.transaction(work)
            if failure is None:
                queue.ack(key, told=found is None)
            else:
                queue.die(key, told=found is None)
            if found is None:
                return "told"
            await queue.revive("default", [(item_id, None) for item_id in found[0]])
            await queue.enqueue("default", found[1])
            return "folded"

        return fold

    async def walk(self, actor: Actor) -> None:
        """One step of the DAG's walks."""
        await actor.process.loops.walker.step(actor.process.shard)

    async def sweep(self, actor: Actor) -> None:
        """Stopped adds are driven on, and deadlines looked at."""
        await actor.process.loops.sweeper.step(actor.process.shard)

    def confirms(self, key: str, generation: int) -> Verb:
        """The queue's word that a generation's item is cancelled comes in."""

        async def confirm(actor: Actor) -> None:
            [[no, _]] = await self.rows_of(key)
            await actor.process.duties.completer.confirm_cancelled(actor.process.shard, [Ref(no, generation)])

        return confirm

    async def carry_on(self) -> str:
        """Everything that is delivered is acked, until nothing is; the state that the DAG comes to."""
        queue = self.world.queue
        for _ in steps():
            if not (ready := queue.ready()):
                break
            for item in ready:
                queue.ack(item.node)
            await self.world.sweep()
        return str((await self.world.dag(self.dag))["state"])


@asynccontextmanager
async def scene_on(database: Database, world: DagWorld) -> AsyncIterator[Scene]:
    """A scene on the first shard of a database."""
    watcher = await world.connect()
    async with dag_actor_on(database, world.queue) as a, dag_actor_on(database, world.queue) as b:
        yield Scene(world, [a, b], watcher)
    await watcher.close()


async def race(
    scene: Scene,
    nodes: Any,
    verbs: tuple[Verb, Verb],
    allowed: Allowed,
    *,
    also: Sequence[Outcome] = (),
    before: Callable[[], Awaitable[Any]] | None = None,
    acked: Sequence[str] = (),
    died: Sequence[str] = (),
    just_before: Callable[[], Awaitable[Any]] | None = None,
    then: Callable[[], Awaitable[Any]] | None = None,
    interruptions_max: int | None = None,
    **more: Any,
) -> None:
    """Every order of two verbs ends in one of the allowed pairs of answers, with the nodes as that says, and with
    a DAG that comes to its end.

    `before` changes the DAG that `nodes` and `more` make; then the items of `acked` and `died` end, which nobody
    was told yet, and `just_before` does what is not to be settled. `then` is done after the look at the nodes.
    Each of the allowed outcomes is to be seen, and so is each of `also`, which any of the answers may have.
    """
    seen: set[tuple[Any, Any]] = set()
    found: list[Outcome] = []

    async def begin() -> list[Any]:
        await scene.clear()
        scene.dag = await scene.world.create(nodes, **more)
        await scene.world.settle()
        if before is not None:
            await before()
            await scene.world.settle()
        for key in acked:
            scene.world.queue.ack(key)
        for key in died:
            scene.world.queue.die(key)
        if just_before is not None:
            await just_before()
        return [lambda: verbs[0](scene.actors[0]), lambda: verbs[1](scene.actors[1])]

    async def check(results: list[Any]) -> None:
        pair = (results[0], results[1])
        assert pair in allowed, "these answers do not go together"
        seen.add(pair)
        await scene.world.sweep()
        states = await scene.world.states(scene.dag)
        outcomes = [outcome for outcome in (allowed[pair], *also) if outcome[0] == states]
        assert outcomes, f"the nodes are {states}"
        found.extend(outcomes)
        await scene.world.audit(scene.dag)
        if then is not None:
            await then()
            await scene.world.settle()
        assert await scene.carry_on() == outcomes[0][1]
        queue = scene.world.queue
        assert len(set(queue.delivered)) == len(queue.delivered), "an item was delivered twice"
        assert not queue.items, "an item is left in the queue"

    orders = await explore(scene.watcher, scene.actors, begin, check, interruptions_max=interruptions_max)
    assert orders > 1
    assert seen == set(allowed), f"only {seen} in {orders} orders: the race was never run"
    assert all(outcome in found for outcome in (*allowed.values(), *also)), f"only {found} in {orders} orders"
