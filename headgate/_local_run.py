"""`headgate dag run FILE`: a DAG of shell commands, submitted to the service and run by a worker in this process.

The commands stay here: an item carries only its node's name, so nobody who can enqueue can make this
process run something that is not in the file.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Mapping
from typing import Any, Final

from headgate import wire
from headgate._async_handle import AsyncDagHandle
from headgate._output import Progress
from headgate.async_client import AsyncClient
from headgate.dag import Dag
from headgate.errors import Invalid, NoAnswer, Unavailable
from headgate.worker import Fail, Job, Retry, Worker

OUTPUT_CHARS_MAX: Final = 2_000
WATCH_S: Final = 0.5


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
    """Submit and run to the end; an interrupt cancels the DAG."""
    dag, commands, topic = prepared(spec)
    worker = Worker(client, wait_s=20, drain_s=0)

    @worker.task(topic, slots=slots)
    async def execute(job: Job) -> Any:
        assert job.dag is not None
        command = commands[job.dag.node]
        return None if command is None else await _execute(command, job)

    handle = await client.submit(dag)
    working = asyncio.create_task(worker.run(signals=False))
    try:
        await watch(handle, progress, working)
    except asyncio.CancelledError:
        await handle.cancel("interrupted")
        raise
    finally:
        worker.stop()
        await asyncio.wait([working])
    working.result()
    return handle


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


async def _execute(command: str, job: Job) -> dict[str, str]:
    assert job.dag is not None
    names = {"HEADGATE_DAG": job.dag.id, "HEADGATE_NODE": job.dag.node, "HEADGATE_ATTEMPT": str(job.attempt)}
    process = await asyncio.create_subprocess_shell(
        command,
        env={**os.environ, **names},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        raise
    tail = output.decode(errors="replace")[-OUTPUT_CHARS_MAX:]
    if process.returncode:
        problem = f"exit code {process.returncode}\n{tail}"
        raise Fail(problem) if process.returncode in (126, 127) else Retry(problem)
    return {"output": tail}
