"""A run's code against its history: events in, commands out, and nothing else.

    replay = Replay(order)
    for event in history:
        commands = replay.feed(event)

Each event is told by itself, in the order of the log, and the code runs until it waits for the next. So what it
asks for is a function of the log, however the log was cut into pages, and the record of it can be compared: per
event the set of (kind, key, fingerprint).
"""

import asyncio
import contextvars
import inspect
import logging
import math
from asyncio import events as asyncio_events
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from headgate.workflow.asked import Asked, Decoded, RunNode
from headgate.workflow.collector import collector_paused
from headgate.workflow.commands import Command, Place, canonical
from headgate.workflow.context import TIMER, Workflow, refuse_outside
from headgate.workflow.ending import check_ended_task, end_of
from headgate.workflow.errors import HistoryChanged, Mismatch, Nondeterministic, Refused, UnknownEvent
from headgate.workflow.events import ENDS, NODES, RECORDS, RESET, Event
from headgate.workflow.lines import last_line, takes_input, user_place, where_waits
from headgate.workflow.loop import TimerHandle, new_loop
from headgate.workflow.mailbox import Mailbox, Told
from headgate.workflow.matching import Made, Unrecorded
from headgate.workflow.updates import Handler, Updates, Validator, answered

SIGNAL: Final = "signal"

log = logging.getLogger("headgate.workflow")


