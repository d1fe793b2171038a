"""Verbs of runs of workflows: begin, signal, cancel; and a worker that replays their code and dies at times."""

import asyncio
from random import Random
from typing import Any

from headgate._calls.run_verbs import page, turn_answer
from headgate.errors import HeadgateError
from headgate.workflow.driving.driver import Driver
from headgate.workflow.turns import Diverged, Lease, Page, RunFinished, Turn, TurnAnswer, TurnLost
from tests.worlds.facts import Delivery
from tests.worlds.faults import is_inside
from tests.worlds.forged_verbs import forge_turn
from tests.worlds.queue_verbs import Said, say
from tests.worlds.registry import verb
from tests.worlds.run_facts import TOPICS, TYPE, Move, Retry, Run, Signal, Update, stroll
from tests.worlds.wire import Answer
from tests.worlds.world_names import NAMESPACES, NODE_TOPICS

# What an event's code may take on a machine that is busy.
_EVENT_S = 120.0
# For how long some turns wait: what another process does then is not heard of, and found before the run is parked.
_TURN_WAIT_S = 0.02
# Kinds of commands of which a key is asked for once.
_ONCE = ("item", "timer", "dag", "step")


class Unanswered(HeadgateError):
    """The decider does not know what became of its call: it dies, and is delivered again."""


class _Calls:
    """A decider's calls in a world."""

    def __init__(self, world: Any, rng: Random, namespace: str, topic: str) -> None:
        self._world, self._rng, self._namespace, self._topic = world, rng, namespace, topic

    async def history(self, lease: Lease, after: int, wait_s: float = 0.0) -> Page:
        path = f"/dags/{lease.run}/history"
        answer = await self._world.dag(self._rng, self._namespace, path, method="GET", after=after)
        return page(_known(answer))

    async def turn(self, lease: Lease, turn: Turn) -> TurnAnswer:
        path = f"/dags/{lease.run}/turn"
        if self._world.edition >= 7 and not self._world.draining and self._rng.random() < 0.5:
            await forge_turn(self._world, self._rng, self._namespace, lease, turn, self._asked(lease))
        if self._world.edition >= 9 and not self._world.draining and self._rng.random() < 0.3:
            await self._be_told(lease)
        for _ in range(self._rng.choice((1, 1, 1, 2))):  # the same again is answered again
            answer = await self._world.dag(self._rng, self._namespace, path, turn.body())
            if answer.known == "ok":
                self._judge(lease.run, answer)
        if answer.known == "ok" and self._world.edition >= 9:
            self._asked(lease).extend(one for one in turn.body().get("commands", ()) if one["kind"] in _ONCE)
        return turn_answer(_known(answer))

    def _asked(self, lease: Lease) -> list[dict[str, Any]]:
        """Of what its run has asked for that may be asked for once."""
        asked: list[dict[str, Any]] = self._world.runs.asked[lease.run]
        return asked

    async def _be_told(self, lease: Lease) -> None:
        """Something befalls the run while its code goes on: one of its tasks ends, or it is signalled."""
        tasks = [held for held in self._world.held if held.dag is not None and held.dag["id"] == lease.run]
        for held in tasks[:1]:
            said: list[Said] = [(held, held.token, {"output": {"by": held.token[:8]}})]
            await say(self._world, self._rng, self._namespace, "ack", said)
        for run in self._world.runs.all if not tasks else ():
            if run.dag == lease.run:
                run.signals.append(Signal(f"s{self._world.serial()}", f"data {self._world.serial()}"))
                await send_signal(self._world, self._rng, run, run.signals[-1])

    def _judge(self, run_id: str, answer: Answer) -> None:
        """Workers of a version that a run was moved away from write nothing of it any more."""
        for run in self._world.runs.all:
            versions = run.versions(answer.sent)
            if run.dag == run_id and self._topic not in {TOPICS[version] for version in versions}:
                self._world.fault(
                    f"a turn of {run.id} ({run_id}) came by {self._topic}, and was taken: {run.moves}"
                )


