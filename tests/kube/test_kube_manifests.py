"""The built manifests on a real API server. The server accepts each manifest. The deployed pods rent machines with only
the rights in these manifests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from provisioner.commands import cli
from provisioner.state.directory import StateDir
from tests.kube.client import Client, Refused
from tests.kube.cluster import Cluster, kubeconfig
from tests.kube.kit import Inside, Kit, LoopPod
from tests.support.manifests import (
    BUILDS,
    GKE,
    Build,
    Manifest,
    built,
    container,
    entry_point,
    name_of,
    only,
    pods,
    write_configuration,
)
from tests.support.passing import made_by, missing_from, pools_of
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.kube

PODS = "/api/v1/namespaces/symphony/pods"
SYSTEM = "hostfactory"
"""The namespace of the loop; that of its machines stands in the Role."""


@pytest.mark.parametrize("build", BUILDS, ids=name_of)
def test_the_server_takes_every_manifest_of_a_build(kit: Kit, build: Build) -> None:
    overlay, components = build
    for manifest in built(overlay, *components):
        assert kit.apply(manifest, trial=True)["kind"] == manifest["kind"]


# --- for real ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifests(kit: Kit) -> Iterator[list[Manifest]]:
    """Yield the applied overlay for a laptop, with the components for backups, demand and a registry login. This
    overlay needs no service of Google."""
    made = built("overlays/kind", "backup", "demand", "pull-secret")
    with kit.deploying(made):
        yield made


@pytest.fixture(scope="module")
def pod(
    kit: Kit, manifests: list[Manifest], any_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoopPod]:
    with LoopPod(kit, manifests, tmp_path_factory.mktemp("pod"), any_cluster.ca) as running:
        yield running


def machines(kit: Kit) -> set[str]:
    """Return the names of the pods in the namespace of the machines."""
    return {one["metadata"]["name"] for one in kit.admin.get(PODS)["items"]}


JOB = "backup-now"


def pods_named(kit: Kit, name: str) -> list[Manifest]:
    """Return the pods in the loop's namespace that have the label ``app.kubernetes.io/name`` with this value."""
    return pods_with(kit, f"app.kubernetes.io/name={name}")


def pods_with(kit: Kit, selector: str) -> list[Manifest]:
    return list(kit.admin.get(f"/api/v1/namespaces/{SYSTEM}/pods", labelSelector=selector)["items"])


def backed_up_by_hand(kit: Kit) -> list[Manifest]:
    """Return the pods of the job that the test itself started. Pods of the schedule's jobs, one each quarter of an
    hour, are left out."""
    return pods_with(kit, f"batch.kubernetes.io/job-name={JOB}")


def test_the_deployment_s_pod_is_admitted_scheduled_and_its_claim_bound(kit: Kit, manifests: list[Manifest]) -> None:
    place = f"/api/v1/namespaces/{SYSTEM}"
    until(
        lambda: (
            kit.admin.get(kit.path_of(only(manifests, "Deployment"))).get("status", {}).get("readyReplicas", 0) == 1
        ),
        90,
        what="the loop's pod is ready",
    )
    (one,) = pods_named(kit, "provisioner")

    assert one["status"]["phase"] == "Running"
    assert one["spec"]["containers"][0]["image"] == container(manifests)["image"]
    assert kit.admin.get(f"{place}/persistentvolumeclaims/provisioner-state")["status"]["phase"] == "Bound"


def test_a_pod_beside_the_standard_of_the_namespace_is_refused(kit: Kit, manifests: list[Manifest]) -> None:
    deployment = only(manifests, "Deployment")
    spec = {**deployment["spec"]["template"]["spec"], "hostNetwork": True}
    rogue = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "rogue", "namespace": SYSTEM}, "spec": spec}

    with pytest.raises(Refused, match="violates PodSecurity"):
        kit.apply(rogue, trial=True)


