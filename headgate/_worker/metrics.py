"""A worker's numbers for Prometheus, as an extra, at a port of its own: how long handlers take, how busy it is.

Where a job came with a trace, its time has that trace as exemplar (in the OpenMetrics format, which Prometheus
asks for; it keeps exemplars with `--enable-feature=exemplar-storage`).
"""

import re
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from headgate._worker.job import Job
from headgate._worker.task import Task

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_BUCKETS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200)
_TRACE: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch


class WorkerMetrics:
    """What a worker tells; it is told at `http://0.0.0.0:{port}/metrics` while this is entered.

    Raises:
        RuntimeError: the extra is not installed.
    """

    def __init__(self, port: int, tasks: dict[str, Task]) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise RuntimeError(
                "Worker(metrics_port=) needs prometheus-client: pip install 'headgate[prometheus]'"
            ) from None
        self._library = prometheus_client
        self._port = port
        self._tasks = tasks
        self._server: Any = None
        self.registry: CollectorRegistry = prometheus_client.CollectorRegistry()
        self._seconds = prometheus_client.Histogram(
            "headgate_worker_job_seconds",
            "Time of a handler, by how its job ended: ack, nack, lost.",
            ["topic", "outcome"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(self)

    def ended(self, job: Job, outcome: str, seconds: float) -> None:
        """A handler has ended."""
        trace = trace_of(job)
        exemplar = None if trace is None else {"trace_id": trace}
        self._seconds.labels(job.topic, outcome).observe(seconds, exemplar)

    def collect(self) -> Iterable[Any]:
        """How busy the worker is, for a scrape."""
        families = self._library.metrics_core
        slots = families.GaugeMetricFamily(
            "headgate_worker_slots", "Jobs that it may run at once.", labels=["topic"]
        )
        busy = families.GaugeMetricFamily("headgate_worker_running", "Jobs that it runs.", labels=["topic"])
        for topic, task in list(self._tasks.items()):
            slots.add_metric([topic], task.slots)
            busy.add_metric([topic], task.running)
        return [slots, busy]

    def __enter__(self) -> "WorkerMetrics":
        self._server, _ = self._library.start_http_server(self._port, registry=self.registry)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def trace_of(job: Job) -> str | None:
    """The id of the trace that a job was sent in, if it was."""
    payload, headers = job.payload, job.headers or {}
    carrier = payload.get("trace") if isinstance(payload, dict) else None
    told = carrier.get("traceparent") if isinstance(carrier, dict) else headers.get("traceparent")
    found = _TRACE(told) if isinstance(told, str) else None
    return found.group(1) if found else None
