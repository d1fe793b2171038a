"""One world: rounds of verbs at once, then the way to the end, then the judgement."""

import asyncio
import itertools
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from traceback import format_exception
from typing import Any

import httpx

from headgate._ids import IdMaker
from tests.support.databases import Databases
from tests.worlds import (
    control_verbs,
    dag_scenes,
    dag_verbs,
    faults,
    forged_verbs,
    item_scenes,
    job_verbs,
    late_scenes,
    limit_scenes,
    limit_verbs,
    operation_verbs,
    queue_verbs,
    run_scenes,
    run_verbs,
    schedule_verbs,
    steering_scenes,
    stranger_scenes,
    token_verbs,
    unique_verbs,
    value_verbs,
)
from tests.worlds.control_verbs import over
from tests.worlds.dag_facts import DagFacts
from tests.worlds.facts import TICK_S, Delivery, History
from tests.worlds.job_facts import JobFacts
from tests.worlds.leftovers import left_behind
from tests.worlds.limit_facts import LimitFacts
from tests.worlds.limits import limits_of
from tests.worlds.registry import EDITION, VERBS, Act, Verb
from tests.worlds.run_facts import RunFacts
from tests.worlds.schedule_facts import Schedule
from tests.worlds.stage import stage_on
from tests.worlds.unique_facts import UniqueFacts
from tests.worlds.wire import Answer, Known
from tests.worlds.world_names import NAMESPACES

# Registered by being imported.
MODULES = (
    queue_verbs,
    operation_verbs,
    dag_verbs,
    control_verbs,
    faults,
    value_verbs,
    token_verbs,
    schedule_verbs,
    run_verbs,
    limit_verbs,
    job_verbs,
    unique_verbs,
    limit_scenes,
    forged_verbs,
    dag_scenes,
    steering_scenes,
    late_scenes,
    item_scenes,
    stranger_scenes,
    run_scenes,
)

ROUNDS = 60
_AT_ONCE_MAX = 8
_CALL_S_MAX = 60.0
_DRAIN_ROUNDS_MAX = 80
_ABOUT_STEPS = 150
_STEPS_MAX = 200_000
# With duties alone: for as long as a cancel takes whose item the queue has forgotten, told by either process.
_LAST_ROUNDS, _LAST_ROUND_S = 24, 10.0
_QUIET_ROUNDS, _QUIET_ROUND_S = 4, 5.0
_SHOWN_STEPS = 12
# Of worlds that were broken once.
SEEDS = Path(__file__).parent / "seeds.txt"
_KEY = re.compile(r"\bn[0-9]+\b")
_TAG = re.compile(rf"\b(?:{'|'.join(NAMESPACES)})/[0-9]+\b")
_SCHEDULE = re.compile(r"\bschedule (\w+)/(s[0-9]+)\b")
_BEFELL = (" shards ", "is killed", "backends are ended")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}")


class Broken(AssertionError):
    """A world in which a promise was broken; its text says which, after what, and how to see it again."""


