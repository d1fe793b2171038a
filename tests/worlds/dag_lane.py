"""A lane of DAGs: layers of nodes, whose items are worked on as items are, each DAG followed to its end."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tests.worlds.facts import Delivery
from tests.worlds.lanes import LEASES_S, STUCK_SHOWN, Door, Lane, Pace
from tests.worlds.world import World

_TOPICS = ["n", "m"]
_LAYERS = (2, 6, 6, 1)
_COUNT = 60
_WORKERS = 2
_RUNNING_MAX = 200  # DAGs that are not over; more are not made
_OPERATIONS_OF_A_NODE = 3  # it is made, leased and acked


@dataclass(slots=True)
class _Made:
    """One DAG: what its nodes wait for, when an ack of each was first sent, and the items that came of them."""

    upstreams: dict[str, list[str]]
    id: str = ""
    acked_s: dict[str, float] = field(default_factory=dict)
    items: dict[str, str] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)  # of these, what is perhaps acked


class DagLane(Lane):
    """One tenant that makes DAGs, its workers, and who looks how its DAGs end."""

    def __init__(self, world: World, name: str, doors: dict[str, list[Door]], rate: float) -> None:
        super().__init__(world, name, doors)
        self._pace = Pace(rate / _OPERATIONS_OF_A_NODE)
        self._serial = 0
        self._is_through = False
        self._dags: dict[str, _Made] = {}

    def workers(self) -> list[Any]:
        return [self._make(), self._follow(), *(self._work() for _ in range(_WORKERS))]

    @property
    def left(self) -> int:
        return len(self._dags)

    async def stuck(self) -> AsyncIterator[str]:
        for name, made in list(self._dags.items())[:STUCK_SHOWN]:
            shown = await self.call("dag", f"/dags/{made.id}", method="GET")
            yield f"DAG {name} ({made.id}) waits for {sorted(made.left)}, shown as {shown.body}"
            for key in sorted(made.left)[:STUCK_SHOWN]:
                view = await self.call("dag", f"/dags/{made.id}/node", method="GET", key=key)
                known = self.known_of(made.items.get(key, ""))
                yield f"{key}: {known}, first acked at {made.acked_s.get(key)}, shown as {view.body}"

    async def _make(self) -> None:
        while not self.is_ending:
            await self._pace.of(sum(_LAYERS))
            if len(self._dags) <= _RUNNING_MAX:
                await self._make_one()
        self._is_through = True

    async def _make_one(self) -> None:
        self._serial += 1
        name = str(self._serial)
        nodes: list[dict[str, Any]] = []
        above: list[str] = []
        for layer, width in enumerate(_LAYERS):
            keys = [f"n{layer}-{n}" for n in range(width)]
            nodes += [self._node(name, key, self.rng.sample(above, min(len(above), 3))) for key in keys]
            above = keys
        made = _Made({node["key"]: node.get("upstream", []) for node in nodes})
        made.left.update(made.upstreams)
        self._dags[name] = made
        answer = await self.sure("dag", "/dags", {"key": name, "name": name, "nodes": nodes})
        if answer.known != "ok":
            self.fault(f"DAG {name} was refused: {answer}")
            del self._dags[name]
            return
        made.id = answer.body["id"]
        self.operations["node made"] += len(nodes)

    def _node(self, name: str, key: str, upstream: list[str]) -> dict[str, Any]:
        lease_s = self.rng.choice(LEASES_S)
        payload = {"tag": f"{self.namespace}/{name}/{key}", "lease_s": lease_s}
        node = {"key": key, "topic": self.rng.choice(_TOPICS), "payload": payload, "lease_s": lease_s}
        return node | {"upstream": upstream} if upstream else node

    async def _work(self) -> None:
        while not (self.is_ending and self._is_through and not self._dags):
            taken = await self.take(_TOPICS, _COUNT, None)
            for held in taken:
                self._look_at(held)
            await self.handle(taken)

    def _look_at(self, held: Delivery) -> None:
        """A node comes once its upstreams are acked, as one item, and while its DAG runs."""
        made, key = self._of(held)
        if made is None:
            self.fault(f"{held.tag} came, and its DAG had ended: {held}")
            return
        unended = [up for up in made.upstreams[key] if made.acked_s.get(up, held.done) >= held.done]
        if unended:
            self.fault(f"{held.tag} came before anybody had acked {unended}: {held}")
        if made.items.setdefault(key, held.id) != held.id:
            self.fault(f"{held.tag} is two items, {made.items[key]} and {held.id}")

    def _of(self, held: Delivery) -> tuple[_Made | None, str]:
        _, name, key = held.tag.split("/")
        return self._dags.get(name), key

    def acking(self, taken: list[Delivery]) -> None:
        for held in taken:
            made, key = self._of(held)
            if made is not None:
                made.acked_s.setdefault(key, self.world.now_s)

    def acked(self, taken: list[Delivery]) -> None:
        for held in taken:
            made, key = self._of(held)
            if made is not None:
                made.left.discard(key)

    def perhaps_acked(self, taken: list[Delivery]) -> None:
        for held in taken:
            made, key = self._of(held)
            if made is not None:
                made.unsure.add(key)

    async def _follow(self) -> None:
        """Each DAG whose nodes are all acked succeeds."""
        while not (self.is_ending and self._is_through and not self._dags):
            await self.wait()
            for name, made in [
                (name, made) for name, made in self._dags.items() if made.id and made.left <= made.unsure
            ]:
                answer = await self.call("dag", f"/dags/{made.id}", method="GET")
                if answer.known != "ok" or answer.body["state"] == "running":
                    continue
                shown = answer.body
                if (shown["state"], shown["nodes"]["succeeded"]) != ("succeeded", len(made.upstreams)):
                    self.fault(f"DAG {name} ({made.id}) ended as {shown}")
                self.operations["DAG ended"] += 1
                self.over([], list(made.items.values()))
                del self._dags[name]
