"""A run of a workflow on a queue that folds: its turns as a worker sends them, its items as it takes them."""

from typing import Any

from tests.support.folding import Folding

WORKFLOWS = "/v1/namespaces/default/workflows"
DAGS = "/v1/namespaces/default/dags"


def call(topic: str, number: int, after: int, **spec: Any) -> dict[str, Any]:
    """The command of one task."""
    body = {"topic": topic, "payload": number, **spec}
    return {"kind": "item", "key": f"{topic}#{number}", "after": after, "fingerprint": "0" * 16, "spec": body}


class FoldedRun:
    """One run of a type of its own, whose tasks are of topic `work`."""

    def __init__(self, folding: Folding, type: str, topic: str = "work") -> None:
        self.folding = folding
        self.http = folding.dags.http
        self.queue = folding.queue
        self.type, self.topic = type, topic
        self.dag = ""
        self.turns = self.calls = 0
        self.decider: dict[str, Any] = {}

    async def start(self) -> None:
        made = await self.http.post(WORKFLOWS, json={"type": self.type, "id": self.type})
        assert made.status_code == 201, made.text
        self.dag = made.json()["run"]
        await self.folding.settle()

    async def take_decider(self) -> bool:
        """Lease the decider's item, where one is delivered."""
        found = await self.queue.dequeue(f"wf/{self.type}", 10)
        if found:
            [self.decider] = found
        return bool(found)

    async def history(self) -> list[dict[str, Any]]:
        answer = await self.http.get(f"{WORKFLOWS}/{self.type}/history")
        assert answer.status_code == 200, answer.text
        return list(answer.json()["events"])

    async def turn(
        self, calls: int = 0, end: Any = None, last: int | None = None, wait_s: float = 0.0
    ) -> dict[str, Any]:
        """A turn that has seen all there is (or up to `last`), and asks for so many tasks."""
        if last is None:
            last = (await self.history())[-1]["event"]
        numbers = range(self.calls + 1, self.calls + calls + 1)
        commands = [call(self.topic, number, last) for number in numbers]
        if end is not None:
            over = {"state": "succeeded", "output": end}
            commands.append({"kind": "end", "key": "", "after": last, "fingerprint": "1" * 16, "spec": over})
        secret, generation = self.decider["payload"]["secret"], self.decider["dag"]["generation"]
        body = {"generation": generation, "secret": secret, "turn": self.turns + 1, "last": last, "seen": last}
        body |= {"commands": commands, "wait_s": wait_s}
        answer = await self.http.post(f"{DAGS}/{self.dag}/turn", json=body)
        assert answer.status_code == 200, answer.text
        self.turns += 1
        self.calls += calls
        return dict(answer.json())

    async def begin(self, calls: int = 1) -> None:
        """Start it, and have its first turn ask for tasks; it is parked, and its decider's item still leased."""
        await self.start()
        assert await self.take_decider()
        assert (await self.turn(calls))["parked"]

    async def verb(self, name: str, body: Any = None) -> int:
        return int((await self.http.post(f"{WORKFLOWS}/{self.type}/{name}", json=body or {})).status_code)

    async def standing(self) -> dict[str, Any]:
        query = """
            SELECT run.state, run.last_event, run.last_told, run.seen, node.state AS decider, node.generation
            FROM run JOIN node ON node.no = run.dag_no << 22 WHERE run.dag_id = $1
        """
        [row] = await self.folding.dags.rows(query, self.dag)
        return dict(row)

    async def finish(self) -> None:
        """End it, whatever it waits for."""
        assert await self.verb("terminate") == 202
        await self.folding.cancel(self.dag)
