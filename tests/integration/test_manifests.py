"""The manifests of the kit. Kubernetes accepts each build, and each build asks only for permitted rights."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prometheus_client import CollectorRegistry

from hf_scripts.host_checks import NFS_OPTIONS
from provisioner.backends.gke.settings import GkePool
from provisioner.commands import cli
from provisioner.hostfactory import templates
from provisioner.settings import loader
from provisioner.telemetry.http_connections import Question
from provisioner.telemetry.server import Health, Server
from tests.support.checks.shell import faults_of
from tests.support.clients.terraform import EXAMPLE, rendered
from tests.support.manifests import (
    BUILDS,
    COMPONENTS,
    CONFIGURED,
    GKE,
    IN_API,
    INCLUDED,
    KUSTOMIZE,
    MONITORS,
    OPTIONAL,
    OVERLAYS,
    ROOT,
    Manifest,
    as_its_comments_offer,
    built,
    built_there,
    container,
    entry_point,
    mistakes,
    name_of,
    only,
    pods,
    schemas,
    write_configuration,
)
from tests.support.waiting import PATIENCE

VERSIONS = ("1.27", kubernetes_validate.latest_version())
"""The oldest Kubernetes that GKE still runs, and the newest that the tool supports."""
OLDEST = {"CustomResourceDefinition": "1.32"}
"""The oldest Kubernetes that takes every field of ours: since it, fields of custom resources can be selected."""
MOUNTED_WITH = {"hard", "nfsvers", *NFS_OPTIONS.split(",")}
"""Without these two hosts do not see one state directory alike, and half a write may pass for a whole one."""
MOUNTED_WITHOUT = {"soft", "nolock", "local_lock=all", "local_lock=flock"}
"""Mount options that weaken locks or writes on which scripts and loop rely."""
VERSION = re.compile(r"^nfsvers=(3|4\.[12])$")


@pytest.fixture(params=BUILDS, ids=name_of)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    overlay, components = request.param
    return built(overlay, *components)


@pytest.fixture(params=CONFIGURED, ids=name_of)
def configured(request: pytest.FixtureRequest) -> list[Manifest]:
    overlay, components = request.param
    return built(overlay, *components)


# --- the tools' word --------------------------------------------------------------------------------------------------


def problems(manifest: Manifest) -> list[str]:
    """Return the faults in a manifest. Use our own schema only for a kind that Kubernetes has no schema for."""
    return _problems(json.dumps(manifest))


@cache
def _problems(text: str) -> list[str]:
    """Return the faults in a manifest; cached, because most manifests are the same in all builds."""
    manifest = json.loads(text)
    if (manifest["apiVersion"], manifest["kind"]) in schemas():
        return mistakes(manifest)
    try:
        for version in (OLDEST.get(manifest["kind"], VERSIONS[0]), VERSIONS[-1]):
            kubernetes_validate.validate(manifest, version, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        return [str(error)]
    return []


def test_each_manifest_has_only_fields_that_its_kind_has(manifests: list[Manifest]) -> None:
    assert {name: found for name, manifest in enumerate(manifests) if (found := problems(manifest))} == {}


def test_every_overlay_and_component_is_built_somewhere() -> None:
    assert {overlay for overlay, _ in BUILDS} == {*OVERLAYS}
    tried = {component for _, components in BUILDS for component in components}
    within = {line for line in (KUSTOMIZE / GKE / "kustomization.yaml").read_text().split() if "components/" in line}
    assert tried | {*INCLUDED} == {*COMPONENTS} == {Path(line).name for line in within} | {MONITORS[1]}


# --- what there is ----------------------------------------------------------------------------------------------------


def test_the_base_is_all_that_is_needed_and_nothing_more() -> None:
    assert sorted(manifest["kind"] for manifest in built("base")) == [
        "ConfigMap",
        "Deployment",
        "Namespace",
        "Namespace",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    ]


def test_the_values_of_a_site_reach_their_places_and_no_cluster(tmp_path: Path) -> None:
    manifests = built(GKE, "secret-csi", "compute-classes")
    (nodes,) = {one["spec"]["nodePoolConfig"]["serviceAccount"] for one in manifests if one["kind"] == "ComputeClass"}
    egress = policies(manifests)["provisioner"]["egress"]
    pod = only(manifests, "Deployment")["spec"]["template"]["spec"]
    account = only(manifests, "ServiceAccount", "provisioner")["metadata"]["annotations"]

    assert len([one for one in manifests if one["kind"] == "ConfigMap"]) == 1, "the values stay at home"
    assert {
        "image": container(manifests)["image"],
        "instance": next(one["value"] for one in container(manifests)["env"] if one["name"] == "HF_PROVIDER_NAME"),
        "googleServiceAccount": account["iam.gke.io/gcp-service-account"],
        "nodesServiceAccount": nodes,
        "nameServer": egress[0]["to"][0]["ipBlock"]["cidr"],
        "apiServer": egress[1]["to"][0]["ipBlock"]["cidr"],
        "googleApis": egress[2]["to"][0]["ipBlock"]["cidr"],
        "proxy": egress[3]["to"][0]["ipBlock"]["cidr"],
        "proxyPort": str(egress[3]["ports"][0]["port"]),
        "nfsServer": only(manifests, "PersistentVolume")["spec"]["nfs"]["server"],
        "nfsPath": only(manifests, "PersistentVolume")["spec"]["nfs"]["path"],
        "hostfactoryGroup": str(pod["securityContext"]["supplementalGroups"][0]),
        "secrets": only(manifests, "SecretProviderClass")["spec"]["parameters"]["secrets"],
    } == values()
    assert "from-values" not in json.dumps(manifests)


def values() -> dict[str, str]:
    """Return the values of a site, as in the overlay."""
    given: dict[str, str] = yaml.safe_load((KUSTOMIZE / GKE / "values.yaml").read_text())["data"]
    return given


# --- our pods ---------------------------------------------------------------------------------------------------


def has_state_in_api(manifests: list[Manifest]) -> bool:
    return any(one["kind"] == "CustomResourceDefinition" for one in manifests)


def test_there_is_one_loop_at_a_time_and_one_more_that_stands_by_for_it_without_a_volume(
    manifests: list[Manifest],
) -> None:
    spec = only(manifests, "Deployment")["spec"]
    claims = [one for one in manifests if one["kind"] in ("PersistentVolumeClaim", "PersistentVolume")]
    budget = only(manifests, "PodDisruptionBudget")["spec"]
    volumes = {volume["name"]: volume for volume in spec["template"]["spec"]["volumes"]}

    assert budget["maxUnavailable"] == 1
    if not has_state_in_api(manifests):
        assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
        assert claims
        return
    terms = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    chosen = {term["weight"]: term["podAffinityTerm"] for term in terms}
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert claims == []
    assert volumes["state"] == {"name": "state", "emptyDir": {"sizeLimit": "1Gi"}}
    assert [chosen[weight]["topologyKey"] for weight in sorted(chosen, reverse=True)] == [
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    ]
    assert all(term["labelSelector"] == spec["selector"] for term in chosen.values())


def test_every_pod_fulfils_the_restricted_standard_on_a_read_only_root(manifests: list[Manifest]) -> None:
    writable = {"Deployment": {"state", "tmp"}, "StatefulSet": {"state", "tmp"}, "CronJob": {"state", "backup", "tmp"}}
    for kind, pod in pods(manifests).items():
        (one,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["name"] for mount in one["volumeMounts"] if not mount.get("readOnly")} == writable[kind]
        assert one["image"] == container(manifests)["image"]
        assert kind != "CronJob" or pod["automountServiceAccountToken"] is False


def test_the_rights_are_exactly_these_and_only_where_the_pods_are(manifests: list[Manifest]) -> None:
    role, binding = only(manifests, "Role", "provisioner"), only(manifests, "RoleBinding", "provisioner")
    rights = {
        resource: sorted(rule["verbs"])
        for rule in role["rules"]
        for resource in rule["resources"]
        if rule["apiGroups"] == [""]
    }

    assert rights == {
        "pods": ["create", "delete", "get", "list", "watch"],
        "events": ["create", "list"],
        "namespaces": ["get"],
    }
    assert len(role["rules"]) == len(rights)
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", role["metadata"]["name"])
    assert binding["metadata"]["namespace"] == role["metadata"]["namespace"]


def test_loop_and_scripts_have_no_right_on_the_state_beside_its_own_namespace() -> None:
    manifests = [one for one in built("components/kubernetes-state") if one["kind"] != "CustomResourceDefinition"]
    accounts = {"provisioner-state": "provisioner", "hostfactory-scripts": "hostfactory-scripts"}
    loops = only(built("base"), "ServiceAccount")["metadata"]

    assert {one["metadata"]["namespace"] for one in manifests} == {loops["namespace"]}
    assert loops["name"] in accounts.values()
    assert only(manifests, "ServiceAccount")["automountServiceAccountToken"] is False
    for name, account in accounts.items():
        role, binding = only(manifests, "Role", name), only(manifests, "RoleBinding", name)
        subject = {"kind": "ServiceAccount", "name": account, "namespace": loops["namespace"]}
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", name)
        assert binding["subjects"] == [subject]
        words = [word for rule in role["rules"] for key in ("apiGroups", "resources", "verbs") for word in rule[key]]
        assert not any("*" in word for word in words)
        assert "secrets" not in words


def test_the_page_lists_the_rights_on_the_state() -> None:
    page = (ROOT / "docs" / "kubernetes-state.md").read_text()
    manifests = built("components/kubernetes-state")
    shown: dict[str, dict[str, list[str]]] = {"provisioner-state": {}, "hostfactory-scripts": {}}
    for names, *columns in re.findall(r"(?m)^\| (`[\w/]+`(?:, `[\w/]+`)*) \| ([\w, ]*)\| ([\w, ]*)\|$", page):
        for role, verbs in zip(shown, columns, strict=True):
            if verbs.strip():
                shown[role] |= {name: sorted(verbs.split(", ")) for name in re.findall("`(.*?)`", names)}

    for name, listed in shown.items():
        rules = only(manifests, "Role", name)["rules"]
        assert {one: sorted(rule["verbs"]) for rule in rules for one in rule["resources"]} == {
            one: sorted(verb.strip() for verb in verbs) for one, verbs in listed.items()
        }


def test_the_state_in_the_api_is_the_same_before_and_after_other_components() -> None:
    others = [name for name in OPTIONAL if name not in ("backup", "service-monitor")]

    assert alike(built(GKE, IN_API, *others)) == alike(built(GKE, *others, IN_API))


@pytest.mark.parametrize(("component", "kinds"), [("spot-nodes", ["nodes"]), ("pod-demand", ["nodes", "pods"])])
def test_who_may_see_nodes_may_do_nothing_else_with_them(component: str, kinds: list[str]) -> None:
    role, binding = built(f"components/{component}")
    account = only(built("base"), "ServiceAccount")["metadata"]

    assert role["rules"] == [{"apiGroups": [""], "resources": kinds, "verbs": ["list"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    ]


def test_every_reference_leads_somewhere(manifests: list[Manifest]) -> None:
    names = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    deployment = only(manifests, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    service = only(manifests, "Service", "provisioner")["spec"]
    account = {"kind": "ServiceAccount", "name": pod["serviceAccountName"]}

    assert {one["serviceAccountName"] for one in pods(manifests).values()} == {account["name"]}
    for one in pods(manifests).values():
        volumes = {volume["name"]: volume for volume in one["volumes"]}
        assert {mount["name"] for mount in one["containers"][0]["volumeMounts"]} == set(volumes)
        assert {reference for volume in volumes.values() for reference in _references(volume)} <= names
    assert (account["kind"], account["name"]) in names
    here = {"namespace": deployment["metadata"]["namespace"]}
    assert only(manifests, "RoleBinding", "provisioner")["subjects"] == [{**account, **here}]
    assert service["selector"].items() <= labels.items()
    assert service["ports"][0]["targetPort"] in ports
    assert only(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pod_of_demand_shares_the_loop_s_state_and_its_rights_on_the_state(overlay: str) -> None:
    manifests = built(overlay, "demand")
    loop, demand = (pods(manifests)[kind] for kind in ("Deployment", "StatefulSet"))
    state = [[one for one in pod["volumes"] if one["name"] == "state"] for pod in (loop, demand)]
    environment = [container(manifests, kind)["env"] for kind in ("Deployment", "StatefulSet")]

    assert (state[0], environment[0]) == (state[1], environment[1])
    assert loop["securityContext"] == demand["securityContext"]
    assert loop["serviceAccountName"] == demand["serviceAccountName"]


def test_only_monitoring_may_call_the_pod_of_demand() -> None:
    manifests = built(GKE, "demand")
    demand = policies(manifests)["provisioner-demand"]
    labels = only(manifests, "StatefulSet")["spec"]["template"]["metadata"]["labels"]

    assert demand["podSelector"]["matchLabels"] == labels
    assert demand["ingress"] == policies(manifests)["provisioner"]["ingress"]


def policies(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Return the network policies, by name."""
    return {one["metadata"]["name"]: one["spec"] for one in manifests if one["kind"] == "NetworkPolicy"}


