"""`headgate dag run FILE`: a DAG of shell commands, submitted to the service and run by a worker in this process.

The commands stay here: an item carries only its node's name, so nobody who can enqueue can make this
process run something that is not in the file. When this process is told to stop (Ctrl-C, SIGTERM, a terminal
that goes), the commands end first, then the DAG is cancelled.
"""

import asyncio
import secrets
import signal
from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

from headgate import wire
from headgate._calls.dag import Dag
from headgate._cli.dag.shell import Shell
from headgate._cli.output import Progress
from headgate._client.aio.client import AsyncClient
from headgate._client.aio.handle import AsyncDagHandle
from headgate._worker.worker import Fail, Job, Retry, Worker
from headgate.errors import HeadgateError, Invalid, NoAnswer, Unavailable

T = TypeVar("T")

WATCH_S: Final = 0.5
# Ctrl-C is the event loop's own.
_ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """A signal has ended the run. `code` is the exit code that says which."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


async def until_stopped(work: Awaitable[T]) -> T:
    """The result of `work`, which SIGTERM and SIGHUP cancel.

    Raises:
        Stopped: one of them has.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    came: list[int] = []

    def stop(number: int) -> None:
        came.append(number)
        task.cancel()

    heard = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    for number in heard:
        loop.add_signal_handler(number, stop, number)
    try:
        return await work
    except asyncio.CancelledError:
        if came:
            raise Stopped(came[0]) from None
        raise
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


def prepared(spec: Mapping[str, Any]) -> tuple[Dag, dict[str, str | None], str]:
    """The DAG to submit, the command of each node that runs here, and the topic they share.

    A node with `topic` and no `run` is left to other workers; one with neither is done as soon as it is its
    turn.

    Raises:
        Invalid: the file is not of that form.
    """
    topic = f"run/{secrets.token_hex(6)}"
    nodes = spec.get("nodes") if isinstance(spec, Mapping) else None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise Invalid("the file should hold an object with a list of nodes, each an object")
    commands: dict[str, str | None] = {}
    prepared_nodes = []
    for node in nodes:
        fields = dict(node)
        command = fields.pop("run", None)
        if command is not None and not isinstance(command, str):
            raise Invalid(f"`run` of node {fields.get('key')!r} should be a shell command, as text")
        if command is not None or "topic" not in fields:
            commands[str(fields.get("key"))] = command
            fields["topic"] = topic
            fields.setdefault("max_attempts", 1)
        prepared_nodes.append(fields)
    return Dag.from_spec({**spec, "nodes": prepared_nodes}), commands, topic


async def run(client: AsyncClient, spec: Mapping[str, Any], *, slots: int, progress: Progress) -> AsyncDagHandle:
    """Submit and run to the end; an interrupt cancels the DAG. What commands left running ends with this."""
    dag, commands, topic = prepared(spec)
    worker = Worker(client, wait_s=20, drain_s=0)
    shell = Shell()

    @worker.task(topic, slots=slots, max_attempts=0)
    async def execute(job: Job) -> Any:
        assert job.dag is not None
        command = commands[job.dag.node]
        return None if command is None else await _execute(shell, command, job)

    handle = await _submitted(client, dag, progress)
    working = asyncio.create_task(worker.run(signals=False))
    try:
        try:
            await watch(handle, progress, working)
        finally:
            worker.stop()
            try:
                await asyncio.wait([working])
            finally:
                await shell.close()
    except asyncio.CancelledError:
        await _cancel(handle, progress)
        raise
    working.result()
    return handle


async def _submitted(client: AsyncClient, dag: Dag, progress: Progress) -> AsyncDagHandle:
    """Submit. An interrupt meanwhile waits until it is known which DAG there is, and cancels that."""
    submitting = asyncio.create_task(client.submit(dag))
    try:
        return await asyncio.shield(submitting)
    except asyncio.CancelledError:
        await _cancel(await submitting, progress)
        raise


async def _cancel(handle: AsyncDagHandle, progress: Progress) -> None:
    try:
        await handle.cancel("interrupted")
    except HeadgateError as error:
        progress.note(f"the DAG was not cancelled ({error}): headgate dag cancel {handle.id}")


async def watch(handle: AsyncDagHandle, progress: Progress, beside: asyncio.Task[None] | None = None) -> wire.Dag:
    """Show progress until the DAG has ended, through restarts of the service."""
    while True:
        try:
            dag = await handle.wait(timeout_s=WATCH_S)
        except (NoAnswer, Unavailable) as error:
            progress.note(f"waiting for the DAG service: {error}")
            await asyncio.sleep(1)
            continue
        progress.update(dag)
        if dag.finished or (beside is not None and beside.done()):
            progress.close()
            return dag


async def _execute(shell: Shell, command: str, job: Job) -> dict[str, str]:
    assert job.dag is not None
    names = {"HEADGATE_DAG": job.dag.id, "HEADGATE_NODE": job.dag.node, "HEADGATE_ATTEMPT": str(job.attempt)}
    ended = await shell.run(command, names)
    if ended.code:
        problem = f"exit code {ended.code}\n{ended.tail}"
        raise Fail(problem) if ended.code in (126, 127) else Retry(problem)
    return {"output": ended.tail}