def _known(answer: Answer) -> Any:
    if answer.known == "ok":
        return answer.body
    match answer.code:
        case "turn_lost":
            raise TurnLost(answer.code)
        case "workflow_finished":
            raise RunFinished(answer.code)
        case "history_mismatch":
            raise Diverged(str(answer.body))
    if answer.status == 404:
        raise RunFinished("it is gone")
    raise Unanswered(str(answer))


def _made(world: Any) -> list[Run]:
    return [run for run in world.runs.all if run.is_possible]


def has_runs(world: Any) -> bool:
    return bool(_made(world))


@verb(1.5, is_inside, since=3)
async def begin_run(world: Any, rng: Random) -> None:
    run_id = f"run{world.serial()}"
    namespace = rng.choice(NAMESPACES)
    topics = [rng.choice(NODE_TOPICS) for _ in range(rng.randint(0, 3))]
    wanted = {"topics": topics, "signals": rng.choice((0, 0, 1, 2)), "sleep_s": rng.choice((0.0, 0.0, 3.0, 40.0))}
    run = Run(run_id, namespace, {"tag": f"{namespace}/{run_id}", **wanted})
    version = rng.choice((None, None, "1", "2")) if world.edition >= 4 else None
    if world.edition >= 7 and rng.random() < 0.5:
        run.input |= {"strict": rng.choice(("one", "all"))}
        run.is_mended = rng.random() < 0.7
    run.moves.append(Move(version, world.now_s, world.now_s))
    world.runs.all.append(run)
    for _ in range(rng.choice((1, 1, 2))):
        await begin(world, rng, run)


async def begin(world: Any, rng: Random, run: Run) -> None:
    body = {"type": TYPE, "id": run.id, "input": run.input}
    body |= {} if run.moves[0].version is None else {"version": run.moves[0].version}
    answer = await world.dag(rng, run.namespace, "/workflows", body)
    run.is_possible |= answer.known != "fail"
    if answer.known == "ok":
        run.is_promised, found = True, answer.body["run"]
        if run.dag not in (None, found):
            world.fault(f"run {run.id} is {run.dag} and {found}")
        run.dag = found


@verb(1.5, has_runs, since=3)
async def signal_run(world: Any, rng: Random) -> None:
    """New ones, and some that were sent before."""
    run = rng.choice(_made(world))
    if not run.signals or rng.random() < 0.7:
        run.signals.append(Signal(f"s{world.serial()}", f"data {world.serial()}"))
    await send_signal(world, rng, run, rng.choice(run.signals))


async def send_signal(world: Any, rng: Random, run: Run, signal: Signal) -> None:
    body = {"name": "go", "id": signal.id, "data": signal.data}
    answer = await world.dag(rng, run.namespace, f"/workflows/{run.id}/signals", body)
    signal.known.add(answer.known)


@verb(0.5, has_runs, since=3)
async def stop_run(world: Any, rng: Random) -> None:
    run = rng.choice(_made(world))
    answer = await world.dag(rng, run.namespace, f"/workflows/{run.id}/{rng.choice(('cancel', 'terminate'))}")
    run.is_stopped |= answer.known != "fail"


@verb(0.5, has_runs, since=3)
async def pause_run(world: Any, rng: Random) -> None:
    run = rng.choice(_made(world))
    await world.dag(rng, run.namespace, f"/workflows/{run.id}/{rng.choice(('pause', 'resume', 'resume'))}")


@verb(1.5, has_runs, since=4)
async def update_run(world: Any, rng: Random) -> None:
    """New ones, and some that were sent before; or a look at one."""
    run = rng.choice(_made(world))
    if not run.updates or rng.random() < 0.6:
        run.updates.append(Update(f"u{world.serial()}", f"asked {world.serial()}"))
    update = rng.choice(run.updates)
    if rng.random() < 0.3:
        await look_at_update(world, rng, run, update)
    else:
        await _update(world, rng, run, update)


