"""Made from `aio/events.py` by `tests/unit/headgate/unasync.py`; change that one."""

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any

from headgate import wire
from headgate._calls.verbs import Call
from headgate._http.transport import SyncTransport
from headgate.errors import BadAnswer, ConnectionFailed, HeadgateError

Ask = Callable[[Mapping[str, Any]], Call[wire.DagEvent]]


def follow(transport: SyncTransport, ask: Ask, after: str | None) -> Generator[wire.DagEvent, None, None]:
    """The events after `after`, until the one that ends the DAG; a stream that ends earlier is asked for again.

    Raises:
        HeadgateError: the service refuses, or cannot be reached for as long as a call would be tried.
    """
    attempt = 0
    over = False
    while not over:
        call = ask({"after": after})
        attempt += 1
        answered = False
        try:
            with closing(transport.lines(call)) as lines:
                for line in lines:
                    answered = True
                    if line.startswith("data: "):
                        event = _parsed(call, line)
                        after, attempt = event.id, 0
                        over = event.kind == "dag" and event.state in ("succeeded", "failed", "cancelled")
                        yield event
            if over or not answered:
                return
            error: HeadgateError = ConnectionFailed("the event stream ended before its DAG")
        except HeadgateError as failure:
            error = failure
        delay_s = transport.exchange.delay_s(call, error, max(attempt, 1))
        if delay_s is None:
            raise error
        transport.pause(delay_s)
        over = False


def _parsed(call: Call[wire.DagEvent], line: str) -> wire.DagEvent:
    try:
        return call.parse(json.loads(line.removeprefix("data: ")))
    except ValueError as error:
        raise BadAnswer(f"an event of {call.target} makes no sense: {error}", outcome="unknown") from None