def alike(document: Any) -> Any:
    """Return the value with its lists in a fixed order."""
    if isinstance(document, dict):
        return {key: alike(value) for key, value in document.items()}
    return sorted(map(alike, document), key=json.dumps) if isinstance(document, list) else document


@pytest.mark.parametrize("way", ["uncommented", "backwards"])
def test_in_whatever_way_components_are_named_the_same_is_built(way: str) -> None:
    """Compare everything except the configuration. If two components bring a sample configuration, the last one wins. A
    site replaces the sample anyway."""
    within = [name for name in OPTIONAL if name != "service-monitor"]
    named = as_its_comments_offer() if way == "uncommented" else built(GKE, *reversed(within))
    once = built(GKE, *within)
    same = [[alike(one) for one in built_ if one["kind"] != "ConfigMap"] for built_ in (named, once)]

    assert alike(same[0]) == alike(same[1])
    assert {container(once, kind)["image"] for kind in pods(once)} == {values()["image"]}
    for pod in pods(once).values():
        assert pod["securityContext"]["supplementalGroups"] == [int(values()["hostfactoryGroup"])]


def _references(volume: Manifest) -> list[tuple[str, str]]:
    """Return the objects that a volume of a pod names."""
    named = [
        ("ConfigMap", volume.get("configMap", {}).get("name")),
        ("PersistentVolumeClaim", volume.get("persistentVolumeClaim", {}).get("claimName")),
        ("SecretProviderClass", volume.get("csi", {}).get("volumeAttributes", {}).get("secretProviderClass")),
    ]
    return [(kind, name) for kind, name in named if name]


