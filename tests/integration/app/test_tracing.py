"""Trace context on jobs and along the edges of a flow, over two workers."""

import asyncio
import secrets

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate import App, Client, JobCall
from headgate._app.tracing import Tracing
from services.local.stack import Stack


def traced(stack: Stack, namespace: str, exporter: InMemorySpanExporter) -> App:
    """The functions, in an app of their own with a tracer of its own, as in another process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    client = Client(queue_url=stack.queue_url, dag_url=stack.dag_url, namespace=namespace)
    app = App(namespace, client=client, tracing=Tracing(provider.get_tracer("test")))

    @app.job
    async def resize(src: str) -> str:
        return f"small {src}"

    @app.job
    def stitch(thumbs: list[str]) -> str:
        return ", ".join(thumbs)

    @app.job
    async def grow(count: int) -> list[JobCall[str]]:
        return [resize.call(f"s{number}") for number in range(count)]

    @app.job(result=False)
    async def note(text: str) -> None: ...

    return app


def of(spans: tuple[ReadableSpan, ...], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


async def test_a_flow_is_one_trace_over_two_workers(stack: Stack) -> None:
    namespace = f"traced-{secrets.token_hex(4)}"
    exporters = [InMemorySpanExporter() for _ in range(3)]
    caller, *apps = (traced(stack, namespace, exporter) for exporter in exporters)
    workers = [
        apps[0].worker(drain_s=2, wait_s=2, only=["resize", "grow", "note"]),
        apps[1].worker(drain_s=2, wait_s=2, only=["stitch"]),
    ]
    working = [asyncio.create_task(worker.run(signals=False)) for worker in workers]
    resize, stitch = caller.functions["resize"], caller.functions["stitch"]
    flow = caller.flow("album")
    album = flow.add(stitch.call([resize.call(src) for src in "ab"]))
    async with asyncio.timeout(60):
        assert await (await flow.start()).aresult(album) == "small a, small b"
        assert await (await caller.functions["grow"].enqueue(2)).aresult() == ["small s0", "small s1"]
        await caller.functions["note"].enqueue("n")
        while not of(exporters[1].get_finished_spans(), "process note"):
            await asyncio.sleep(0.02)
    for worker in workers:
        worker.stop()
    await asyncio.gather(*working)
    await caller.aclose()

    (sent,) = of(exporters[0].get_finished_spans(), "send album")
    (stitched,) = of(exporters[2].get_finished_spans(), "process stitch")
    resized = of(exporters[1].get_finished_spans(), "process resize")
    assert sent.context is not None
    below = [span for span in resized if span.parent and span.parent.span_id == sent.context.span_id]
    assert len(below) == 2
    assert stitched.parent is not None and stitched.parent.span_id == sent.context.span_id
    assert {span.context.trace_id for span in [*below, stitched] if span.context} == {sent.context.trace_id}
    assert {link.context.span_id for link in stitched.links} == {
        span.context.span_id for span in below if span.context
    }
    (grown,) = of(exporters[0].get_finished_spans(), "send grow")
    assert grown.context is not None
    assert len([span for span in resized if span.parent and span.parent.span_id == grown.context.span_id]) == 2
    (noted,) = of(exporters[0].get_finished_spans(), "send note")
    (run,) = of(exporters[1].get_finished_spans(), "process note")
    assert noted.context is not None
    assert run.parent is not None and run.parent.span_id == noted.context.span_id


def test_tracing_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry", None)
    with pytest.raises(RuntimeError, match=r"headgate\[otel\]"):
        App("x", tracing=True)
