"""One run's rows in memory, changed as the DAG service changes them: the log, the nodes, and turns that are
commits.

Tests of workflows run on it, and the worker's driver is tested against it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from headgate.workflow.commands import canonical
from headgate.workflow.events import NODES, Event
from headgate.workflow.turns import Diverged, Lease, Page, RunFinished, Turn, TurnAnswer, TurnLost

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)
PAGE_EVENTS_MAX: Final = 1_000
_UNFINISHED: Final = "running"


class MemoryRun:
    """`clock` tells the time of each event. `park` is told of a generation that waits, `wake` when it need not."""

    def __init__(
        self,
        type: str = "workflow",
        input: Any = None,
        *,
        id: str = "run",
        version: str | None = None,
        clock: Callable[[], datetime] = lambda: EPOCH,
    ) -> None:
        self.clock = clock
        self.turn_number = 0
        self.seen = 0
        self.generation = 1
        self.parked = False
        self.state = _UNFINISHED
        self.output: Any = None
        self.error: str | None = None
        self.next_input: Any = None
        self.stuck: Mapping[str, Any] | None = None
        self.stuck_attempts = 0
        self.resets = 0
        self.published: dict[str, Any] = {}
        # Of updates, by their ids; None until code has answered.
        self.answers: dict[str, dict[str, Any] | None] = {}
        self.received: dict[str, int] = {}
        # Each node's kind, spec and state, by key.
        self.nodes: dict[str, dict[str, Any]] = {}
        # Written down without a result: the worker that has the run is at them.
        self.running_steps: set[str] = set()
        self._lines: list[str] = []
        self.markers: dict[str, int] = {}
        self._last_told = 0
        self._signals: dict[str, int] = {}
        self._signal_ids: set[str] = set()
        self._last_digest: str | None = None
        data = {"id": id, "run": f"{id}/1", "type": type, "version": version, "input": input}
        self._append("run", "", "started", data={name: value for name, value in data.items() if value is not None})

    # What happens to a run

    @property
    def is_ended(self) -> bool:
        return self.state != _UNFINISHED

    @property
    def is_awake(self) -> bool:
        """Whether the decider's item is there to be delivered."""
        return not self.parked and not self.is_ended

    @property
    def is_idle(self) -> bool:
        """Whether code has seen all that it is told, and no step runs."""
        return self._last_told <= self.seen and not self.running_steps

    @property
    def lease(self) -> Lease:
        return Lease("run", self.generation, self.secret(self.generation))

    @staticmethod
    def secret(generation: int) -> str:
        return f"secret of {generation}"

    def finish(
        self, key: str, state: str = "succeeded", *, output: Any = None, error: str | None = None
    ) -> Event | None:
        """A node has ended; None where it had already, or the run has."""
        node = self.nodes[key]
        if self.is_ended or node["state"] != "added":
            return None
        node["state"] = state
        self.running_steps.discard(key)
        return self._append(node["kind"], key, state, output=output, error=error)

    def update(self, name: str, data: Any = None, *, id: str) -> Event | None:
        """A signal whose sender waits for `answers[id]`."""
        event = self.signal(name, data, id, asks=True)
        if event is not None:
            self.answers[id] = None
        return event

    def signal(self, name: str, data: Any = None, id: str | None = None, *, asks: bool = False) -> Event | None:
        """None where a signal of this id is there already, or the run has ended."""
        if self.is_ended or (id is not None and id in self._signal_ids):
            return None
        if id is not None:
            self._signal_ids.add(id)
        number = self._signals[name] = self._signals.get(name, 0) + 1
        told = {"name": name, "data": data, "id": id, "asks": asks or None}
        told = {key: value for key, value in told.items() if value is not None}
        return self._append("signal", f"signal:{name}#{number}", "received", data=told)

    def cancel(self, reason: str | None = None) -> Event | None:
        """Ask the run to end; its code may clean up."""
        return None if self.is_ended else self._append("run", "", "cancel_requested", data={"reason": reason})

    def resume(self) -> None:
        """A stuck run goes on, with code that was mended."""
        self.stuck = None
        self._new_generation()

    def reset(self, event: int, reason: str | None = None) -> None:
        """Code goes on from an earlier event: what it asked for since is void, facts stay.

        Raises:
            ValueError: code is told of no such event.
        """
        told = [each.event for each in self.events() if each.is_told and each.void is None]
        if event not in told:
            raise ValueError(f"code is told of no event {event}")
        self._rewrite(event, {"event": event, "reason": reason})

    def replace(self, outputs: Mapping[str, Any], retry: Sequence[str] = ()) -> None:
        """A run that is stuck or has failed goes on with other outputs of what has ended, or does it once more.

        Raises:
            KeyError: nothing of this key has ended.
        """
        ends = {
            each.key: each
            for each in self.events()
            if each.is_told and each.void is None and each.key in self.nodes
        }
        first = min(ends[key].event for key in (*outputs, *retry))
        for key in (*outputs, *retry):
            self._take_back(ends[key])
        for key in retry:
            self.nodes[key]["state"] = "added"
            self.running_steps |= {key} if ends[key].kind == "step" else set()
        said = {"replaced": sorted(outputs), "retried": sorted(retry)}
        self._rewrite(first, {"event": first} | {name: keys for name, keys in said.items() if keys}, outputs)

    def _take_back(self, end: Event) -> None:
        """Nobody is told of this end any more. One that is its command's record too leaves that."""
        self._change(end.event, void=self.resets + 1)
        if end.after is not None:
            self._change(end.event, void=None, state="added", output=None, error=None)
            self._append(end.kind, end.key, end.state, output=end.output, error=end.error, void=self.resets + 1)

    def _rewrite(self, first: int, data: dict[str, Any], outputs: Mapping[str, Any] | None = None) -> None:
        self.resets += 1
        number = self.resets
        gone: set[str] = set()
        for each in self.events():
            if each.after is not None and each.after >= first and each.void is None:
                self._change(each.event, void=number)
                gone |= {each.key} if each.kind in NODES else set()
                if each.kind == "marker":
                    del self.markers[each.key.removeprefix("marker:")]
        for each in self.events():
            is_cancel = each.state == "cancel_requested" and each.event >= first
            if each.void is None and each.after is None and (each.key in gone or is_cancel):
                self._change(each.event, void=number)
        for key in gone:
            self.nodes[key]["state"] = "void"
        self.running_steps -= gone
        for key, output in (outputs or {}).items():
            self.nodes[key]["state"] = "succeeded"
            self._append(self.nodes[key]["kind"], key, "succeeded", output=output)
        told = [each.event for each in self.events() if each.is_told and each.void is None]
        if since := [each for each in told if each >= first]:
            self._change(min(since), reset=number)
        self._append("run", "", "reset", data={"reset": number, **data})
        self.seen = min(self.seen, max((each for each in told if each < first), default=0))
        self._last_told = max(told)
        self.state, self.output, self.error, self.next_input, self.stuck = _UNFINISHED, None, None, None, None
        self._new_generation()

    def _change(self, event: int, **fields: Any) -> None:
        self._lines[event - 1] = json.dumps(_parsed(self._lines[event - 1])._replace(**fields).body())

    def lose_item(self) -> None:
        """The decider's item ended, died or was lost without a turn that parked: it gets another."""
        if self.is_awake:
            self._new_generation()

    # What a decider does

    def history(self, lease: Lease, after: int, limit: int = PAGE_EVENTS_MAX) -> Page:
        self._check(lease)
        lines = self._lines[after : after + limit]
        more = after + limit < len(self._lines)
        return Page(list(map(_parsed, lines)), self.seen, self.turn_number, dict(self.markers), more)

    def turn(self, lease: Lease, turn: Turn) -> TurnAnswer:
        """One commit, or nothing. With a `wait_s` a run that has nothing to be told is not parked: whoever waits
        for its events sends the same turn again, without one, in the end.

        Raises:
            TurnLost, RunFinished, Diverged
        """
        digest = canonical({name: value for name, value in turn.body().items() if name != "wait_s"})
        if turn.turn == self.turn_number and digest == self._last_digest:
            self._rest(turn)
            return self._answer(turn)
        self._check(lease)
        if turn.turn != self.turn_number + 1:
            raise TurnLost(f"turn {turn.turn} came after turn {self.turn_number}")
        if turn.stuck is not None:
            self.stuck, self.stuck_attempts = turn.stuck, self.stuck_attempts + 1
            self.turn_number, self._last_digest = turn.turn, digest
            self._park()
            return self._answer(turn)
        self._refuse_diverging(turn)
        for command in turn.commands:
            self._apply(command)
        for result in turn.results:
            self.finish(result["key"], result["state"], output=result.get("output"), error=result.get("error"))
        self.seen, self.turn_number, self._last_digest = turn.seen, turn.turn, digest
        self.received = dict(turn.received)
        self.stuck, self.stuck_attempts = None, 0
        self._rest(turn)
        return self._answer(turn)

    def _rest(self, turn: Turn) -> None:
        if self.is_awake and self.is_idle and turn.generation == self.generation and not turn.wait_s:
            self._park()

    def _answer(self, turn: Turn) -> TurnAnswer:
        parked = self.parked or turn.generation != self.generation
        events = [] if parked or self.is_ended else list(map(_parsed, self._lines[turn.last :]))
        return TurnAnswer(self.turn_number, events, parked=parked, ended=self.is_ended)

    def _check(self, lease: Lease) -> None:
        if self.is_ended:
            raise RunFinished(f"the run has {self.state}")
        if lease.generation != self.generation or self.parked or lease.secret != self.secret(self.generation):
            raise TurnLost(f"generation {lease.generation} of the decider is over")

    def _refuse_diverging(self, turn: Turn) -> None:
        """All of it, before anything is written."""
        if not self.seen <= turn.seen <= len(self._lines):
            raise Diverged(f"seen goes from {self.seen} to {turn.seen} of {len(self._lines)} events")
        new: set[tuple[str, str, int]] = set()
        for command in turn.commands:
            kind, key, after = command["kind"], command["key"], command["after"]
            if not self.seen < after <= len(self._lines):
                raise Diverged(f"{kind} {key} is asked for after event {after}, which was seen already")
            if (kind, key, after) in new or (kind in NODES and key in self.nodes):
                raise Diverged(f"there is {kind} {key} already")
            new.add((kind, key, after))
        waiting = set(self.running_steps)
        for command in turn.commands:
            waiting |= {command["key"]} if command["kind"] == "step" else set()
            waiting -= {command["key"]} if command["kind"] == "cancel" else set()
        for result in turn.results:
            if result["key"] not in waiting:
                raise Diverged(f"the result of {result['key']} is none that the run waits for")
            waiting.remove(result["key"])

    def _apply(self, command: Mapping[str, Any]) -> None:
        kind, key, spec = command["kind"], command["key"], command["spec"]
        record = {"fingerprint": command["fingerprint"], "shown": command["shown"]}
        state = "succeeded" if kind == "marker" else "added"
        event = self._append(kind, key, state, data=record, after=command["after"])
        if kind in NODES:
            self.nodes[key] = {"kind": kind, "spec": spec, "state": "added", "after": event.event}
            if kind == "step":
                self.running_steps.add(key)
        elif kind == "marker":
            self.markers[key.removeprefix("marker:")] = command["after"]
        elif kind == "cancel":
            self.finish(key, "cancelled")
        elif kind == "publish":
            self.published[key] = spec["value"]
        elif kind == "answer":
            self.answers[spec["id"]] = {name: value for name, value in spec.items() if name != "id"}
        elif kind == "end":
            self._end(spec)

    def _end(self, spec: Mapping[str, Any]) -> None:
        for key, node in self.nodes.items():
            # What was sent and started goes its way; the rest of the run is over.
            if node["state"] == "added" and node["kind"] not in ("send", "start"):
                self.finish(key, "cancelled")
        self.state = spec["state"]
        self.output, self.error, self.next_input = spec.get("output"), spec.get("error"), spec.get("input")

    def _park(self) -> None:
        self.generation += 1
        self.parked = True

    def _new_generation(self) -> None:
        self.generation += 1
        self.parked = False

    def _append(self, kind: str, key: str, state: str, **more: Any) -> Event:
        event = Event(len(self._lines) + 1, self.clock(), kind, key, state=state, **more)
        self._lines.append(json.dumps(event.body()))
        if event.is_told and event.void is None:
            self._last_told = event.event
            if self.stuck is None:
                self.parked = False
        return event

    def events(self, after: int = 0) -> list[Event]:
        """The log behind an event. Values are made anew each time: what code does to one stays with it."""
        return list(map(_parsed, self._lines[after:]))

    def lines(self) -> Sequence[str]:
        return self._lines

    def __len__(self) -> int:
        return len(self._lines)


def _parsed(line: str) -> Event:
    return Event.parse(json.loads(line))
