"""The chart, rendered by Go's own templates and held against Kubernetes' schemas, and what else is deployed.

Not run here: `helm` itself, a cluster, and a container engine.
"""

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import go_template
import jsonschema
import kubernetes_validate
import pytest
import yaml

from services.dag.settings import DagSettings
from services.local.stack import ROOT
from services.queue.settings import QueueSettings

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
VERSIONS = ("1.27", "1.32", "1.37")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
Object = dict[str, Any]
WORKERS = {"deployment": "mail-workers", "namespace": "default", "topic": "mail", "slots": 8}
SCALED = {**WORKERS, "minReplicas": 0, "maxReplicas": 20, "prometheus": "http://prometheus:9090"}


def rendered(**changed: Any) -> list[Object]:
    """All objects of a release, with some values in the place of others."""
    values = copy.deepcopy(VALUES)
    for path, value in changed.items():
        *folders, name = path.split("__")
        place = values
        for folder in folders:
            place = place[folder]
        place[name] = value
    told = {"Values": values, "Release": {"Name": "shop", "Namespace": "jobs"}}
    texts = [go_template.render(path, told).decode() for path in sorted((CHART / "templates").glob("*.yaml"))]
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


WHOLE = {"podMonitor__enabled": True, "scaledObjects": [SCALED]}


def of_kind(kind: str, objects: list[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def containers(objects: list[Object]) -> Iterator[tuple[Object, Object]]:
    """Each container with the object that has it."""
    for each in of_kind("Deployment", objects) + of_kind("Job", objects):
        for container in each["spec"]["template"]["spec"]["containers"]:
            yield each, container


@pytest.mark.parametrize("changed", [{}, WHOLE, {"tokens__enabled": False}, {"networkPolicy__enabled": False}])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_one_of_kubernetes(version: str, changed: dict[str, Any]) -> None:
    objects = rendered(**changed)
    kinds = {each["kind"] for each in objects}
    assert {"Deployment", "Service", "PodDisruptionBudget", "Job"} <= kinds
    for each in objects:
        if each["apiVersion"].partition("/")[0] not in ("monitoring.coreos.com", "keda.sh"):
            kubernetes_validate.validate(each, version, strict=True)


def test_names_are_told_apart() -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered(**WHOLE)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("changed", [{}, {"tokens__enabled": False}])
def test_variables_and_modules_are_those_of_the_services(changed: dict[str, Any]) -> None:
    for each, container in containers(rendered(**changed)):
        module = Path(*container["command"][2].split("."))
        assert (ROOT / module / "__main__.py").exists(), module
        for variable in container["env"]:
            assert f"`{variable['name']}`" in OPERATIONS, (each["metadata"]["name"], variable)
        assert len({variable["name"] for variable in container["env"]}) == len(container["env"])
    [queue, dag] = sorted(of_kind("Deployment", rendered(**changed)), key=lambda each: each["metadata"]["name"])[
        ::-1
    ]
    for deployment, settings in ((queue, QueueSettings), (dag, DagSettings)):
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        given = {each["name"]: each.get("value") for each in container["env"]}
        assert (
            int(given[next(name for name in given if name.endswith("_PORT"))])
            == settings.model_fields["port"].default
        )
        assert ("HEADGATE_HOST_NAMES" in given) != ("HEADGATE_TOKENS_FILE" in given)
    urls = {
        each["name"]: each["value"]
        for _, container in containers(rendered())
        for each in container["env"]
        if each["name"].endswith("_URL") and "value" in each
    }
    assert urls == {"HEADGATE_QUEUE_URL": "http://shop-queue:8080", "HEADGATE_DAG_URL": "http://shop-dag:8081"}


def test_secrets_are_those_that_the_values_name() -> None:
    told = set(re.findall(r"^#   ([a-z-]+):", (CHART / "values.yaml").read_text(), re.MULTILINE))
    asked = {
        each["valueFrom"]["secretKeyRef"]["key"]
        for _, container in containers(rendered())
        for each in container["env"]
        if "valueFrom" in each
    }
    assert asked | {"tokens"} == told


def test_a_pod_has_time_to_drain_and_is_asked_what_there_is() -> None:
    documents = [json.loads((ROOT / "docs" / "openapi" / f"{name}.json").read_text()) for name in ("queue", "dag")]
    for deployment in of_kind("Deployment", rendered()):
        pod = deployment["spec"]["template"]["spec"]
        drain_s = QueueSettings.model_fields["drain_s"].default
        assert pod["terminationGracePeriodSeconds"] >= drain_s + 10
        [container] = pod["containers"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            path = container[probe]["httpGet"]["path"]
            assert all(path in document["paths"] for document in documents)
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez", (
            "a shard that is away is no reason to restart"
        )
        # It is out of the balancer before it stops to serve.
        assert (
            container["readinessProbe"]["periodSeconds"] * container["readinessProbe"]["failureThreshold"]
            < drain_s
        )
        assert container["securityContext"]["readOnlyRootFilesystem"] and pod["securityContext"]["runAsNonRoot"]
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_who_is_meant_by_labels_is_there() -> None:
    objects = rendered(**WHOLE)
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in of_kind("Deployment", objects)
    }
    selecting = [each["spec"]["selector"] for each in of_kind("Service", objects)]
    selecting += [each["spec"]["selector"]["matchLabels"] for each in of_kind("PodDisruptionBudget", objects)]
    selecting += [each["spec"]["selector"]["matchLabels"] for each in of_kind("Deployment", objects)]
    selecting += [each["spec"]["selector"]["matchLabels"] for each in of_kind("PodMonitor", objects)]
    for labels in selecting:
        assert len([name for name, own in pods.items() if labels.items() <= own.items()]) == 1, labels
    [policy] = of_kind("NetworkPolicy", objects)
    assert all(policy["spec"]["podSelector"]["matchLabels"].items() <= own.items() for own in pods.values())
    [rule] = policy["spec"]["ingress"]
    ports = {port["containerPort"] for _, each in containers(objects) for port in each.get("ports", ())}
    assert {each["port"] for each in rule["ports"]} == ports
    callers = rule["from"][0]["podSelector"]["matchLabels"]
    assert all(callers.items() <= own.items() for own in pods.values()), "the services call one another"


def test_the_schema_is_brought_up_before_new_code() -> None:
    [job] = of_kind("Job", rendered())
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "migrations", "up"]
    images = {container["image"] for _, container in containers(rendered())}
    assert len(images) == 1


