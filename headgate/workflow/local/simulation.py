"""Workflows under test: no service, a clock that jumps, tasks that do what the test says.

from headgate.testing import explore, replay, simulate

done = simulate(order, cart).on("card/charge", "r-1", fails=2, takes_s=300).signal("approval", at_s=60)
assert done.output == {"receipt": "r-1"}
assert done.elapsed_s > 600
explore(done, seeds=200)          # other orders of events, and a crash after each
done.save("run.json")             # as `headgate workflow history` does
replay("run.json", order)         # the code against what it did then
"""

import heapq
import json
import random
import threading
from asyncio import events as asyncio_events
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from headgate.workflow.commands import Command, canonical
from headgate.workflow.events import Event, markers_of
from headgate.workflow.guard import guard
from headgate.workflow.local.memory import EPOCH, MemoryRun
from headgate.workflow.local.mocks import FAILED, FOR_EVER, Mock, attempts, done, finished, graph_played
from headgate.workflow.replay import Replay
from headgate.workflow.turns import Turn

T = TypeVar("T")

NODES_MAX: Final = 1_000_000
HISTORIES_MAX: Final = 100
# What one event's code may run in a test before it is taken for endless.
HANDLES_MAX: Final = 10_000_000


class Stalled(AssertionError):
    """Nothing can happen any more, and the workflow still waits."""


@runtime_checkable
class _TypedFunction(Protocol):
    """A function of an `App`."""

    topic: str

    def in_test(self, output: Any) -> Callable[[Any], Any]: ...


@dataclass(slots=True)
class Played:
    """How a run went. `state` is succeeded, failed, cancelled or continued."""

    run: MemoryRun
    elapsed_s: float

    @property
    def outcome(self) -> tuple[str, Any]:
        return self.run.state, self.run.output if self.run.error is None else self.run.error