def test_the_account_may_do_nothing_beside_its_role(
    kit: Kit, pod: LoopPod, any_cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(kit.admin.server, pod.token, ca=any_cluster.ca)))
    account = Client(path)
    body = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    forbidden = [
        ("POST", "/api/v1/namespaces/default/pods", body),
        ("POST", f"/api/v1/namespaces/{SYSTEM}/pods", body),
        ("GET", "/api/v1/namespaces/symphony/secrets", None),
        ("GET", f"/api/v1/namespaces/{SYSTEM}/configmaps", None),
        ("GET", "/api/v1/nodes", None),
        ("GET", "/api/v1/pods", None),
        ("DELETE", "/api/v1/namespaces/symphony", None),
    ]

    assert account.get("/api/v1/namespaces/symphony/pods")["kind"] == "PodList"
    for method, place, document in forbidden:
        with pytest.raises(Refused) as refused:
            account.call(method, place, document)
        assert refused.value.status == 403, f"{method} {place}"


def test_a_template_that_hostfactory_got_reaches_the_pod_by_one_command(
    kit: Kit, pod: LoopPod, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def differing() -> list[str]:
        return [one.file for one in StateDir(pod.state).config_differences()]

    file = pod.host / "gkeinstprov_templates.json"
    document = json.loads(file.read_text())
    document["templates"].append({**document["templates"][0], "templateId": "New"})
    file.write_text(json.dumps(document))
    for name, value in pod.hf.environment.items():
        monkeypatch.setenv(name, value)
    assert sorted(pod.hf.templates()) == ["GkePod", "New"]
    assert differing() == ["templates"]

    assert cli.run(["configmap"]) == 0
    kit.apply(yaml.safe_load(capsys.readouterr().out))
    held = kit.admin.get(f"/api/v1/namespaces/{SYSTEM}/configmaps/provisioner-config")
    pod.mount(held)
    until(lambda: differing() == [], 60, what="the loop has read what the scripts have")
    id_ = pod.hf.request("New", 1)
    until(lambda: pod.hf.status(id_)["status"] == "complete", 90, every=0.3, what="a machine of the new template runs")
    back = pod.hf.return_machines([machine["name"] for machine in pod.hf.status(id_)["machines"]])
    until(lambda: pod.hf.status(back)["status"] == "complete", 90, every=0.3, what="it is returned")
    assert machines(kit) == set()


# --- the backup -------------------------------------------------------------------------------------------------------


def test_the_job_of_a_backup_is_admitted_and_gets_its_volumes(kit: Kit, manifests: list[Manifest]) -> None:
    cron = only(manifests, "CronJob")
    job = {"apiVersion": "batch/v1", "kind": "Job", **cron["spec"]["jobTemplate"]}
    job["metadata"] = {"name": JOB, "namespace": SYSTEM}
    kit.apply(job)

    def runs() -> bool:
        return [one["status"]["phase"] for one in backed_up_by_hand(kit)] in (["Running"], ["Succeeded"])

    until(runs, 90, what="the job's pod is scheduled, its claims bound")
    assert backed_up_by_hand(kit)[0]["metadata"]["labels"]["app.kubernetes.io/name"] == "provisioner-backup"


def test_whoever_pulls_our_image_shows_the_registry_the_login(kit: Kit, manifests: list[Manifest]) -> None:
    ours = [*pods_named(kit, "provisioner"), *backed_up_by_hand(kit)]

    assert len(ours) == 2
    assert all(one["spec"]["imagePullSecrets"] == [{"name": "registry-login"}] for one in ours)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a directory for the volume of backups, with three old backups."""
    directory = tmp_path / "kept"
    directory.mkdir()
    os.chmod(directory, 0o770)
    for days in (1, 13, 14):
        (directory / f"state-{days}.tar.gz").write_text("an earlier one")
        os.utime(directory / f"state-{days}.tar.gz", (time.time() - days * 86400.0,) * 2)
    return directory


def run_job(manifests: list[Manifest], volumes: Mapping[str, Path], *words: str) -> str:
    """Run a backup's container without a network, and return its output."""
    inside = Inside(pods(manifests)["CronJob"], volumes, network=False)
    command = inside.command(*container(manifests, "CronJob")["command"], *words)
    done = subprocess.run(
        command, env=inside.environment(), capture_output=True, text=True, check=False, timeout=60 * PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_pod_of_demand_is_admitted_and_runs_the_scripts_as_its_user(
    kit: Kit, manifests: list[Manifest], tmp_path: Path
) -> None:
    path = kit.path_of(only(manifests, "StatefulSet"))
    until(lambda: kit.admin.get(path).get("status", {}).get("readyReplicas", 0) == 1, 90, what="the pod is ready")

    conf, state = tmp_path / "conf", tmp_path / "state"
    write_configuration(manifests, conf)
    (template, *_) = json.loads((conf / "gkeinstprov_templates.json").read_text())["templates"]
    source = {"kind": "fixed", "template": template["templateId"], "machines": 2}
    (conf / "demand.yaml").write_text(json.dumps({"sources": {"base": source}}))
    state.mkdir()
    state.chmod(0o2770)
    inside = Inside(pods(manifests)["StatefulSet"], {"config": conf, "state": state}, network=False)
    command = inside.command(*entry_point(), "demand", "--once")
    python = conf / "python"  # the scripts' Python is isolated (-I), and would not find this host's packages
    python.write_text(f'#!/bin/sh\nshift\nexec /mnt/python/bin/{Path(sys.executable).resolve().name} "$@"\n')
    python.chmod(0o755)
    environment = inside.environment() | {"HF_PYTHON": "/etc/hostfactory/python"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60 * PATIENCE)
    assert done.returncode == 0, done.stderr
    (request,) = StateDir(state).intent.read().requests.values()
    assert (request.template, request.count, request.rc_account) == (template["templateId"], 2, "demand")


def test_a_backup_of_what_runs_needs_no_network_is_restored_by_its_job_and_old_ones_go(
    manifests: list[Manifest], pod: LoopPod, kept: Path, tmp_path: Path
) -> None:
    before = set(kept.iterdir())
    volumes = {"state": pod.state, "backup": kept, "config": pod.conf}
    assert "Saved the state of provider instance gkeinst" in run_job(
        manifests, volumes, *container(manifests, "CronJob")["args"]
    )
    assert {file.name for file in before - set(kept.iterdir())} == {"state-14.tar.gz"}, "two weeks are kept"
    (new,) = set(kept.iterdir()) - before

    lost = tmp_path / "lost"
    lost.mkdir()
    lost.chmod(0o2770)
    restore = f"provisioner restore --yes /var/backups/hostfactory/{new.name}"
    assert "Restored the state" in run_job(manifests, {**volumes, "state": lost}, restore)
    assert StateDir(lost).intent.read().requests == StateDir(pod.state).intent.read().requests != {}


# --- compute classes --------------------------------------------------------------------------------------------------


def test_the_pods_of_all_compute_classes_keep_what_their_files_say_on_a_real_server(
    kit: Kit, pod: LoopPod, any_cluster: Cluster, tmp_path: Path
) -> None:
    """The server must store the class and the tolerations of each pod unchanged, and must add no class."""
    write_configuration(built(GKE, "compute-classes"), tmp_path)
    login = kubeconfig(kit.admin.server, pod.token, ca=any_cluster.ca)
    (tmp_path / "kubeconfig").write_text(json.dumps(login))
    pools = {pool.name: pool for pool in pools_of(tmp_path)}
    assert sorted(pools) == sorted(
        f"{aim}-{what}" for aim in ("performance", "cost", "spot") for what in ("cpu", "gpu")
    )
    for name, pool in pools.items():
        made = made_by(pool, tmp_path / "kubeconfig", lambda machine: kit.admin.get(f"{PODS}/{machine}"))["spec"]
        until(lambda: machines(kit) == set(), 90, what="it has gone: the next one has the same name")

        assert missing_from(made, yaml.safe_load(pool.pod_spec.read_text())) == []
        assert made["nodeSelector"] == {"cloud.google.com/compute-class": name}
        assert made["containers"][0]["resources"]["limits"].get("nvidia.com/gpu") == ("1" if "gpu" in name else None)