def test_metrics_are_scraped_and_workers_scaled_by_what_there_is() -> None:
    objects = rendered(**WHOLE)
    jobs = {
        relabeling["replacement"]
        for each in of_kind("PodMonitor", objects)
        for point in each["spec"]["podMetricsEndpoints"]
        for relabeling in point["relabelings"]
    }
    scrape = (DEPLOY / "prometheus" / "scrape.yaml").read_text()
    assert jobs == set(re.findall(r"job_name: (\S+)", scrape))
    [scaled] = of_kind("ScaledObject", objects)
    alone = yaml.safe_load((DEPLOY / "keda" / "scaledobject.yaml").read_text())
    told, meant = (each["spec"]["triggers"][0]["metadata"] for each in (scaled, alone))
    assert told == meant


def test_the_database_of_the_example_waits_for_a_standby() -> None:
    cluster = yaml.safe_load((DEPLOY / "cloudnative-pg" / "cluster.yaml").read_text())
    assert (cluster["apiVersion"], cluster["kind"]) == ("postgresql.cnpg.io/v1", "Cluster")
    assert cluster["spec"]["instances"] > cluster["spec"]["postgresql"]["synchronous"]["number"] >= 1
    off = {name for name, value in cluster["spec"]["postgresql"]["parameters"].items() if value == "off"}
    assert off == {"jit"}, "fsync, full_page_writes and synchronous_commit stay on"


def test_compose_is_compose_and_starts_what_there_is() -> None:
    schema = json.loads((ROOT / "tests" / "support" / "compose-spec.json").read_text())
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    jsonschema.Draft7Validator(schema).validate(compose)
    for name, service in compose["services"].items():
        assert set(service.get("depends_on", {})) <= compose["services"].keys(), name
        if service.get("image") == "headgate":
            assert (ROOT / Path(*service["command"][2].split(".")) / "__main__.py").exists()
            assert all(f"`{variable}`" in OPERATIONS for variable in service["environment"])
            assert name == "migrate" or service["stop_grace_period"] == "20s"
        used = [volume.partition(":")[0] for volume in service.get("volumes", ())]
        assert set(used) <= compose["volumes"].keys()


def test_the_image_has_what_its_commands_import() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert all((ROOT / path).exists() for path in copied)
    roots = {path for path in copied if (ROOT / path).is_dir()}
    importing = [path for root in roots for path in (ROOT / root).rglob("*.py")]
    named = {
        name
        for path in importing
        for name in re.findall(r"^(?:from|import) ([a-z_]+(?:\.[a-z_]+)?)", path.read_text(), re.M)
    }
    ours = {name for name in named if (ROOT / name.partition(".")[0]).is_dir()}
    lacking = {
        name for name in ours if not any(f"{name.replace('.', '/')}/".startswith(f"{root}/") for root in roots)
    }
    assert lacking <= {"services"}


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    units = sorted((DEPLOY / "systemd").iterdir())
    for unit in units:
        # What they start is not installed here.
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/headgate/.venv/bin/python", "/bin/true"))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(tmp_path / unit.name for unit in units)],
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in said.stderr.splitlines() if "headgate" in line]
    assert (said.returncode, told) == (0, [])