class Simulation:
    """A run of a workflow on a virtual clock; it is played when its end is first looked at."""

    def __init__(
        self, function: Callable[..., Any], *args: Any, id: str = "simulated", type: str | None = None
    ) -> None:
        if len(args) > 1:
            raise TypeError("a workflow has one input: give one object with all of it")
        self.function = function
        self.input = args[0] if args else None
        self.id = id
        self.type = type or function.__name__
        self.watched = True
        self._mocks: dict[str, Mock] = {}
        self._from_outside: list[tuple[float, str, str, Any]] = []
        self._played: Played | None = None

    def on(
        self,
        what: str | Callable[..., Any],
        output: Any = None,
        *,
        fails: int = 0,
        error: str | None = None,
        takes_s: float = 0.0,
        workflow: Callable[..., Any] | None = None,
    ) -> "Simulation":
        """What happens to a task of this topic, a step of this function (or name), a child of this type; or to
        calls of an `App`'s function, whose output is given as it returns it.

        output: its output, or a function of its payload (or arguments) that makes it, or raises.
        fails: so many attempts fail before; where it has no more attempts than that, it fails.
        error: with what they fail; without `fails` each attempt does.
        takes_s: each attempt takes so long.
        workflow: a child runs this, with the same mocks.
        """
        if isinstance(what, _TypedFunction):
            name, output = what.topic, what.in_test(output)
        else:
            name = what if isinstance(what, str) else what.__name__
        fails = FOR_EVER if error is not None and not fails else fails
        self._mocks[name] = Mock(output, fails, error or FAILED, takes_s, workflow)
        self._played = None
        return self

    def signal(self, name: str, data: Any = None, *, at_s: float = 0.0) -> "Simulation":
        """A signal comes so long after the start."""
        self._from_outside.append((at_s, "signal", name, data))
        self._played = None
        return self

    def update(self, name: str, data: Any = None, *, id: str | None = None, at_s: float = 0.0) -> "Simulation":
        """An update comes so long after the start; `answers` has its answer by its id, which is its name by
        default."""
        self._from_outside.append((at_s, f"update {id or name}", name, data))
        self._played = None
        return self

    def cancel(self, reason: str | None = None, *, at_s: float = 0.0) -> "Simulation":
        """Somebody cancels the run so long after its start."""
        self._from_outside.append((at_s, "cancel", "", reason))
        self._played = None
        return self

    def unguarded(self) -> "Simulation":
        """Do not watch what the code calls: faster, and for debuggers and coverage, which watch in the same
        way."""
        self.watched = False
        return self

    # How it went

    def run(self) -> Played:
        """Play it now.

        Raises:
            Stalled: the workflow waits for what does not come.
            Mismatch, Nondeterministic: the code is no function of its history.
        """
        if self._played is None:
            self._played = _apart(partial(_play, self))
        return self._played

    @property
    def state(self) -> str:
        return self.run().run.state

    @property
    def output(self) -> Any:
        """What the workflow returned.

        Raises:
            AssertionError: it did not succeed; the message has its error.
        """
        run = self.run().run
        if run.state != "succeeded":
            raise AssertionError(f"the workflow has {run.state}" + (f":\n{run.error}" if run.error else ""))
        return run.output

    @property
    def error(self) -> str | None:
        return self.run().run.error

    @property
    def next_input(self) -> Any:
        """What it continued as new with."""
        return self.run().run.next_input

    @property
    def published(self) -> dict[str, Any]:
        return self.run().run.published

    @property
    def answers(self) -> dict[str, dict[str, Any] | None]:
        """What updates were answered, by their ids: `{state, output | error}`, None where nothing was."""
        return self.run().run.answers

    @property
    def elapsed_s(self) -> float:
        return self.run().elapsed_s

    @property
    def history(self) -> list[Event]:
        return self.run().run.events()

    @property
    def asked(self) -> list[str]:
        """The keys of all that the code asked for, in order."""
        return [event.key for event in self.history if event.is_record and event.key]

    def save(self, path: str | Path) -> None:
        """Write the history to a file that `replay` takes."""
        Path(path).write_text(json.dumps(saved(self.run().run, self.type), indent=1))

    # Used by a play

    def mock(self, name: str) -> Mock | None:
        return self._mocks.get(name)

    @property
    def from_outside(self) -> list[tuple[float, str, str, Any]]:
        return self._from_outside

    def child(self, function: Callable[..., Any], input: Any) -> "Simulation":
        found = Simulation(function, input, id=f"{self.id}/child")
        found._mocks = self._mocks
        found.watched = self.watched
        return found

    @property
    def guard(self) -> Callable[[], AbstractContextManager[None]] | None:
        return partial(guard, self.function) if self.watched else None


def simulate(function: Callable[..., Any], *args: Any, id: str = "simulated") -> Simulation:
    """A run of this workflow, with this input, that no service knows of."""
    return Simulation(function, *args, id=id)


@dataclass(slots=True)
class Explored:
    """The ends that were seen, and how often; `outputs` are those of runs that succeeded, each once. `histories`
    are those of the first runs."""

    ends: Counter[str] = field(default_factory=Counter)
    histories: list[list[Event]] = field(default_factory=list)

    @property
    def outputs(self) -> list[Any]:
        ends = [json.loads(end) for end in self.ends]
        return [what for state, what in ends if state == "succeeded"]


def explore(
    what: "Simulation | Callable[..., Any]", *args: Any, seeds: int = 100, first_seed: int = 0, crash: bool = True
) -> Explored:
    """Play a simulation in random orders: whatever may happen next does, timers fire late, and after each event
    the code is dropped and replayed from the beginning.

    Raises:
        AssertionError: some order fails in another way than by the workflow's own end; it names its seed.
    """
    simulation = what if isinstance(what, Simulation) else Simulation(what, *args)
    found = Explored()
    for seed in range(first_seed, first_seed + seeds):
        try:
            chance = random.Random(seed)  # noqa: S311 (choices of a test)
            played = _apart(partial(_play, simulation, chance, crash))
        except Exception as error:
            raise AssertionError(f"with seed {seed}: {error}") from error
        found.ends[canonical(played.outcome)] += 1
        if len(found.histories) < HISTORIES_MAX:
            found.histories.append(played.run.events())
    return found