class World:
    """What verbs work with: calls, the facts, and names that nobody has had yet."""

    def __init__(
        self,
        seed: int,
        stage: Any,
        at_once_max: int = _AT_ONCE_MAX,
        *,
        edition: int = EDITION,
        steps_max: int = _STEPS_MAX,
    ) -> None:
        self.seed, self.stage, self._at_once_max = seed, stage, at_once_max
        self.edition = edition
        self._verbs = [verb for verb in VERBS if verb.since <= edition]
        self.history, self.dags = History(), DagFacts()
        self.schedules: list[Schedule] = []
        self.runs, self.limits, self.jobs, self.uniques = RunFacts(), LimitFacts(), JobFacts(), UniqueFacts()
        self.held: list[Delivery] = []  # leases that nobody is through with
        self.stale: deque[Delivery] = deque(maxlen=40)
        self.leaps: list[float] = []  # by how much the clock is to go on after this round
        self.leapt_s = 0.0
        # Of scenes: how they go on in the next round, or else end; and the topics that are theirs meanwhile.
        self.appointments: list[tuple[Act, Callable[[], None]]] = []
        self.on_stage: set[str] = set()
        self.steps: deque[str] = deque(maxlen=steps_max)
        self.faults: list[str] = []
        self.round = 0
        self.draining = self.is_drained = False
        self.ids = IdMaker(now_ms=lambda: int(stage.clock.now_s() * 1000))
        self._serials = itertools.count(1)

    @property
    def now_s(self) -> float:
        """The shards' time: it is that late everywhere, and nowhere later than the clock's `latest_s`."""
        return float(self.stage.clock.now_s())

    def serial(self) -> int:
        """A number that names something of this world."""
        return next(self._serials)

    def note(self, text: str) -> None:
        self.steps.append(f"{self.round:4d} {self.now_s % 100_000:10.3f} {text}")

    def fault(self, text: str) -> None:
        """Something was seen that may not be."""
        self.faults.append(text)
        self.note(f"FAULT {text}")

    async def queue(
        self,
        rng: Random,
        namespace: str,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        token: str | None = None,
        **query: Any,
    ) -> Answer:
        """A call to the queue, at any of its processes; with another token than the tenant's own, if so."""
        return await self.call(rng, rng.choice(self.stage.queues), namespace, method, path, body, query, token)

    async def dag(
        self,
        rng: Random,
        namespace: str,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        token: str | None = None,
        **query: Any,
    ) -> Answer:
        """A call to the DAG service, at any of its processes; with another token than the tenant's own, if so."""
        return await self.call(rng, rng.choice(self.stage.dags), namespace, method, path, body, query, token)

    async def call(
        self,
        rng: Random,
        process: Any,
        namespace: str,
        method: str,
        path: str,
        body: Any,
        query: dict[str, Any],
        token: str | None = None,
    ) -> Answer:
        is_lost = not self.draining and rng.random() < 0.02
        sent = self.now_s
        tokens = self.stage.tokens
        token = tokens.of(namespace) if tokens is not None and token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = await self.ask(process, method, f"/v1/namespaces/{namespace}{path}", body, query, headers)
        if is_lost and answer.known == "ok":
            answer = Answer("info", sent, answer.done)
        if method != "GET":
            shown = str(body)
            verb = "" if method == "POST" else f"{method} "
            self.note(f"{process.name} {verb}{namespace}{path} {shown[:600]} -> {answer}")
        return answer

    async def ask(
        self,
        process: Any,
        method: str,
        path: str,
        body: Any,
        query: dict[str, Any],
        headers: dict[str, str],
    ) -> Answer:
        """A call, and what is known of it; what no call may come to is a fault."""
        sent = self.now_s

        def made(known: Known, status: int = 0, found: Any = None) -> Answer:
            # Where others go on meanwhile, the clock may have moved.
            return Answer(known, sent, self.stage.clock.latest_s() + TICK_S / 2, status, found)

        if process.client.is_closed:
            return made("fail")  # whoever goes on at a process finds that it is gone
        json = {} if body is None and method != "GET" else body
        try:
            async with asyncio.timeout(_CALL_S_MAX):
                response = await process.client.request(method, path, json=json, params=query, headers=headers)
        except httpx.ConnectError:
            return made("fail")
        except httpx.TransportError:
            return made("info")
        except TimeoutError:
            self.fault(f"{method} {path} at {process.name} hangs")
            return made("info")
        is_json = "json" in response.headers.get("content-type", "")
        found = response.json() if is_json else response.text
        if response.is_success:
            return made("ok", response.status_code, found)
        if response.status_code == 500 or not is_json:
            self.fault(f"{method} {path} at {process.name}: {response.status_code} {response.text[:500]}")
            return made("info", response.status_code, {})
        return made("fail" if found["outcome"] == "none" else "info", response.status_code, found)

    async def pages(
        self, rng: Random, call: Callable[..., Awaitable[Answer]], namespace: str, path: str, **given: Any
    ) -> Any:
        """All elements of a list; None while it is not answered."""
        found: list[Any] = []
        query: dict[str, Any] = {"limit": 1000, **given}
        for _ in range(1000):
            answer = await call(rng, namespace, path, method="GET", **query)
            if answer.known != "ok" or answer.body.get("away"):
                return None
            found += answer.body["items"]
            if answer.body["next_cursor"] is None:
                return found
            query["cursor"] = answer.body["next_cursor"]
        raise AssertionError(f"{path} has no end")

    # -- the course of it ---------------------------------------------------------------------------------

    async def live(self, rounds: int, tell: Callable[[], None] = lambda: None) -> None:
        """So many rounds of whatever may happen."""
        for _ in range(rounds):
            await self._round()
            tell()

    async def _round(self) -> None:
        self.round += 1
        rng = Random(f"{self.seed} {self.round}")
        await self.stage.clock.advance(TICK_S)
        possible = [verb for verb in self._verbs if verb.when(self)]
        count = rng.randint(1, self._at_once_max)
        chosen = rng.choices(possible, [verb.weight for verb in possible], k=count)
        kept, self.appointments = self.appointments, []
        acts = [self._act(verb, Random(rng.random())) for verb in chosen]
        await asyncio.gather(*acts, *(act(self, Random(rng.random())) for act, _ in kept))
        if self.leaps:
            self.leapt_s += max(self.leaps)
            await self.stage.clock.advance(max(self.leaps))
            self.leaps.clear()

    async def _act(self, verb: Verb, rng: Random) -> None:
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.005)  # so that calls of a round meet at other points
        if verb.when(self):
            await verb.act(self, rng)

    async def end(self) -> None:
        """Let everything go and do what is to be done, until nothing is left but what has died."""
        self.draining = True
        for _, drop in self.appointments:
            drop()
        if self.edition >= 7:
            token_verbs.give_all_anew(self)
            await self._look_at_rest()
        for nth in range(_DRAIN_ROUNDS_MAX):
            self.round += 1
            rng = Random(f"{self.seed} {self.round}")
            await self.stage.clock.advance(rng.choice((1.0, 2.0, 10.0)))
            if nth % 10 == 0:
                await queue_verbs.open_all(self, rng)
                if self.edition >= 4:
                    await limit_verbs.lift_all(self, rng)
            await schedule_verbs.let_go(self, rng)
            await control_verbs.let_go(self, rng)
            await run_verbs.let_go(self, rng)
            await queue_verbs.finish(self, rng)
            await self._rest()
            if await self._is_over(rng):
                self.is_drained, self.history.ended_s = True, self.now_s
                break
        if self.edition >= 7:
            token_verbs.give_all_anew(self)
        for _ in range(_LAST_ROUNDS):
            self.round += 1
            await self.stage.clock.advance(_LAST_ROUND_S)
            await self._rest()
        if self.is_drained:
            return
        left = [f"{dag.name} ({dag.id}) {dag.shown.get('state')}" for dag in self.dags.all if not over(dag)]
        items = {item_id: state for item_id, state in self.history.left.items() if state != "dead"}
        runs = [(run.id, run.shown) for run in self.runs.all if run.is_possible and not run.is_over]
        made = [(schedule.name, schedule.ticks[:3]) for schedule in self.schedules if schedule.is_made]
        self.faults.append(
            f"after {_DRAIN_ROUNDS_MAX} rounds there are left: {left} {items} {self.held}, of {made}, runs {runs}"
        )

    async def _look_at_rest(self) -> None:
        """Runs go to other workers, and every duty is done, until nobody has anything to tell any other."""
        await run_verbs.move_all(self, Random(f"{self.seed} {self.round}"))
        for _ in range(_QUIET_ROUNDS):
            self.round += 1
            await self.stage.clock.advance(_QUIET_ROUND_S)
            await self._rest()
        await run_verbs.look_for_moved(self, Random(f"{self.seed} {self.round}"))

    async def _rest(self) -> None:
        for said in await self.stage.rest(self.round):
            self.note(said)

    async def _is_over(self, rng: Random) -> bool:
        nothing_comes = await schedule_verbs.read(self, rng)
        dags_are = nothing_comes and await control_verbs.all_ended(self, rng) and await run_verbs.read(self, rng)
        # What is disabled has to be seen to be revived.
        is_near = dags_are and not self.held
        return (is_near or self.round % 8 == 0) and await queue_verbs.look(self, rng) and is_near

    def summary(self) -> str:
        """How much of what there was."""
        counts = self.history.counts
        said = " ".join(f"{count} {what}" for what, count in sorted(counts.items(), key=lambda one: -one[1])[:9])
        nodes = sum(len(dag.views) for dag in self.dags.all)
        ticks = sum(len(schedule.ticks) for schedule in self.schedules)
        writes = sum(len(cell.writes) for dag in self.dags.all for cell in dag.values.values())
        moved = sum("shards move" in step and " 0 " in step for step in self.steps)
        runs = sum(run.is_over for run in self.runs.all)
        there = f"{len(self.history.sent)} items, {len(self.dags.all)} DAGs of {nodes} nodes, {ticks} ticks"
        return f"{there}, {runs} runs, {writes} writes of values, {moved} moves; {said}"

    def story(self, found: Sequence[str]) -> str:
        """What went wrong, the steps that it speaks of, the last ones, and how to see it again."""
        named = {word for kind in (_ID, _KEY, _TAG) for line in found for word in kind.findall(line)}
        named |= {f"{space}/schedules/{name}" for line in found for space, name in _SCHEDULE.findall(line)}
        about = [step for step in self.steps if any(re.search(rf"\b{word}\b", step) for word in named)]
        return "\n".join(
            [
                f"world {self.seed} is broken:",
                *found[:20],
                "",
                "what was said of it:",
                *about[:_ABOUT_STEPS],
                "",
                "what befell processes and shards:",
                *(step for step in self.steps if any(part in step for part in _BEFELL)),
                "",
                "the last steps:",
                *list(self.steps)[-_SHOWN_STEPS:],
                "",
                f"again: make worlds SEED={self.seed} N=1"
                + (f" EDITION={self.edition}" if self.edition != EDITION else ""),
            ]
        )


