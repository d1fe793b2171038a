"""Following a DAG's events through cut streams, for coroutines."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from headgate import wire
from headgate._calls.verbs import Call
from headgate._http.transport import AsyncTransport
from headgate.errors import BadAnswer, ConnectionFailed, HeadgateError

Ask = Callable[[Mapping[str, Any]], Call[wire.DagEvent]]


async def follow(transport: AsyncTransport, ask: Ask, after: str | None) -> AsyncGenerator[wire.DagEvent, None]:
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
            async with aclosing(transport.lines(call)) as lines:
                async for line in lines:
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
        await transport.pause(delay_s)
        over = False


def _parsed(call: Call[wire.DagEvent], line: str) -> wire.DagEvent:
    try:
        return call.parse(json.loads(line.removeprefix("data: ")))
    except ValueError as error:
        raise BadAnswer(f"an event of {call.target} makes no sense: {error}", outcome="unknown") from None