def replay(
    history: str | Path | Mapping[str, Any] | Sequence[Event | Mapping[str, Any]],
    function: Callable[..., Any],
    *,
    watched: bool = True,
) -> Replay:
    """The code against a run's history: a file of `headgate workflow history`, or its content, or its events.

    Raises:
        Mismatch: the code asks for something else; it has the event, both sides and the line.
    """
    if isinstance(history, str | Path):
        found: Mapping[str, Any] | Sequence[Event | Mapping[str, Any]] = json.loads(Path(history).read_text())
    else:
        found = history
    whole: Mapping[str, Any] = found if isinstance(found, Mapping) else {"events": found}
    events = [each if isinstance(each, Event) else Event.parse(each) for each in whole["events"]]
    seen = whole.get("seen", events[-1].event if events else 0)
    return _apart(partial(_replayed, function, events, seen, watched))


def _replayed(function: Callable[..., Any], events: Sequence[Event], seen: int, watched: bool) -> Replay:
    run = Replay(
        function, seen=seen, markers=markers_of(events), guard=partial(guard, function) if watched else None
    )
    run.loop.handles_max = HANDLES_MAX
    run.feed_all(events)
    return run


def saved(run: MemoryRun, type: str) -> dict[str, Any]:
    return {"type": type, "seen": run.seen, "events": [event.body() for event in run.events()]}


@dataclass(order=True, slots=True)
class _Coming:
    """Something that will happen; `key` is of the node whose end it is."""

    at_s: float
    number: int
    happen: Callable[[], Any] = field(compare=False)
    key: str | None = field(compare=False, default=None)
    is_timer: bool = field(compare=False, default=False)