async def _update(world: Any, rng: Random, run: Run, update: Update) -> None:
    body = {"name": "ask", "id": update.id, "data": update.data, "wait_s": 0}
    update.on_their_way += 1
    try:
        answer = await world.dag(rng, run.namespace, f"/workflows/{run.id}/updates", body)
        update.known.add(answer.known)
    finally:
        update.on_their_way -= 1
    if answer.known == "ok":
        update.told(answer.body)


async def look_at_update(world: Any, rng: Random, run: Run, update: Update) -> None:
    path = f"/workflows/{run.id}/updates/{update.id}"
    answer = await world.dag(rng, run.namespace, path, method="GET")
    if answer.known == "ok":
        update.told(answer.body)
        if update.known <= {"fail"} and not update.on_their_way:
            world.fault(f"update {update.id} was refused, and is {answer.body}")


@verb(0.8, has_runs, since=4)
async def move_run(world: Any, rng: Random) -> None:
    """Workers of another version, or of any, go on with it."""
    await _move(world, rng, rng.choice(_made(world)), rng.choice(list(TOPICS)))


async def move_all(world: Any, rng: Random) -> None:
    for run in _made(world):
        await _move(world, rng, run, rng.choice(list(TOPICS)))


async def _move(world: Any, rng: Random, run: Run, version: str | None) -> None:
    move = Move(version, world.now_s, None)
    run.moves.append(move)  # before: whoever takes it then may be heard of first
    answer = await world.dag(rng, run.namespace, f"/workflows/{run.id}/move", {"version": version})
    if answer.known == "fail":
        run.moves.remove(move)
    elif answer.known == "ok":
        move.done = answer.done


@verb(0.5, has_runs, since=6)
async def reset_run(world: Any, rng: Random) -> None:
    """It goes on from an event that it was told of, or is not; the same reset may come twice."""
    run = rng.choice(_made(world))
    body = {"event": rng.choice((1, 1, 2, 3, 5, 8)), "id": f"r{world.serial()}"}
    for _ in range(rng.choice((1, 1, 2))):
        answer = await world.dag(rng, run.namespace, f"/workflows/{run.id}/reset", body)
        run.is_reset |= answer.known != "fail"


@verb(0.5, has_runs, since=6)
async def replace_output(world: Any, rng: Random) -> None:
    """Few runs may take it: those that are stuck or have failed."""
    run = rng.choice(_made(world))
    key, output = f"{rng.choice(NODE_TOPICS)}#1", f"another {world.serial()}"
    run.replaced.setdefault(key, []).append(output)
    answer = await world.dag(rng, run.namespace, f"/workflows/{run.id}/resume", {"outputs": {key: output}})
    if answer.known == "fail":
        run.replaced[key].remove(output)


@verb(2, has_runs, since=7)
async def retry_run(world: Any, rng: Random) -> None:
    """What a run has failed with is done once more, or what has not; some ask for it twice, at once or later."""
    run = rng.choice([run for run in _made(world) if "strict" in run.input] or _made(world))
    if run.dag is None or not await read_history(world, rng, run):
        return
    calls = sorted({event["key"] for event in run.events if event["kind"] == "item"})
    failures = run.failures()
    more = rng.sample(calls, min(len(calls), 1)) if not failures or rng.random() < 0.4 else []
    keys = list(dict.fromkeys([*failures, *more]))
    for _ in range(rng.choice((1, 1, 2))):
        await asyncio.gather(*(retry_calls(world, rng, run, keys) for _ in range(rng.choice((1, 1, 2)))))
    answer = await world.dag(rng, run.namespace, f"/workflows/{run.id}/resume", {"retry": [*keys, "nothing#1"]})
    if answer.known == "ok":
        world.fault(f"a retry of what {run.id} has not asked for was taken: {answer.body}")


async def retry_calls(world: Any, rng: Random, run: Run, keys: list[str]) -> None:
    asked = [Retry(key, world.now_s) for key in keys]
    run.retries += asked
    answer = await world.dag(rng, run.namespace, f"/workflows/{run.id}/resume", {"retry": keys})
    if answer.known == "fail":
        run.retries = [retry for retry in run.retries if not any(retry is one for one in asked)]


