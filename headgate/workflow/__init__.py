"""Durable code: an async function whose run outlives every process, because its history says what it was told.

    @worker.workflow("order")
    async def order(wf: Workflow, cart: dict) -> dict:
        receipt = await wf.call("card/charge", cart["total"], max_attempts=5)
        async with asyncio.timeout(86_400):
            await wf.receive("approval")
        return {"receipt": receipt}

This package is the core, without I/O: it imports nothing but the standard library. `loop` is an event loop that
is a function of what it is given, `context` what code gets as `wf`, `replay` feeds events to code, collects what
it asks for and compares that with the record; `completing` awaits in the order of ends; `ending` is how code has
ended, `asked` what has not, `mailbox` the signals that wait, and `updates` those that are answered, `matching`
compares with the record, `collector` looks for garbage later; `events` and `commands` are what goes in and out,
`turns` is the commit that carries commands to the service; `lines` tells where in the code. `guard` and `lint`
find what does not replay; `local` has runs without a service, for the tests of users; `driving` runs cores against
the service; `errors`. docs/workflows.md has the events, the commands and the rules of a turn, exactly.
"""

from headgate.workflow.asked import RunNode
from headgate.workflow.commands import Command
from headgate.workflow.context import Backoff, CallOptions, RunOptions, Workflow
from headgate.workflow.errors import Mismatch, NodeFailed, Nondeterministic, Refused, TurnFailed
from headgate.workflow.events import Event
from headgate.workflow.replay import Replay

__all__ = [
    "Backoff",
    "CallOptions",
    "Command",
    "Event",
    "Mismatch",
    "NodeFailed",
    "Nondeterministic",
    "Refused",
    "Replay",
    "RunNode",
    "RunOptions",
    "TurnFailed",
    "Workflow",
]