class Replay:
    """One run of `function`, as far as the events that it was fed.

    seen: the last event all of whose commands are recorded; what the code asks for beyond it is new.
    markers: the run's recorded first answers of `patched`, see `events.markers_of`.
    guard: what watches the code while it runs, see `headgate.workflow.guard`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        seen: int = 0,
        markers: Mapping[str, int] | None = None,
        guard: Callable[[], AbstractContextManager[None]] | None = None,
        logger: logging.Logger = log,
    ) -> None:
        self.function = function
        self.seen = seen
        self.loop = new_loop(self._start_timer, self._drop_timer)
        self.id = self.run = self.type = ""
        self.version: str | None = None
        self.last = self.told = self.told_count = 0
        self.end: Command | None = None
        self.started: datetime
        self.now: datetime
        self._guard = guard
        self._logger = logger
        self._markers = dict(markers or {})
        self._unpatched: set[str] = set()
        self._main: asyncio.Task[Any] | None = None
        self._cancel_told = False
        self._counts: dict[str, int] = {}
        self._asked: dict[str, Asked] = {}
        self._made: Made = {}
        self._unrecorded = Unrecorded()
        self._reset = 0
        self._nodes: dict[str, RunNode] = {}
        self._steps: dict[str, Command] = {}
        self._mailbox = Mailbox(self.loop.create_future)
        self.updates = Updates(self.loop, self._answer)

    # Events in

    def feed(self, event: Event | Mapping[str, Any]) -> list[Command]:
        """Tell one event, which may be as a history's JSON has it; what the code asks for because of it.

        Raises:
            TurnFailed: the code and the history part, or the code cannot be replayed.
        """
        if not isinstance(event, Event):
            event = Event.parse(event)
        if event.event <= self.last:
            raise UnknownEvent(f"event {event.event} came after event {self.last}")
        self.last = event.event
        if event.void is not None:
            return []
        if event.kind == "run" and event.state == RESET:
            self._check_unchanged(event)
        self._reset = max(self._reset, event.reset or 0)
        if event.after is not None:
            self._unrecorded.match(event, self.where)
        elif event.kind in RECORDS or (event.kind in NODES and event.state == "added"):
            raise UnknownEvent(f"event {event.event} ({event.describe()}) does not say which event it is `after`")
        if self.end is not None or not event.is_told:
            return []
        self.told = event.event
        self.told_count += 1
        made: Made = {}
        self._made = made
        self._tell(event)
        self._run()
        if made:
            self._unrecorded.add(event.event, made)
        return list(made.values())

    def feed_all(self, events: Iterable[Event | Mapping[str, Any]]) -> list[Command]:
        """Tell several events; what is asked for beyond the record.

        Raises:
            TurnFailed: as `feed`; and where the code asks at an event up to `seen` for what was not recorded.
        """
        with collector_paused():
            for event in events:
                self.feed(event)
        self.check()
        return self.unrecorded()

    def check(self) -> None:
        """To be called when everything recorded was fed.

        Raises:
            Mismatch: something asked for at an event up to `seen` is not in the history.
        """
        self._unrecorded.check(self.seen)

    def unrecorded(self) -> list[Command]:
        """What was asked for and is not in the history as far as it was fed, in the order of asking."""
        return self._unrecorded.all()

    def learn(self, seen: int, markers: Mapping[str, int]) -> None:
        """What the service knows by now; to be told before the events of its answer."""
        self.seen = max(self.seen, seen)
        for name, after in markers.items():
            self._markers.setdefault(name, after)

    def steps(self) -> list[Command]:
        """The steps that the code waits for and that have no result yet; their `call` is to be made."""
        return list(self._steps.values())

    @property
    def open_count(self) -> int:
        return len(self._asked) + len(self._mailbox)

    @property
    def received(self) -> dict[str, int]:
        """How many signals of each name the code has received."""
        return self._mailbox.received

    @property
    def nodes(self) -> dict[str, RunNode]:
        """All that was asked for, in that order, by key, as far as the code was told."""
        self.check_in_task()
        return dict(self._nodes)

    @property
    def is_replaying(self) -> bool:
        return self.told <= self.seen

    @property
    def is_waiting_for(self) -> list[str]:
        """The keys of what has not ended, for people."""
        return [key for key, asked in self._asked.items() if not asked.ended]

    def close(self) -> None:
        """The run goes on elsewhere, or nowhere: what is left of the code goes without asking for anything."""
        self.loop.close_tasks()

    def __del__(self) -> None:
        self.close()

    def where(self) -> str:
        """The line at which the run's first task waits."""
        if self._main is None or self._main.done():
            return "the end of the workflow" if self._main else "before its first line"
        return where_waits(self._main.get_coro())

    # What the code is told

    def _tell(self, event: Event) -> None:
        kind = event.kind
        if kind in NODES:
            self._tell_end(event)
        elif kind == SIGNAL:
            self._hand_over(event)
        elif kind == "run" and event.state == "started":
            self._start(event)
        elif kind == "run" and event.state == "cancel_requested":
            main = self._check_started(event)
            self._advance(event.at)
            if not self._cancel_told:  # once, so that cleanup may await
                self._cancel_told = True
                main.cancel(_data_of(event).get("reason"))
        else:
            raise UnknownEvent(f"event {event.event} is of an unknown kind, {kind} {event.state}: use a newer SDK")

    def _advance(self, at: datetime) -> None:
        if at > self.now:
            self.now = at
            self.loop.now_s = (at - self.started).total_seconds()

    def _start(self, event: Event) -> None:
        if self._main is not None:
            raise UnknownEvent(f"event {event.event} starts a run that has begun")
        data = _data_of(event)
        self.id, self.run, self.type = data.get("id", ""), data.get("run", ""), data.get("type", "")
        self.version = data.get("version")
        self.started = self.now = event.at
        workflow = Workflow(self, self._logger)
        arguments = (workflow, data.get("input")) if takes_input(self.function) else (workflow,)
        coroutine = self.function(*arguments)
        if not inspect.iscoroutine(coroutine):
            raise TypeError(f"a workflow is an `async def`, which {self.function!r} is not")
        # Its context variables are its own: those of whoever feeds it differ by process.
        self._main = self.loop.create_task(coroutine, name="main", context=contextvars.Context())

    def _tell_end(self, event: Event) -> None:
        self._check_started(event)
        asked = self._asked.get(event.key)
        if event.state not in ENDS:
            raise UnknownEvent(f"event {event.event} ends {event.key} as {event.state!r}: use a newer SDK")
        self._advance(event.at)
        if asked is None or asked.ended:
            raise Mismatch(event.event, f"an end of {event.describe()}", None, self.where())
        self._steps.pop(event.key, None)
        asked.ended, asked.state, asked.output, asked.error = True, event.state, event.output, event.error
        self._nodes[event.key] = _node(asked.kind, event.state)
        if not asked.forked:
            del self._asked[event.key]
        if asked.timer is not None and asked.timer.when is not None and event.state == "succeeded":
            self._advance(self._due(asked.timer.when))
            self.loop.fire(asked.timer)
        elif asked.timer is not None and not asked.timer.cancelled():
            # It was cancelled as the run failed, and mended code still waits for its time.
            self._ask_for_timer(asked.timer, None)
        for waiter in asked.waiters:
            if not waiter.done():
                waiter.set_result(None)
        asked.waiters = []

    def _check_unchanged(self, event: Event) -> None:
        """Raises HistoryChanged where the code was told of what holds no more."""
        data = _data_of(event)
        if self.told >= data.get("event", 0) and self._reset < data.get("reset", 0):
            raise HistoryChanged(f"the run was reset to event {data.get('event')}: replay it from its beginning")
        # Where all that code was told of from that event on is void, no other event says so.
        self._reset = max(self._reset, data.get("reset", 0))

    def _check_started(self, event: Event) -> "asyncio.Task[Any]":
        if self._main is None:
            raise UnknownEvent(
                f"event {event.event} comes before the run's start; the history lacks its beginning"
            )
        return self._main

    # The code runs

    def _run(self) -> None:
        if self._guard is None:
            self._run_loop()
        else:
            with self._guard():
                self._run_loop()
        assert self._main is not None
        if (refused := self.updates.refused) is not None:
            raise Nondeterministic(f"{refused} ({last_line(refused)})") from refused
        if self._main.done() and self.end is None:
            self.end = end_of(self.function, self._main, self.told)
            self._made["end", ""] = self.end
            self.loop.close_tasks()

    def _run_loop(self) -> None:
        while True:
            try:
                return self.loop.run()
            except (SystemExit, KeyboardInterrupt) as error:
                check_ended_task(error)

    # What the code asks for; called by its `Workflow`

    def check_in_task(self, *, main: bool = False) -> None:
        """Raises Refused unless a task of the run is what asks; GeneratorExit where the run goes on elsewhere."""
        if self.loop.stopped:
            raise GeneratorExit
        if asyncio_events._get_running_loop() is not self.loop:
            refuse_outside("this is not the workflow's loop")
        task = asyncio.current_task(self.loop)
        if task is None:
            refuse_outside("this is a callback")
        if main and task is not self._main:
            raise Refused("only the run's first task may continue as new")

    def ask(
        self,
        kind: str,
        base: str,
        text: str,
        place: Place,
        call: Callable[[], Any] | None = None,
        *,
        forked: bool = False,
        compared: str | None = None,
        decoded: Decoded = None,
    ) -> str:
        """Ask for a node, of the next number of this name; its key. `compared` is what of it is compared where
        that is not all, `decoded` makes its result of its output."""
        self.check_in_task()
        key = self._add(kind, base, text, place, call, forked=forked, compared=compared)
        self._asked[key].decoded = decoded
        return key

    def _add(
        self,
        kind: str,
        base: str,
        text: str,
        place: Place,
        call: Callable[[], Any] | None = None,
        *,
        forked: bool = False,
        compared: str | None = None,
    ) -> str:
        number = self._counts[base] = self._counts.get(base, 0) + 1
        key = f"{base}#{number}~{self._reset}" if self._reset else f"{base}#{number}"
        command = Command(kind, key, text, self.told, place, compared)
        command.call = call
        self._made[kind, key] = command
        if kind == "step":
            self._steps[key] = command
        self._asked[key] = Asked(kind, key, forked)
        self._nodes[key] = _node(kind, "added")
        return key

    async def ask_and_wait(
        self,
        kind: str,
        base: str,
        text: str,
        place: Place,
        call: Callable[[], Any] | None = None,
        *,
        compared: str | None = None,
        decoded: Decoded = None,
    ) -> Any:
        asked = self._asked[self.ask(kind, base, text, place, call, compared=compared, decoded=decoded)]
        waiter = self.loop.create_future()
        asked.waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not asked.ended:
                self._cancel(asked, place)
            raise
        return asked.outcome()

    def forked(self, key: str) -> Asked:
        asked = self._asked.get(key)
        if asked is None or not asked.forked:
            raise KeyError(f"this run has forked no task {key!r}")
        return asked

    async def wait_for_fork(self, key: str) -> Any:
        asked = self.forked(key)
        if not asked.ended:
            waiter = self.loop.create_future()
            asked.waiters.append(waiter)
            await waiter
        return asked.outcome()

    def cancel_fork(self, key: str, place: Place) -> None:
        self.check_in_task()
        asked = self.forked(key)
        if asked.ended:
            return
        if (asked.kind, key) in self._made:
            asked.ended, asked.state = True, "cancelled"
            for waiter in asked.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            del self._made[asked.kind, key], self._nodes[key]
        else:
            self._made["cancel", key] = Command("cancel", key, "{}", self.told, place)

    def _cancel(self, asked: Asked, place: Place) -> None:
        """It is waited for no longer. What was asked for at this very event is not told at all."""
        if self.loop.stopped:
            return
        self._steps.pop(asked.key, None)
        if self._made.pop((asked.kind, asked.key), None) is not None:
            del self._asked[asked.key], self._nodes[asked.key]
        else:
            self._made["cancel", asked.key] = Command("cancel", asked.key, "{}", self.told, place)

    async def sleep_until(self, when: float) -> None:
        self.check_in_task()
        waiter = self.loop.create_future()
        handle = self.loop.call_at(when, _wake, waiter)
        try:
            await waiter
        finally:
            handle.cancel()

    def _due(self, when: float) -> datetime:
        """Rounded up to what the service's clock tells apart."""
        return self.started + timedelta(microseconds=math.ceil(round(when * 1e6, 3)))

    def _start_timer(self, handle: TimerHandle) -> None:
        self.check_in_task()
        self._ask_for_timer(handle, user_place())

    def _ask_for_timer(self, handle: TimerHandle, place: Place) -> None:
        assert handle.when is not None
        try:
            text = canonical({"at": self._due(handle.when).isoformat()})
        except (OverflowError, ValueError):
            raise ValueError(f"a delay of {handle.when - self.loop.now_s:g} s is no time to wait for") from None
        handle.key = self._add("timer", TIMER, text, place)
        self._asked[handle.key].timer = handle

    def _drop_timer(self, handle: TimerHandle) -> None:
        asked = self._asked.get(handle.key)
        if asked is not None and not asked.ended:
            self._cancel(asked, None)

    async def receive(self, name: str) -> Any:
        self.check_in_task()
        if self.updates.handles(name):
            raise Refused(f"signals of the name {name!r} go to the handler that `on_update` was given")
        told = await self._mailbox.receive(name)
        self._answer(told, *answered(told, "done"), None)
        return told.data

    def on_update(self, name: str, handler: Handler, validator: Validator | None) -> None:
        self.check_in_task()
        self.updates.add(name, handler, validator)
        for told in self._mailbox.take(name):
            self.updates.begin(told)

    def _answer(self, told: Told, text: str, compared: str | None, place: Place) -> None:
        """Tell whoever sent it, if that one waits to be told."""
        if told.id is not None:
            self._made["answer", told.key] = Command("answer", told.key, text, self.told, place, compared)

    def _hand_over(self, event: Event) -> None:
        self._check_started(event)
        self._advance(event.at)
        data = _data_of(event)
        told = Told(
            event.key, data.get("name", ""), data.get("data"), data.get("id") if data.get("asks") else None
        )
        if self.updates.handles(told.name):
            self._mailbox.count(told.name)
            self.updates.begin(told)
        else:
            self._mailbox.offer(told)

    def publish(self, key: str, text: str, place: Place) -> None:
        self.check_in_task()
        self._made.pop(("publish", key), None)
        self._made["publish", key] = Command("publish", key, text, self.told, place)

    def patched(self, name: str, place: Place) -> bool:
        self.check_in_task()
        marked = self._markers.get(name)
        if marked is None:
            if self.told <= self.seen or name in self._unpatched:
                self._unpatched.add(name)
                return False
            marked = self._markers[name] = self.told
        if marked == self.told:
            key = f"marker:{name}"
            self._made["marker", key] = Command("marker", key, "{}", self.told, place)
        return self.told >= marked


def _data_of(event: Event) -> Mapping[str, Any]:
    if not isinstance(event.data, dict):
        raise UnknownEvent(f"event {event.event} ({event.kind} {event.state}) has no `data`")
    return event.data


@cache
def _node(kind: str, state: str) -> RunNode:
    return RunNode(kind, state)


def _wake(waiter: "asyncio.Future[Any]") -> None:
    if not waiter.done():
        waiter.set_result(None)
