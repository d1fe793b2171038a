"""What clients know of runs of workflows, and what no run may show: its history is what its code does, each of its
calls is one task, and it ends as its code does."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headgate import NodeFailed, Workflow
from headgate.testing import replay
from headgate.workflow.errors import TurnFailed
from headgate.workflow.events import ENDS, Event
from tests.worlds.facts import Delivery, History
from tests.worlds.wire import Known

TYPE = "stroll"
# Of runs that are for workers of any version, and of those of each.
TOPICS = {None: f"wf/{TYPE}"} | {version: f"wfv/{version}/{TYPE}" for version in ("1", "2")}
OVER = ("succeeded", "failed", "cancelled")


async def stroll(wf: Workflow, wanted: dict[str, Any]) -> list[Any]:
    """Calls one after another, a signal for each that is wanted, and a sleep; what came of each. Updates are
    answered meanwhile. `strict`: it fails with a call; with `all` its calls go at once."""
    found: list[Any] = []
    wf.on_update(
        "ask", (lambda data: answer_to(data) | {"after": len(found)}) if "strict" in wanted else answer_to
    )
    strict = wanted.get("strict", "")
    tags = [(topic, f"{wanted['tag']}/{number}") for number, topic in enumerate(wanted["topics"])]
    calls = [(topic, {"tag": tag, "node": True, "run": True}) for topic, tag in tags]
    if strict == "all":
        found += await asyncio.gather(*(wf.call(topic, payload, max_attempts=1) for topic, payload in calls))
    for topic, payload in () if strict == "all" else calls:
        try:
            found.append(await wf.call(topic, payload, max_attempts=1 if strict else 3))
        except NodeFailed as error:
            if strict:
                raise
            found.append(error.state)
    for _ in range(wanted["signals"]):
        found.append(await wf.receive("go"))
    await wf.sleep(wanted["sleep_s"])
    return found


def answer_to(data: Any) -> dict[str, Any]:
    """What the code answers to an update."""
    return {"got": data}


@dataclass(slots=True)
class Update:
    """One that was sent, perhaps several times, and each answer that was not `pending`."""

    id: str
    data: str
    known: set[Known] = field(default_factory=set)
    answers: list[dict[str, Any]] = field(default_factory=list)
    # Calls that send it and have not been answered.
    on_their_way: int = 0

    def told(self, body: dict[str, Any]) -> None:
        if body["status"] != "pending":
            self.answers.append({name: body.get(name) for name in ("status", "output", "error")})


@dataclass(slots=True, eq=False)
class Move:
    """A run is given to workers of a version; `done` where that is certain."""

    version: str | None
    sent: float
    done: float | None


@dataclass(slots=True)
class Signal:
    """One that was sent, perhaps several times; `known` is what is known of each time."""

    id: str
    data: str
    known: set[Known] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Retry:
    """A call of a run is to be done once more, or may have been asked to be, from `sent` on."""

    key: str
    sent: float


@dataclass(slots=True)
class Run:
    """One run, by the id that its caller gave it, and what is known of it."""

    id: str
    namespace: str
    input: dict[str, Any]
    is_promised: bool = False
    is_possible: bool = False
    is_stopped: bool = False  # somebody has asked it to end
    is_reset: bool = False  # its code has gone on from an earlier event, perhaps
    is_mended: bool = False  # what fails it is done once more until it succeeds
    retries: list[Retry] = field(default_factory=list)
    replaced: dict[str, list[Any]] = field(default_factory=dict)  # outputs that it may have been given, by key
    dag: str | None = None
    shown: dict[str, Any] = field(default_factory=dict)
    signals: list[Signal] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)  # its start is the first
    events: list[dict[str, Any]] = field(default_factory=list)
    seen: int = 0

    @property
    def is_over(self) -> bool:
        return self.shown.get("state") in OVER and not self.is_to_go_on

    @property
    def is_to_go_on(self) -> bool:
        """It has failed, and that is to be mended."""
        return self.shown.get("state") == "failed" and self.is_mended and not self.is_stopped

    def failures(self) -> list[str]:
        """Keys of calls that have not succeeded, and of which code is told so."""
        ends = [event for event in self.events if event["kind"] == "item" and event.get("state") in ENDS]
        return [event["key"] for event in ends if event["state"] != "succeeded" and not event.get("void")]

    def versions(self, now_s: float) -> set[str | None]:
        """Those that it may be for by now."""
        certain = [n for n, move in enumerate(self.moves) if move.done is not None and move.done < now_s]
        last = max(certain, key=lambda n: self.moves[n].sent, default=0)
        since_s = self.moves[last].sent if certain else 0.0
        return {move.version for move in self.moves if move.sent >= since_s}


class RunFacts:
    """All runs, and the items that came of their tasks, by DAG, key and generation."""

    def __init__(self) -> None:
        self.all: list[Run] = []
        self.deliveries: dict[tuple[str, str, int], list[Delivery]] = defaultdict(list)
        self.asked: dict[str, list[dict[str, Any]]] = defaultdict(list)  # commands, by DAG

    def delivered(self, delivery: Delivery) -> None:
        assert delivery.dag is not None
        place = delivery.dag["id"], delivery.dag["node"], delivery.dag["generation"]
        self.deliveries[place].append(delivery)


def judge(facts: RunFacts, history: History) -> list[str]:
    """Every violation, as a sentence."""
    known = {run.dag: run for run in facts.all}
    found = [
        f"{came[0].namespace} was given {came[0]} of a run that nobody began"
        for (dag_id, _, _), came in facts.deliveries.items()
        if dag_id not in known
    ]
    for run in facts.all:
        if run.events:
            faults = [
                *_replayed(run),
                *_once(run, facts),
                *_once_more(run, facts),
                *_outputs(run, facts, history),
                *_signals(run),
                *_updates(run),
            ]
            found += [f"run {run.id} ({run.dag}): {fault}" for fault in faults]
    return found


def _replayed(run: Run) -> Iterator[str]:
    state = run.shown["state"]
    may_fail = bool(run.input.get("strict") and run.failures() and not run.is_to_go_on)
    if (state == "failed" and not may_fail) or (state == "cancelled" and not run.is_stopped):
        yield f"it {state}, and nobody had asked for it: {run.shown}"
    try:
        core = replay({"events": run.events, "seen": run.seen}, stroll)
    except TurnFailed as error:
        yield f"its history does not replay: {error}"
        return
    if state in ("succeeded", "failed") and (left := core.unrecorded()):
        yield f"it {state}, and its code asks for {left}"
    [started, *_] = run.events
    if started["data"]["input"] != run.input:
        yield f"it began with {started['data']['input']}, and was given {run.input}"
    if state == "succeeded" and run.shown["output"] != (told := _told(run)):
        yield f"its output is {run.shown['output']}, and its history tells {told}"


def _told(run: Run) -> list[Any]:
    """What the code was told of calls and signals, in the order in which it asks."""
    live = [event for event in run.events if not event.get("void")]
    ends = {event["key"]: event for event in live if event.get("state") in ENDS}
    keys = [event["key"] for event in live if event["kind"] == "item" and event["state"] == "added"]
    calls = [ends[key].get("output") if ends[key]["state"] == "succeeded" else ends[key]["state"] for key in keys]
    signals = _sent(run, "go")
    return calls + signals[: run.input["signals"]]


def _once(run: Run, facts: RunFacts) -> Iterator[str]:
    items = [event for event in run.events if event["kind"] == "item"]
    ends = [event for event in items if event["state"] != "added"]
    keys = {
        "added": [event["key"] for event in items if event["state"] == "added"],
        "told to have ended": [event["key"] for event in ends if not event.get("void")],
        "ended": [
            (event["key"], event.get("generation") or 1) for event in ends if event["key"] not in run.replaced
        ],
    }
    for what, found in keys.items():
        if len(found) != len(set(found)):
            yield f"calls were {what} twice: {found}"
    added = {event["key"] for event in run.events if event["kind"] == "item" and event["state"] == "added"}
    for (dag_id, key, generation), came in facts.deliveries.items():
        if dag_id == run.dag and key not in added:
            yield f"{key} came, which its code has not asked for: {came[0]}"
        if dag_id == run.dag and len(ids := {one.id for one in came}) > 1:
            yield f"generation {generation} of {key} is {len(ids)} items: {sorted(ids)}"


def _once_more(run: Run, facts: RunFacts) -> Iterator[str]:
    """A call is done once more where somebody asks for that, and where it has not succeeded."""
    done = {
        (event["key"], event.get("generation") or 1)
        for event in run.events
        if event["kind"] == "item" and event["state"] == "succeeded"
    }
    for (dag_id, key, generation), came in facts.deliveries.items():
        if dag_id != run.dag or generation == 1:
            continue
        asked = [retry.sent for retry in run.retries if retry.key == key]
        if len(asked) < generation - 1 or min(asked) > came[0].done:
            yield f"{key} came in generation {generation}, which was asked for at {asked}: {came[0]}"
        if any((key, earlier) in done for earlier in range(1, generation)):
            yield f"{key} had succeeded, and came in generation {generation}: {came[0]}"


def _outputs(run: Run, facts: RunFacts, history: History) -> Iterator[str]:
    for event in map(Event.parse, run.events):
        if event.kind != "item" or event.state != "succeeded":
            continue
        assert run.dag is not None
        ids = {one.id for one in facts.deliveries.get((run.dag, event.key, event.generation), ())}
        given = [word.given.get("output") for word in history.acked(ids)] + run.replaced.get(event.key, [])
        if event.output not in given:
            yield f"{event.key} gave {event.output}, and was acked with {given}"


def _signals(run: Run) -> Iterator[str]:
    came = _sent(run, "go")
    for signal in run.signals:
        count = came.count(signal.data)
        if count > 1 or (count == 1 and signal.known == {"fail"}) or (not count and "ok" in signal.known):
            yield f"signal {signal.data} ({signal.known}) came {count} times"
    if strange := set(came) - {signal.data for signal in run.signals}:
        yield f"it was given signals that nobody sent: {strange}"


def _sent(run: Run, name: str) -> list[Any]:
    """What was sent to it under a name, in the order in which it is told."""
    told = [event["data"] for event in run.events if event["kind"] == "signal"]
    return [data.get("data") for data in told if data["name"] == name]


def _updates(run: Run) -> Iterator[str]:
    """Each is told once and has one answer, which is what the code says to it, or that it ended before."""
    came = _sent(run, "ask")
    for update in run.updates:
        count = came.count(update.data)
        if count > 1 or (count == 1 and update.known == {"fail"}) or (not count and "ok" in update.known):
            yield f"update {update.data} ({update.known}) came {count} times"
        answers = update.answers
        if run.is_reset:  # it may be answered after its sender was told that the run had ended before
            answers = [answer for answer in answers if "ended before" not in str(answer["error"])] or answers[:1]
        if any(answer != answers[0] for answer in answers):
            yield f"update {update.id} was answered {update.answers}"
        if "ok" in update.known and not update.answers:
            yield f"update {update.id} was taken, and is not answered: {run.shown}"
        for answer in update.answers[:1]:
            said = answer["output"]
            is_said = answer["status"] == "done" and isinstance(said, dict) and said["got"] == update.data
            is_late = answer["status"] == "failed" and "ended before" in str(answer["error"])
            if not is_said and not is_late:
                yield f"update {update.data} was answered {answer}"
    if strange := set(came) - {update.data for update in run.updates}:
        yield f"it was given updates that nobody sent: {strange}"