class _Play:
    """One run until its end. With `chance`, what happens next is chosen at random."""

    def __init__(self, simulation: Simulation, chance: random.Random | None, crash: bool) -> None:
        self.simulation = simulation
        self.chance = chance
        self.crash = crash
        self.now_s = 0.0
        self.numbers: Iterator[int] = iter(range(NODES_MAX))
        self.coming: list[_Coming] = []
        self.run = MemoryRun(simulation.type, simulation.input, id=simulation.id, clock=self.time)
        self.core = self.new_core()

    def time(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now_s)

    def new_core(self) -> Replay:
        run, simulation = self.run, self.simulation
        core = Replay(simulation.function, seen=run.seen, markers=run.markers, guard=simulation.guard)
        core.loop.handles_max = HANDLES_MAX
        return core

    def play(self) -> Played:
        for at_s, verb, name, data in self.simulation.from_outside:
            happen: Callable[[], Any] = partial(self.run.signal, name, data)
            if verb == "cancel":
                happen = partial(self.run.cancel, data)
            elif verb != "signal":
                happen = partial(self.run.update, name, data, id=verb.removeprefix("update "))
            self.comes(at_s, happen)
        self.turns()
        while not self.run.is_ended:
            if not self.coming:
                raise Stalled(
                    f"nothing more happens, and the workflow waits for {self.core.is_waiting_for or 'a signal'} "
                    f"at {self.core.where()}"
                )
            self.next().happen()
            self.turns()
        return Played(self.run, self.now_s)

    def turns(self) -> None:
        """Tell the code what is new, and write what it asks for, until it waits for something to come."""
        run = self.run
        while run.is_awake:
            if self.crash:
                self.core.close()
                self.core = self.new_core()
            for event in run.events(self.core.last):
                self.core.feed(event)
            self.core.check()
            asked = self.core.unrecorded()
            if self.core.told == run.seen and not asked:
                return
            turn = Turn(
                run.generation,
                run.secret(run.generation),
                run.turn_number + 1,
                self.core.last,
                self.core.told,
                [command.body() for command in asked],
                received=dict(self.core.received),
            )
            run.turn(run.lease, turn)
            self.core.seen = run.seen
            if not run.is_ended:
                for command in asked:
                    self.begin(command)

    def comes(
        self, after_s: float, happen: Callable[[], Any], key: str | None = None, *, is_timer: bool = False
    ) -> None:
        heapq.heappush(self.coming, _Coming(self.now_s + after_s, next(self.numbers), happen, key, is_timer))

    def next(self) -> _Coming:
        if self.chance is None:
            found = heapq.heappop(self.coming)
            self.now_s = max(self.now_s, found.at_s)
            return found
        found = self.coming.pop(self.chance.randrange(len(self.coming)))
        heapq.heapify(self.coming)
        # Timers may be late, and are never early; all else takes as long as chance says.
        earliest_s = found.at_s if found.is_timer else self.now_s + self.chance.random()
        self.now_s = max(self.now_s, earliest_s)
        return found

    # What is asked for begins

    def begin(self, command: Command) -> None:
        spec, key = command.spec, command.key
        match command.kind:
            case "timer":
                after_s = (datetime.fromisoformat(spec["at"]) - EPOCH).total_seconds() - self.now_s
                self.comes(max(after_s, 0.0), partial(self.run.finish, key), key, is_timer=True)
            case "item":
                self.item(key, spec)
            case "step":
                self.step(command, spec)
            case "child":
                self.child(key, spec)
            case "sub":
                self.graph(key, spec["dag"])
            case "start":
                output = {"id": spec.get("id", key), "run": f"{spec.get('id', key)}/1"}
                self.ends(key, 0.0, *done(self.simulation.mock(spec["type"]), spec["input"], default=output))
            case "send":
                self.ends(key, 0.0, *done(self.simulation.mock(f"signal:{spec['name']}"), spec["data"]))
            case "cancel":
                self.coming = [each for each in self.coming if each.key != key]
                heapq.heapify(self.coming)

    def ends(self, key: str, takes_s: float, state: str, output: Any, error: str | None) -> None:
        self.comes(takes_s, partial(self.run.finish, key, state, output=output, error=error), key)

    def item(self, key: str, spec: Mapping[str, Any]) -> None:
        mock = self.simulation.mock(spec["topic"]) or Mock()
        takes_s, *end = attempts(mock, spec, spec["payload"])
        self.ends(key, takes_s + spec.get("delay_s", 0.0), *end)

    def step(self, command: Command, spec: Mapping[str, Any]) -> None:
        mock = self.simulation.mock(spec["name"])
        if mock is None:
            assert command.call is not None
            mock = Mock(lambda: finished(command.call))
        takes_s, *end = attempts(mock, {"max_attempts": 1, **spec}, *spec["args"])
        self.ends(command.key, takes_s, *end)

    def child(self, key: str, spec: Mapping[str, Any]) -> None:
        mock = self.simulation.mock(spec["type"]) or Mock()
        if mock.workflow is None:
            self.ends(key, mock.takes_s, *done(mock, spec["input"]))
            return
        played = _play(self.simulation.child(mock.workflow, spec["input"]))
        self.ends(key, played.elapsed_s, played.run.state, played.run.output, played.run.error)

    def graph(self, key: str, spec: Mapping[str, Any]) -> None:
        takes_s, state, output, error = graph_played(self.simulation.mock, spec)
        self.ends(key, takes_s, state, output, error)


def _play(simulation: Simulation, chance: random.Random | None = None, crash: bool = False) -> Played:
    play = _Play(simulation, chance, crash)
    played = play.play()
    play.core.close()
    run = played.run
    # Once more from the beginning: each event's commands are compared with those that were written.
    _replayed(simulation.function, run.events(), run.seen, simulation.watched).close()
    return played


def _apart(work: Callable[[], T]) -> T:
    """Do it where no event loop runs: here, or in a thread."""
    if asyncio_events._get_running_loop() is None:
        return work()
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="headgate-workflow-test", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]
