"""The deployment kit: each file is read by the tool that will read it, and asks for no more than it may."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from provisioner.backends.gke.settings import GkePool
from provisioner.settings import loader
from provisioner.telemetry.server import Health, Question, Server

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONFIG = DEPLOY / "kustomize" / "base" / "config"
RULES = DEPLOY / "prometheus" / "rules.yml"
OVERLAYS = ["base", "overlays/gke"]
Manifest = dict[str, Any]


def needs(tool: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool} ({package})")


PROMTOOL = needs("promtool", "Debian package prometheus")
PROMETHEUS = needs("prometheus", "Debian package prometheus")
KUBECTL = needs("kubectl", "Kubernetes client 1.27 or later")


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def built(overlay: str | Path) -> list[Manifest]:
    """What kubectl would apply."""
    done = run("kubectl", "kustomize", DEPLOY / "kustomize" / overlay)
    assert (done.returncode, done.stderr) == (0, "")
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def only(manifests: list[Manifest], kind: str) -> Manifest:
    (chosen,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return chosen


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return built(request.param)


@KUBECTL
def test_kustomize_builds_all_that_is_needed(manifests: list[Manifest]) -> None:
    kinds = sorted(manifest["kind"] for manifest in manifests)

    assert kinds == [
        "ConfigMap",
        "Deployment",
        "Namespace",
        "Namespace",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    ]
    assert all(manifest["apiVersion"] and manifest["metadata"]["name"] for manifest in manifests)


@KUBECTL
def test_there_is_one_loop_at_a_time(manifests: list[Manifest]) -> None:
    spec = only(manifests, "Deployment")["spec"]

    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


@KUBECTL
def test_the_pod_fulfils_the_restricted_standard_on_a_read_only_root(manifests: list[Manifest]) -> None:
    pod = only(manifests, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")} == {"state", "tmp"}


@KUBECTL
def test_the_rights_are_exactly_these_and_only_where_the_pods_are(manifests: list[Manifest]) -> None:
    role, binding = only(manifests, "Role"), only(manifests, "RoleBinding")
    rights = {
        resource: sorted(rule["verbs"])
        for rule in role["rules"]
        for resource in rule["resources"]
        if rule["apiGroups"] == [""]
    }

    assert rights == {"pods": ["create", "delete", "get", "list", "watch"], "events": ["list"], "namespaces": ["get"]}
    assert len(role["rules"]) == len(rights)
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    assert binding["metadata"]["namespace"] == role["metadata"]["namespace"]


@KUBECTL
def test_every_reference_leads_somewhere(manifests: list[Manifest]) -> None:
    def name(kind: str) -> str:
        return str(only(manifests, kind)["metadata"]["name"])

    deployment = only(manifests, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    service, policy = only(manifests, "Service")["spec"], only(manifests, "NetworkPolicy")["spec"]

    assert volumes["config"]["configMap"]["name"] == name("ConfigMap")
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == name("PersistentVolumeClaim")
    assert pod["serviceAccountName"] == name("ServiceAccount")
    assert only(manifests, "RoleBinding")["subjects"] == [
        {"kind": "ServiceAccount", "name": name("ServiceAccount"), "namespace": deployment["metadata"]["namespace"]}
    ]
    assert service["selector"].items() <= labels.items()
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == set(volumes)
    assert service["ports"][0]["targetPort"] in ports


@KUBECTL
@pytest.mark.parametrize(
    ("component", "kind", "of"),
    [("pod-monitoring", "PodMonitoring", "Deployment"), ("service-monitor", "ServiceMonitor", "Service")],
)
def test_a_monitor_scrapes_the_port_of_the_loop_often_enough(
    component: str, kind: str, of: str, tmp_path: Path
) -> None:
    shutil.copytree(DEPLOY / "kustomize", tmp_path / "kustomize")
    overlay = tmp_path / "kustomize" / "overlays" / "own"
    overlay.mkdir()
    own = {"resources": ["../gke"], "components": [f"../../components/{component}"]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(own))
    manifests = built(overlay)
    monitor, scraped = only(manifests, kind), only(manifests, of)
    (endpoint,) = monitor["spec"]["endpoints"]

    labels = scraped["metadata"].get("labels") if of == "Service" else scraped["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["metadata"]["namespace"] == scraped["metadata"]["namespace"]
    assert endpoint["port"] in [port["name"] for port in only(manifests, "Service")["spec"]["ports"]]
    assert endpoint["interval"] == "15s"  # the alerts hold up to 30 s


@KUBECTL
def test_the_probes_ask_paths_that_the_server_answers(manifests: list[Manifest]) -> None:
    (container,) = only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    server = Server("127.0.0.1:0", CollectorRegistry(), lambda: Health(True, True, "fine"), dict)
    paths = {probe: container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("liveness", "readiness", "startup")}

    assert paths == {"liveness": "/healthz", "readiness": "/readyz", "startup": "/healthz"}
    assert all(server.respond(Question(path)).status == 200 for path in paths.values())
    assert container["args"][:1] == ["run"]
    assert container["args"][-1].endswith(f":{container['ports'][0]['containerPort']}")


@KUBECTL
def test_the_configuration_that_is_mounted_is_right_and_its_pods_are_in_the_namespace_of_the_role(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    for name, content in only(manifests, "ConfigMap")["data"].items():
        (tmp_path / name).write_text(content)
    (container,) = only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"]}

    pools = loader.load(tmp_path / "provisioner.yaml", environment).pools.values()

    assert {pool.namespace for pool in pools if isinstance(pool, GkePool)} == {
        only(manifests, "Role")["metadata"]["namespace"]
    }
    assert environment["HF_PROVIDER_CONFDIR"] in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert environment["HF_PROVIDER_WORKDIR"] in {mount["mountPath"] for mount in container["volumeMounts"]}


# --- Prometheus -------------------------------------------------------------------------------------------------------


@PROMTOOL
@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")],
    ids=" ".join,
)
def test_promtool(arguments: tuple[str, ...]) -> None:
    done = run("promtool", *arguments, cwd=DEPLOY / "prometheus")

    assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_every_alert_says_what_to_do_and_is_tested() -> None:
    names = {alert["alert"] for alert in alerts()}
    tested = set(re.findall(r"alertname: (\w+)", (DEPLOY / "prometheus" / "rules_test.yml").read_text()))

    assert {"NotReconciling", "PoolBlind", "MachinesLate", "BrakeEngaged", "CapacityRefused", "LossSpike"} <= names
    assert tested == names
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert {"summary", "description", "runbook_url"} == alert["annotations"].keys()