@verb(0.6, has_runs, since=6)
async def forge(world: Any, rng: Random) -> None:
    """Turns and verbs that no run takes, whoever sends them."""
    run, other = rng.choice(_made(world)), rng.choice(_made(world))
    turn = {"generation": rng.randint(1, 4), "secret": "0" * 32, "turn": rng.randint(1, 9), "last": 1, "seen": 1}
    large = "x" * 65_537
    path, body = rng.choice(
        [
            (f"/dags/{run.dag}/turn", turn),
            (f"/dags/{other.dag}/turn", turn | {"commands": [{"kind": "end", "key": "", "after": 1}]}),
            (f"/dags/{run.dag}/turn", turn | {"results": [{"key": "step:x#1", "state": "succeeded"}]}),
            (f"/workflows/{run.id}/signals", {"name": "go", "id": f"f{world.serial()}", "data": large}),
            (f"/workflows/{run.id}/signals", {"name": "go", "forged": True}),
            (f"/workflows/{run.id}/updates", {"name": "ask", "id": f"f{world.serial()}", "data": large}),
            (f"/workflows/{run.id}/reset", {"event": 2**40}),
            (f"/workflows/{run.id}/resume", {"outputs": {"nothing#1": 1}}),
            ("/workflows", {"type": "a b"}),
            ("/workflows", {"type": TYPE, "id": f"f{world.serial()}", "input": large}),
        ]
    )
    if "None" in path:
        return
    answer = await world.dag(rng, run.namespace, path, body)
    if answer.known == "ok":
        world.fault(f"{path} took {str(body)[:200]}")


@verb(6, has_runs, since=3)
async def decide(world: Any, rng: Random) -> None:
    await work(world, rng, rng.choice(NAMESPACES), rng.choice((1, 3)))


async def work(world: Any, rng: Random, namespace: str, count: int) -> None:
    """Take deciders and let their code go on; some workers die before they say so, or give the item back."""
    topics = TOPICS.values() if world.edition >= 4 else [TOPICS[None]]
    demand = [{"topic": topic, "count": count} for topic in topics]
    body = {"topics": demand, "lease_s": rng.choice((2.0, 60.0))}
    answer = await world.queue(rng, namespace, "/dequeue", body)
    for leased in answer.body["items"] if answer.known == "ok" else ():
        dag, token = leased["dag"], leased["lease_token"]
        held = Delivery(
            f"decider of {dag['id']}", namespace, leased["topic"], leased["id"], token,
            leased["attempt"], body["lease_s"], answer.sent, answer.done, dag,
        )  # fmt: skip
        world.history.delivered(held)
        fate = 1.0 if world.draining else rng.random()
        if fate < 0.1:
            continue
        if world.edition >= 7 and rng.random() < 0.2:  # it ends without a turn
            await say(world, rng, namespace, "ack", [(held, token, {})])
            continue
        driver = Driver(
            {TYPE: stroll},
            _Calls(world, rng, namespace, leased["topic"]),
            event_limit_s=_EVENT_S,
            replay_rate=0.3,
            turn_wait_s=rng.choice((0.0, _TURN_WAIT_S)) if world.edition >= 5 else 0.0,
        )
        try:
            await driver.work(TYPE, Lease(dag["id"], dag["generation"], leased["payload"]["secret"]))
        except Unanswered as error:
            world.note(f"  decider of {dag['id']} dies: {error}")
            continue
        if fate >= 0.2:
            await say(world, rng, namespace, "nack" if 0.2 <= fate < 0.3 else "ack", [(held, token, {})])


@verb(0.7, has_runs, since=7)
async def reset_answered(world: Any, rng: Random) -> None:
    """A run whose updates were answered goes on from its beginning: its code may answer otherwise by now, and the
    first answer stands."""
    answered = [run for run in _made(world) if any(update.answers for update in run.updates)]
    if answered:
        run = rng.choice(answered)
        body = {"event": 1, "id": f"r{world.serial()}"}
        answer = await world.dag(rng, run.namespace, f"/workflows/{run.id}/reset", body)
        run.is_reset |= answer.known != "fail"