def kept_seeds() -> list[tuple[int, int]]:
    """Seeds of worlds that were broken once, and are run for ever, each with its edition."""
    lines = [line.partition("#")[0].split() for line in SEEDS.read_text().splitlines()]
    return [(int(line[0]), int(line[1])) for line in lines if line]


async def run(
    databases: Databases,
    directory: Path,
    seed: int,
    *,
    rounds: int = ROUNDS,
    edition: int = EDITION,
    tell: Callable[[], None] = lambda: None,
) -> World:
    """One world from its beginning to its end.

    Raises:
        Broken: a promise was broken.
    """
    rng = Random(seed)
    async with stage_on(databases, directory, limits_of(rng, edition), Random(rng.random())) as stage:
        world = World(seed, stage, edition=edition)
        try:
            await world.live(rounds, tell)
            await world.end()
            await judge(world)
        except Broken:
            raise
        except Exception as error:
            raise Broken(world.story(["what no duty and no call may raise:", *format_exception(error)])) from error
        return world


async def judge(world: World) -> None:
    """Ask the oracles.

    Raises:
        Broken: a promise was broken.
    """
    if found := await judgement(world):
        raise Broken(world.story(found))


async def judgement(world: World) -> list[str]:
    """All that the oracles have to say."""
    from tests.worlds import dag_oracle, job_facts, limit_facts, queue_oracle, replay, unique_facts
    from tests.worlds.run_facts import judge as judge_runs
    from tests.worlds.schedule_facts import judge as judge_schedules

    if not world.is_drained:
        return [*world.faults, *await left_behind(world, Random(world.seed))]
    found = world.faults + queue_oracle.judge(world.history)
    found += await replay.read(world)
    found += dag_oracle.judge(world.dags, world.history)
    found += judge_schedules(world.schedules)
    found += await run_verbs.read_histories(world)
    found += judge_runs(world.runs, world.history)
    found += await job_verbs.read_logs(world, Random(world.seed))
    found += job_facts.judge(world.jobs, world.history) + limit_facts.judge(world.limits, world.history)
    found += unique_facts.judge(world.uniques, world.history, is_inside=world.stage.is_inside)
    return found + await left_behind(world, Random(world.seed))
