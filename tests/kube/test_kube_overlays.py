"""The GKE overlays on a real API server. Their pod runs as a process with the pod's user and groups.

The pod and HostFactory's user share an export. A simulated Compute Engine has the groups of the overlay ``mixed``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import yaml

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Simulator
from tests.kube.cluster import Cluster
from tests.kube.hostfactory_host import GROUP, USER, Host
from tests.kube.kit import Kit, LoopPod
from tests.support.clouds.specs import advised
from tests.support.manifests import GKE, Manifest, container, of_a_site, only, pods
from tests.support.waiting import until

pytestmark = [
    pytest.mark.kube,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become two users"),
]

PODS = "/api/v1/namespaces/symphony/pods"
GROUPS = (
    advised(project="my-project", name="hf-zonal", zone="us-central1-a"),
    advised(project="my-project", name="hf-regional", region="us-central1"),
)

QUICK = dict.fromkeys(("operation", "schedule", "boot", "delete", "leave"), 0.1)


@pytest.fixture(scope="module")
def compute() -> Iterator[Simulator]:
    """Yield a Compute Engine with the groups that the overlay names."""
    with Simulator(migs=GROUPS, conditions=Conditions.of(timings={"mig": QUICK})) as running:
        yield running


@pytest.fixture(scope="module", params=[GKE, "overlays/mixed"], ids=lambda overlay: overlay.removeprefix("overlays/"))
def manifests(request: pytest.FixtureRequest, kit: Kit, any_cluster: Cluster) -> Iterator[list[Manifest]]:
    """Yield the applied overlay. HostFactory's group at this site has another number than the pod's group."""
    made = of_a_site(request.param, hostfactoryGroup=str(GROUP))
    hasten(only(made, "ConfigMap")["data"])
    any_cluster.add_node("with-metadata", **{"iam.gke.io/gke-metadata-server-enabled": "true"})
    until(lambda: "with-metadata" in any_cluster.ready_nodes(), 60, what="the node is ready")
    with kit.deploying(made):
        yield made
    any_cluster.remove_node("with-metadata")


def hasten(files: dict[str, str]) -> None:
    """Let the loop observe often, and set a shorter lag, because the simulated cloud lags less than Google's."""
    settings = yaml.safe_load(files["provisioner.yaml"])
    settings["loop"] = {"interval_seconds": 2, "floor_seconds": 0.3}
    for pool in settings["pools"].values():
        if pool["kind"] == "mig":
            pool |= {"observe_seconds": 1, "lag_seconds": 2}
    files["provisioner.yaml"] = yaml.safe_dump(settings)


@pytest.fixture(scope="module")
def pod(
    kit: Kit,
    manifests: list[Manifest],
    any_cluster: Cluster,
    compute: Simulator,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LoopPod]:
    """Run the loop in an export with the owner, group and mode 2770 that docs/deploy-gke.md asks for."""
    endpoint = {"PROVISIONER_COMPUTE_ENDPOINT": compute.compute}
    directory = tmp_path_factory.mktemp("pod")
    with LoopPod(kit, manifests, directory, any_cluster.ca, group=GROUP, surroundings=endpoint) as running:
        yield running


@pytest.fixture(scope="module")
def host(pod: LoopPod, tmp_path_factory: pytest.TempPathFactory) -> Host:
    return Host(pod, tmp_path_factory.mktemp("host"))


def machines(kit: Kit, compute: Simulator) -> set[str]:
    """Return the names of all machines in both clouds."""
    instances = {one["name"] for one in compute.state()["machines"]}
    return instances | {one["metadata"]["name"] for one in kit.admin.get(PODS)["items"]}


def test_its_pod_is_scheduled_beside_a_metadata_server_and_its_claim_takes_the_export(
    kit: Kit, manifests: list[Manifest]
) -> None:
    system = "/api/v1/namespaces/hostfactory"
    chosen = {"labelSelector": "app.kubernetes.io/name=provisioner"}
    (one,) = until(
        lambda: [pod for pod in kit.admin.get(f"{system}/pods", **chosen)["items"] if "nodeName" in pod["spec"]],
        60,
        what="the loop's pod has a node",
    )
    claim = kit.admin.get(f"{system}/persistentvolumeclaims/provisioner-state")
    volume = only(manifests, "PersistentVolume")["metadata"]["name"]

    assert one["spec"]["nodeName"] == "with-metadata"
    assert one["spec"]["securityContext"]["supplementalGroups"] == [GROUP]
    assert (claim["status"]["phase"], claim["spec"]["volumeName"]) == ("Bound", volume)


def test_the_loop_and_hostfactory_s_user_own_files_of_one_group_and_the_probes_are_answered(
    pod: LoopPod, host: Host, manifests: list[Manifest]
) -> None:
    one, who = container(manifests), pods(manifests)["Deployment"]["securityContext"]
    host.templates()
    until(lambda: pod.answers(one["readinessProbe"]["httpGet"]["path"]), 60, what="a cycle is complete")
    owners = {(file.stat().st_uid, file.stat().st_gid) for file in pod.state.rglob("*") if file.is_file()}

    assert pod.answers(one["livenessProbe"]["httpGet"]["path"])
    assert who["runAsGroup"] != GROUP
    assert owners == {(who["runAsUser"], GROUP), (USER, GROUP)}


def test_each_template_has_a_machine_when_hostfactory_s_user_asks_and_none_when_he_returns_it(
    kit: Kit, pod: LoopPod, host: Host, compute: Simulator
) -> None:
    asked = [host.request(template, 1) for template in host.templates()]
    until(lambda: {host.status(id_)["status"] for id_ in asked} == {"complete"}, 120, every=1, what="all are complete")
    names = [machine["name"] for id_ in asked for machine in host.status(id_)["machines"]]

    assert len(names) == len(asked), pod.log.read_text()
    assert machines(kit, compute) == set(names)

    back = host.return_machines(names)
    until(lambda: host.status(back)["status"] == "complete", 120, every=1, what="the return ends")
    assert machines(kit, compute) == set()


@pytest.mark.usefixtures("pod")
def test_the_check_of_an_installation_finds_nothing_to_fix_on_hostfactory_s_side(host: Host) -> None:
    done = host.run("check_install")
    said = done.stdout.splitlines()

    assert [line for line in said if not line.startswith("fine: ")] == []
    assert (done.returncode, done.stderr) == (0, "")
    assert "fine: /var/lib/hostfactory: the loop runs" in said
