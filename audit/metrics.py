"""What an audit found, as a file that the node exporter's textfile collector or the like picks up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from audit.finding import KINDS, Finding


def write_metrics(path: Path, found: Iterable[Finding]) -> None:
    """Replace the file at once. Every kind is named, so that an alert sees a finding come and go."""
    registry = CollectorRegistry()
    findings = Gauge("headgate_audit_findings", "Findings of the last audit.", ["kind"], registry=registry)
    counts = Counter(finding.kind for finding in found)
    for kind in KINDS:
        findings.labels(kind).set(counts[kind])
    Gauge(
        "headgate_audit_last_run_timestamp_seconds", "When an audit last looked at everything.", registry=registry
    ).set_to_current_time()
    write_to_textfile(str(path), registry)