# -- the way to the end


async def look_for_moved(world: Any, rng: Random) -> None:
    """Once the queue was told of everything nothing is left in it for workers that a run was moved from, but an
    older generation: what a worker had that died between the turn that parked the run and its ack."""
    for namespace in NAMESPACES:
        for item in await world.pages(rng, world.queue, namespace, "/items") or ():
            for run in world.runs.all if item.get("dag") else ():
                topics = {TOPICS[version] for version in run.versions(world.now_s)}
                is_its = run.dag == item["dag"]["id"] and item["topic"] in TOPICS.values()
                if not is_its or item["state"] != "ready" or item["topic"] in topics:
                    continue
                path = f"/dags/{run.dag}/node"
                answer = await world.dag(rng, namespace, path, method="GET", key="decider")
                if answer.known == "ok" and item["dag"]["generation"] >= answer.body["generation"] - 1:
                    world.fault(f"{item['id']} of run {run.id} is there for {item['topic']} still: {run.moves}")


async def let_go(world: Any, rng: Random) -> None:
    """Nothing keeps any run but its work."""
    for run in [run for run in world.runs.all if run.is_possible and not run.is_over]:
        if not run.is_promised and not await _find(world, rng, run):
            await begin(world, rng, run)
        if not run.is_to_go_on:  # its code would go on with what it has, and fail again
            await world.dag(rng, run.namespace, f"/workflows/{run.id}/resume")
        elif await read_history(world, rng, run) and (failures := run.failures()):
            await retry_calls(world, rng, run, failures)
        for signal in run.signals:
            if "ok" not in signal.known and "info" in signal.known:
                await send_signal(world, rng, run, signal)
        if sum("ok" in signal.known for signal in run.signals) < run.input["signals"]:
            run.signals.append(Signal(f"s{world.serial()}", f"data {world.serial()}"))
            await send_signal(world, rng, run, run.signals[-1])
    if world.runs.all:
        for namespace in NAMESPACES:
            await work(world, rng, namespace, 100)


async def _find(world: Any, rng: Random, run: Run) -> bool:
    """Whether a run whose begin was not answered is there; once it is over its id could mean another one."""
    answer = await world.dag(rng, run.namespace, f"/workflows/{run.id}", method="GET")
    if answer.known == "ok":
        run.is_promised, run.dag = True, answer.body["run"]
    return bool(run.is_promised)


async def read(world: Any, rng: Random) -> bool:
    """Learn how each run stands; whether all are over."""
    for run in world.runs.all:
        if run.is_possible and not run.is_over:
            answer = await world.dag(rng, run.namespace, f"/workflows/{run.id}", method="GET")
            run.shown = answer.body if answer.known == "ok" else {}
    return all(run.is_over for run in world.runs.all if run.is_possible)


async def read_history(world: Any, rng: Random, run: Run) -> bool:
    """Read the events of a run anew, from its first; whether that was answered."""
    events: list[dict[str, Any]] = []
    seen, more = 0, True
    while more:
        after = events[-1]["event"] if events else 0
        path = f"/workflows/{run.id}/history"
        answer = await world.dag(rng, run.namespace, path, method="GET", after=after)
        if answer.known != "ok":
            return False
        events += answer.body["events"]
        seen, more = answer.body["seen"], answer.body.get("more", False)
    run.events, run.seen = events, seen
    return True


async def read_histories(world: Any) -> list[str]:
    """The events of each run, from its first; what cannot be read."""
    rng, found = Random(world.seed), []
    for run in world.runs.all:
        if run.is_possible and run.dag is not None and not await read_history(world, rng, run):
            found.append(f"run {run.id} cannot be read")
        for update in run.updates if run.dag is not None else ():
            if "ok" in update.known:
                await look_at_update(world, rng, run, update)
    return found
