"""Alert rules, the dashboard and the pages name metrics, labels and jobs that there are."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from services.local.stack import ROOT
from shared import metrics
from tests.support import runbooks

DEPLOY = ROOT / "deploy"
ALERTS = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
ALERT_CASES = (DEPLOY / "prometheus" / "alerts.test.yaml").read_text()
SCRAPE = (DEPLOY / "prometheus" / "scrape.yaml").read_text()
KEDA = (DEPLOY / "keda" / "scaledobject.yaml").read_text()
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "headgate.json").read_text())
# Of the scraper itself.
SCRAPED = {"job", "instance", "le"}


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return [*re.findall(r"^ +expr: (.*)$", ALERTS, re.MULTILINE), *panels]


def known() -> dict[str, set[str]]:
    """Every sample's name with its labels, of the services' metrics and of the audit's."""
    found: dict[str, set[str]] = {"up": set()}
    for made in vars(metrics).values():
        name, labels = getattr(made, "_name", None), getattr(made, "_labelnames", ())
        if name is not None:
            found |= {f"{name}{end}": set(labels) for end in ("", "_total", "_bucket", "_count", "_sum")}
    worker = (ROOT / "headgate" / "_worker" / "metrics.py").read_text()
    found |= {name: {"topic"} for name in re.findall(r'"(headgate_worker_\w+)"', worker)}
    audit = (ROOT / "audit" / "metrics.py").read_text()
    return found | {name: {"kind"} for name in re.findall(r'"(headgate_audit_\w+)"', audit)}


def test_every_metric_that_they_name_is_there() -> None:
    named = {name for text in [*expressions(), KEDA] for name in re.findall(r"\bheadgate_\w+", text)}
    assert len(named) > 20
    assert named - known().keys() == set()


def test_every_metric_that_the_pages_name_is_there() -> None:
    named = {
        (page.name, name)
        for page in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"\bheadgate_\w+", page.read_text())
    }
    assert len(named) > 20
    others = {"headgate_server", "headgate_stack", "headgate_skip_time"}  # a package, and fixtures
    assert {(page, name) for page, name in named if name not in known() and name not in others} == set()


def test_every_label_that_they_group_by_is_one_of_its_metric() -> None:
    wrong = []
    for text in expressions():
        names = re.findall(r"\b(?:headgate_\w+|up)\b(?=[{\[) ])", text)
        labels = {label for name in names for label in known()[name]} | SCRAPED
        used = {label for group in re.findall(r"\bby \(([^)]*)\)", text) for label in re.split(r", *", group)}
        used |= {label for group in re.findall(r"\{([^{}]*)\}", text) for label in re.findall(r"(\w+)!?=", group)}
        if used - labels:
            wrong.append((text, used - labels))
    assert wrong == []


def test_jobs_are_called_as_the_scrape_configuration_calls_them() -> None:
    assert set(re.findall(r"job_name: (\S+)", SCRAPE)) == {"headgate-queue", "headgate-dag"}
    assert 'job=~"headgate-.*"' in ALERTS


def alerts() -> list[str]:
    return re.findall(r"^ +- alert: (\w+)$", ALERTS, re.MULTILINE)


def promtool(*arguments: str) -> None:
    """Fails with what promtool says."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here: apt-get install prometheus")
    said = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


def test_every_alert_has_a_section_of_what_to_do_and_a_case_that_fires() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert sorted(re.findall(r"^#### (Headgate\w+)$", page, re.MULTILINE)) == sorted(alerts())
    linked = re.findall(r"runbook: 'docs/operations\.md#(\w+)'", ALERTS)
    assert linked == [name.lower() for name in alerts()]
    fires = re.findall(r"alertname: (\w+)\n +exp_alerts:\n", ALERT_CASES)
    assert sorted(fires) == sorted(alerts())


def test_the_pages_have_the_runbooks_as_they_stand_in_operations() -> None:
    assert runbooks.FILE.read_text() == runbooks.runbooks(), "make runbooks"


def test_alerts_fire_when_they_should_and_not_before() -> None:
    promtool("check", "config", "--syntax-only", str(DEPLOY / "prometheus" / "scrape.yaml"))
    promtool("test", "rules", str(DEPLOY / "prometheus" / "alerts.test.yaml"))


def test_every_expression_of_the_dashboard_is_one(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{place}", "expr": text.replace("$__rate_interval", "5m")}
        for place, text in enumerate(expressions())
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", str(file))


def test_every_alert_says_what_happened_in_labels_that_it_has() -> None:
    rules = re.split(r"^ +- alert: ", ALERTS, flags=re.MULTILINE)[1:]
    assert len(rules) > 10
    for rule in rules:
        expression = re.search(r"expr: (.*)", rule)
        shown = set(re.findall(r"\$labels\.(\w+)", rule))
        assert expression and "severity: " in rule and "summary: " in rule
        grouped = re.search(r"\bby \(([^)]*)\)", expression[1])
        has = set(re.split(r", *", grouped[1])) if grouped else {"job", "instance", "shard"}
        assert shown <= has, rule


def test_units_run_modules_that_there_are() -> None:
    for unit in (DEPLOY / "systemd").glob("*.service"):
        for module in re.findall(r"-m ([\w.%]+)", unit.read_text()):
            for name in ("queue", "dag") if "%i" in module else ("",):
                path = Path(*module.replace("%i", name).split("."))
                assert (ROOT / path / "__main__.py").exists(), unit.name