def test_every_command_of_a_pod_is_one_that_the_program_takes(manifests: list[Manifest], tmp_path: Path) -> None:
    for kind in pods(manifests):
        one = container(manifests, kind)
        words = [*one.get("command", ()), *one["args"]]
        assert [faults_of(word) for before, word in pairwise(words) if before == "-ec"] == [""] * words.count("sh")
        calls = calls_of(one, tmp_path / kind)
        assert calls, f"the {kind} never calls the program"
        for called in calls:
            assert callable(cli.parser().parse_args(called).command)


def calls_of(one: Manifest, directory: Path) -> list[list[str]]:
    """Run the command of a container in its shell. Return the arguments of each call of our program.

    Mounts are empty directories.
    """
    directory.mkdir()
    places = {mount["mountPath"]: directory / mount["name"] for mount in one["volumeMounts"]}
    for place in places.values():
        place.mkdir()
    words = [
        re.sub("|".join(places), lambda found: str(places[found[0]]), word)
        for word in [*one.get("command", entry_point()), *one["args"]]
    ]
    (directory / "provisioner").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" "" >>{directory}/calls\n')
    (directory / "provisioner").chmod(0o755)
    surroundings = {"PATH": f"{directory}:/usr/bin:/bin"}
    subprocess.run(words, env=surroundings, check=True, timeout=30 * PATIENCE)
    calls = [call.split("\n") for call in (directory / "calls").read_text().removesuffix("\n\n").split("\n\n")]
    assert all(calls)
    return calls


