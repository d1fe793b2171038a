"""`python -m examples.demo`: run two graphs, show them running, and check what happened."""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from examples import build_order, video_upload
from examples.demo.measure import Check, Report, measure
from examples.demo.screen import Screen
from examples.demo.stage import Stage, require_running, stage, workers
from examples.demo.trace import TraceWriter, read
from headgate import AsyncClient, AsyncDagHandle, HeadgateError
from headgate.wire import Dag, GraphView
from services.local.errors import LocalError
from services.local.process import Child

DAG_TIMEOUT_S = 60.0
FRAME_S = 0.1


class Run:
    """A DAG that ran to its end, before its traces are read."""

    def __init__(self, title: str, began: float, dag: Dag, graph: GraphView, results: Check) -> None:
        self.title, self.began, self.dag, self.graph, self.results = title, began, dag, graph, results


class Demo:
    """Both graphs, on a stage."""

    def __init__(self, on: Stage, children: list[Child], client: AsyncClient, screen: Screen) -> None:
        self._on = on
        self._children = children
        self._client = client
        self._screen = screen

    async def build(self) -> Run:
        """The build order of a package and of everything below it."""
        graph = build_order.load()
        counts = f"{len(graph['nodes'])} nodes, {len(graph['edges']):,} edges"
        self._screen.say(f"\nBuild digikam, a Debian package, after everything that it depends on: {counts}")
        handle = await self._client.submit(build_order.build_dag(graph))
        began = time.monotonic()
        await handle.release()
        dag = await self._watch(handle, began)
        outputs = {node.key: node.output for node in await handle.nodes()}
        view = await handle.graph()
        edges = {(edge.upstream, edge.downstream) for edge in view.edges}
        faults = differences(outputs, build_order.expected_digests(graph))
        if edges != {(dependency, dependent) for dependency, dependent in graph["edges"]}:
            faults.append("the service's graph has other edges than the package's")
        return Run("build order", began, dag, view, Check("each package's digest covers all below it", faults))

    async def upload(self) -> Run:
        """A video that is transcoded while it is uploaded."""
        video = video_upload.Video()
        self._screen.say(f"\nUpload a video in {video.chunks} chunks; each is transcoded as soon as it is there")
        handle = await video_upload.start(self._client, video)
        began = time.monotonic()
        with TraceWriter(self._on.traces / "upload.jsonl") as trace:
            uploading = asyncio.create_task(
                video_upload.upload(
                    handle, video, resolving=lambda node: trace.write("resolving", dag=handle.id, node=node)
                )
            )
            try:
                dag = await self._watch(handle, began, uploading)
            finally:
                uploading.cancel()
        published = (await handle.node("publish")).output
        faults = differences(published or {}, video_upload.expected_result(video))
        results = Check("the stitched video has every chunk, in order", faults)
        return Run("video upload", began, dag, await handle.graph(), results)

    async def _watch(
        self, handle: AsyncDagHandle, began: float, beside: "asyncio.Task[None] | None" = None
    ) -> Dag:
        async with asyncio.timeout(DAG_TIMEOUT_S):
            while True:
                dag = await handle.wait(timeout_s=FRAME_S)
                self._screen.progress(dag, time.monotonic() - began)
                if dag.finished:
                    return dag
                require_running(self._children)
                for task in (self._on.failed, beside):
                    if task is not None and task.done():
                        task.result()


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Where two mappings differ."""
    keys = sorted(found.keys() | expected.keys())
    return [
        f"{key}: {found.get(key)!r}, not {expected.get(key)!r}"
        for key in keys
        if found.get(key) != expected.get(key)
    ]


async def play(screen: Screen, workers_count: int) -> list[Report]:
    """Run both graphs on a stage of their own."""
    started = time.monotonic()
    screen.say("Starting Postgres, Valkey, the queue service (4 shards) and the DAG service (2 shards) ...")
    async with stage() as on:
        async with workers(on, workers_count) as children:
            screen.say(f"... and {workers_count} worker processes: ready after {time.monotonic() - started:.1f} s")
            async with AsyncClient(queue_url=on.queue_url, dag_url=on.dag_url, namespace="default") as client:
                demo = Demo(on, children, client, screen)
                runs = [await demo.build(), await demo.upload()]
        traces = read(on.traces)
    return [
        measure(run.title, run.dag, run.graph, traces[run.dag.id], began=run.began, results=run.results)
        for run in runs
    ]


async def until_signal(work: Coroutine[Any, Any, list[Report]]) -> list[Report] | None:
    """Do the work; on SIGINT or SIGTERM give it up, wait until it has cleaned up, and answer None."""
    loop = asyncio.get_running_loop()
    working = asyncio.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, working.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        return await working
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when every check has passed."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description="Run two real graphs and check them."
    )
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="worker processes (4)")
    options = parser.parse_args(arguments)
    screen = Screen(sys.stdout)
    try:
        reports = asyncio.run(until_signal(play(screen, options.workers)))
    except (LocalError, HeadgateError, TimeoutError, RuntimeError) as error:
        screen.say(f"demo: {error or 'a graph did not end in time'}")
        return 1
    if reports is None:
        screen.say("demo: stopped")
        return 130
    screen.table(reports)
    return 0 if all(report.passed for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
