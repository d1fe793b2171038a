"""OpenTelemetry, as an extra: a span where a job or flow is sent, and one for each run of a function.

The context travels in a call's payload, so all runs of a flow are of one trace, whoever runs them. A run links
to the runs whose results it is given: their contexts come along with these. An attempt that adds calls gives them
the context that it was sent with, as another attempt would.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from headgate._calls.dag import Node

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Carrier = dict[str, str]
SYSTEM: Final = "headgate"


class Tracing:
    """What an app tells OpenTelemetry."""

    def __init__(self, tracer: "Tracer | None" = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise RuntimeError("App(tracing=True) needs OpenTelemetry: pip install 'headgate[otel]'") from None
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = tracer or trace.get_tracer("headgate")

    @contextlib.contextmanager
    def sending(self, name: str, count: int) -> Iterator[Carrier]:
        """A span around sending; the context for what is sent."""
        attributes: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.type": "send",
            "messaging.destination.name": name,
            "messaging.batch.message_count": count,
        }
        kind = self._trace.SpanKind.PRODUCER
        with self._tracer.start_as_current_span(f"send {name}", kind=kind, attributes=attributes):
            yield self._carrier()

    @contextlib.contextmanager
    def running(
        self, name: str, sent_with: Mapping[str, str], upstream: list[Carrier], attributes: Mapping[str, Any]
    ) -> Iterator[Carrier]:
        """A span around a run of a function; the context for those who are given its result."""
        parent = self._propagator.extract(dict(sent_with))
        contexts = [
            self._trace.get_current_span(self._propagator.extract(carrier)).get_span_context()
            for carrier in upstream
        ]
        told: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.type": "process",
            "messaging.destination.name": name,
            **attributes,
        }
        with self._tracer.start_as_current_span(
            f"process {name}",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            attributes=told,
            links=[self._trace.Link(context) for context in contexts if context.is_valid],
        ):
            yield self._carrier()

    def _carrier(self) -> Carrier:
        carrier: Carrier = {}
        self._propagator.inject(carrier)
        return carrier


def told_with(payload: Any, carrier: Carrier | None) -> Any:
    """A payload with the context that it is sent with."""
    return {**payload, "trace": carrier} if carrier else payload


def tell(nodes: Iterable[Node], carrier: Carrier | None) -> None:
    """Give nodes the context that they are sent with."""
    for node in nodes if carrier else ():
        options: Any = node.options
        if "payload" in options:
            options["payload"] = told_with(options["payload"], carrier)


def upstream_of(inputs: Any, mark: str) -> list[Carrier]:
    """The contexts of the runs whose outputs these are."""
    found = inputs.values() if isinstance(inputs, dict) else ()
    return [
        output["trace"] for output in found if isinstance(output, dict) and mark in output and "trace" in output
    ]