@pytest.mark.parametrize(
    ("component", "kind", "of"),
    [("pod-monitoring", "PodMonitoring", "Deployment"), ("service-monitor", "ServiceMonitor", "Service")],
)
@pytest.mark.parametrize("name", ["provisioner", "provisioner-demand"])
def test_a_monitor_scrapes_the_ports_of_our_pods_often_enough(component: str, kind: str, of: str, name: str) -> None:
    manifests = built(GKE, "demand", component)
    scraped = next(one for one in manifests if one["kind"] in (of, "StatefulSet") and one["metadata"]["name"] == name)
    monitor = only(manifests, kind, name)
    (endpoint,) = monitor["spec"]["endpoints"]

    labels = scraped["metadata"].get("labels") if of == "Service" else scraped["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["metadata"]["namespace"] == scraped["metadata"]["namespace"]
    assert endpoint["port"] in [port["name"] for port in only(manifests, "Service", name)["spec"]["ports"]]
    assert endpoint["interval"] == "15s"  # the alerts hold up to 30 s


def test_the_probes_ask_paths_that_the_server_answers() -> None:
    one = container(built("base"))
    server = Server("127.0.0.1:0", CollectorRegistry(), lambda: Health(True, True, "fine"), dict)
    paths = {probe: one[f"{probe}Probe"]["httpGet"]["path"] for probe in ("liveness", "readiness", "startup")}

    assert paths == {"liveness": "/healthz", "readiness": "/readyz", "startup": "/healthz"}
    assert all(server.respond(Question(path)).status == 200 for path in paths.values())
    assert one["args"][:1] == ["run"]
    assert one["args"][-1].endswith(f":{one['ports'][0]['containerPort']}")


# --- its configuration ------------------------------------------------------------------------------------------------


def test_check_takes_the_configuration_that_is_mounted(
    configured: list[Manifest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_configuration(configured, tmp_path / "conf")

    assert cli.run(["check", str(config), "-o", "json"]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert [text for text in warnings if not (of_a_laptop(configured) and "promises" in text)] == []


def of_a_laptop(manifests: list[Manifest]) -> bool:
    """Return True if these are the manifests of the overlay for a laptop. The machines of this overlay are smaller than
    its templates report to HostFactory."""
    return container(manifests).get("imagePullPolicy") == "Never"


def test_pods_are_made_where_the_role_is_and_the_directories_are_mounted(
    configured: list[Manifest], tmp_path: Path
) -> None:
    one = container(configured)
    environment = {entry["name"]: entry["value"] for entry in one["env"]}
    pools = loader.load(write_configuration(configured, tmp_path / "conf"), environment).pools.values()
    mounts = {mount["mountPath"] for mount in one["volumeMounts"]}

    assert {pool.namespace for pool in pools if isinstance(pool, GkePool)} == {
        only(configured, "Role", "provisioner")["metadata"]["namespace"]
    }
    assert {environment["HF_PROVIDER_CONFDIR"], environment["HF_PROVIDER_WORKDIR"]} <= mounts


def test_pods_and_instances_are_in_one_configuration(tmp_path: Path) -> None:
    settings = loader.load(write_configuration(built("overlays/mixed"), tmp_path / "conf"), {})

    assert {pool.kind for pool in settings.pools.values()} == {"gke", "mig"}
    assert ("gke-main", "mig-regional") in [limits.pools for limits in settings.template_limits.values()]


# --- a site's own -----------------------------------------------------------------------------------------------------


class Site:
    """A site whose operator types the page's lines. It has a directory with the kit, HostFactory's files, and the
    program."""

    def __init__(self, directory: Path) -> None:
        self.conf, self._bin = directory / "conf", directory / "bin"
        self.overlay = directory / "deploy" / "kustomize" / "overlays" / "our-grid"
        self._there = directory
        shutil.copytree(KUSTOMIZE, directory / "deploy" / "kustomize")
        for name, text in rendered(EXAMPLE, directory).items():
            (self.conf / name).parent.mkdir(parents=True, exist_ok=True)
            (self.conf / name).write_text(text)
        self._bin.mkdir()
        program = self._bin / "provisioner"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m provisioner "$@"\n')
        program.chmod(0o755)

    def type(self, lines: str) -> None:
        """Run lines of the page in a shell. It starts in the directory in which the shell of the lines before has
        ended."""
        surroundings = {
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "HF_PROVIDER_CONFDIR": str(self.conf),
        }
        typed = f"{lines}\npwd"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", typed], cwd=self._there, env=surroundings, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        self._there = Path(done.stdout.splitlines()[-1])

    def configured(self, directory: Path) -> Path:
        """Return the directory of configuration that the pod mounts when the overlay is applied."""
        return write_configuration(built_there(self.overlay), directory).parent


def shown(first: str, *, upto: str = "\n\n") -> str:
    """Return the lines of docs/deploy-gke.md from ``first`` to the next empty line, or to the text ``upto``."""
    page = (ROOT / "docs" / "deploy-gke.md").read_text()
    return first + page.partition(first)[2].partition(upto)[0]


@pytest.mark.skipif(shutil.which("terraform") is None, reason="needs terraform")
def test_the_overlay_that_the_page_makes_mounts_what_terraform_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path)
    site.type(shown("cd deploy/kustomize/overlays"))
    values_file = site.overlay / "values.yaml"
    values_file.write_text(values_file.read_text().replace("instance: gkeinst", "instance: gcpinst"))
    site.type(shown("provisioner configmap --config $HF_PROVIDER_CONFDIR >config.yaml"))
    manifests = built_there(site.overlay)
    given = {entry["name"]: entry["value"] for entry in container(manifests)["env"]}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    mounted = site.configured(tmp_path / "mounted")
    code = cli.run(["check", str(mounted / "provisioner.yaml")])
    assert code == 0, capsys.readouterr()
    pools = loader.load(mounted / "provisioner.yaml", given).pools
    assert pools.keys() == loader.load(site.conf / "provisioner.yaml", {}).pools.keys()
    spaces = {pool.namespace for pool in pools.values() if isinstance(pool, GkePool)}
    assert spaces == {only(manifests, "Role", "provisioner")["metadata"]["namespace"]}
    assert templates.load(mounted, given).digests == templates.load(site.conf, {}).digests

    changed = site.conf / "gcpinstprov_templates.json"
    changed.write_text(changed.read_text().replace('"maxNumber"', '"priority": 3, "maxNumber"'))
    old = templates.load(site.configured(tmp_path / "before"), given).digests
    site.type(shown("provisioner configmap --config $HF_PROVIDER_CONFDIR | tee", upto=" | kubectl"))
    new = templates.load(site.configured(tmp_path / "after"), given).digests
    assert old != new == templates.load(site.conf, {}).digests, "the next apply -k takes it"


def test_on_autopilot_the_patch_that_the_page_shows_leaves_no_node_to_choose(tmp_path: Path) -> None:
    overlay = shutil.copytree(KUSTOMIZE, tmp_path / "kustomize") / GKE
    file = overlay / "kustomization.yaml"
    adding = re.compile(r"- op: add\n +path: /spec/template/spec/nodeSelector\n +value: .*")
    file.write_text(adding.sub(shown("- {op: remove, path: /spec/template"), file.read_text()))
    usual, left = (only(one, "Deployment")["spec"]["template"]["spec"] for one in (built(GKE), built_there(overlay)))

    assert usual.keys() - left.keys() == {"nodeSelector"}
    assert (left["affinity"], usual["affinity"].keys()) == ({}, {"nodeAffinity"})


# --- parts ------------------------------------------------------------------------------------------------------------


def without_options(manifests: list[Manifest]) -> list[str]:
    """Return the missing or forbidden mount options of shared volumes and of their classes."""
    volumes = {one["metadata"]["name"]: one["spec"] for one in manifests if one["kind"] == "PersistentVolume"}
    classes = {one["metadata"]["name"]: one for one in manifests if one["kind"] == "StorageClass"}
    claims = [one for one in manifests if one["kind"] == "PersistentVolumeClaim"]
    shared = [one["spec"] for one in claims if "ReadWriteMany" in one["spec"]["accessModes"]]
    made_of = [volumes.get(one.get("volumeName")) or classes.get(one.get("storageClassName"), {}) for one in shared]
    given = [{VERSION.sub("nfsvers", option) for option in one.get("mountOptions", ())} for one in made_of]
    return [word for options in given for word in sorted(MOUNTED_WITH - options | options & MOUNTED_WITHOUT)]


def test_every_shared_state_directory_is_mounted_as_two_hosts_need_it(manifests: list[Manifest]) -> None:
    assert without_options(manifests) == []


def test_the_page_mounts_the_pod_s_volume_in_a_directory_that_no_installation_gives_to_others() -> None:
    page = (ROOT / "docs" / "deploy-gke.md").read_text()
    ((options, place),) = re.findall(r"mount -t nfs -o (\S+) NFS_SERVER:NFS_PATH (\S+)", page)
    (row,) = re.findall(r"(?m)^\| \[the loop as a pod\].*$", (ROOT / "docs" / "first-machine.md").read_text())
    given = re.findall(r"(?m)^d (\S+) ", (ROOT / "deploy" / "vm" / "tmpfiles.conf").read_text())

    assert sorted(options.split(",")) == sorted(only(built(GKE), "PersistentVolume")["spec"]["mountOptions"])
    assert f"`{place}`" in row
    assert given
    assert [path for path in given if place == path or place.startswith(f"{path}/")] == []


@pytest.mark.parametrize("overlay", [GKE, "overlays/mixed"])
def test_the_claim_takes_the_volume_that_is_shared(overlay: str) -> None:
    manifests = built(overlay)
    volume, claim = only(manifests, "PersistentVolume"), only(manifests, "PersistentVolumeClaim")

    assert volume["spec"]["nfs"] == {"server": values()["nfsServer"], "path": values()["nfsPath"]}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert claim["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == ""
    assert volume["spec"]["claimRef"] == {key: claim["metadata"][key] for key in ("namespace", "name")}
    assert claim["spec"]["accessModes"] == volume["spec"]["accessModes"] == ["ReadWriteMany"]
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_a_laptop_needs_neither_google_nor_a_registry_nor_a_shared_volume() -> None:
    manifests = built("overlays/kind")
    text = json.dumps(manifests)

    assert container(manifests)["imagePullPolicy"] == "Never"
    assert only(manifests, "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert not [one for one in manifests if one["kind"] == "NetworkPolicy"]
    assert re.findall(r"pkg\.dev|registry\.example|gserviceaccount", text) == []


def test_the_proxy_s_password_reaches_every_process_of_the_pod_from_a_file() -> None:
    """The password must come from a file, because a process of `kubectl exec` lacks the variables that the loop's shell
    exports. tests/integration/test_bank_network.py runs the loop and such a process."""
    manifests = built(GKE, "secret-csi")
    one = container(manifests)
    (mount,) = [mount["mountPath"] for mount in one["volumeMounts"] if mount["name"] == "secrets"]
    (file,) = [entry["value"] for entry in one["env"] if entry["name"] == "HTTPS_PROXY_FILE"]
    secrets = yaml.safe_load(only(manifests, "SecretProviderClass")["spec"]["parameters"]["secrets"])

    assert file in {f"{mount}/{secret['path']}" for secret in secrets}
    assert "command" not in one
