"""A real kubectl on the embedded cloud. It gets only the kubeconfig that the cloud writes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from provisioner.backends.gke.settings import GkePool
from provisioner.backends.mig.settings import MigPool
from provisioner.lab.cloud.server import Serving, Simulator
from tests.support.waiting import PATIENCE, until

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="needs kubectl")

SPACE = "symphony"
QUICK = {"schedule": 0.1, "start": 0.1, "ready": 0.1, "stop": 0.3, "confirm": 0.1, "reschedule": 0.2}
MANIFEST = """\
apiVersion: v1
kind: Pod
metadata:
  name: from-file
  labels: {app: grid}
spec:
  containers:
    - name: main
      image: image:1
      resources: {requests: {cpu: 500m}}
"""


@pytest.fixture
def simulator(shared: Simulator) -> Simulator:
    """Return the module's simulator after a reset: without objects, with short times and without faults."""
    shared.reset()
    shared.impose(timings={"gke": QUICK})
    return shared


class Kubectl:
    """kubectl with a fresh home directory."""

    def __init__(self, kubeconfig: Path, home: Path) -> None:
        path = os.environ.get("PATH", "")
        self.environment = {"KUBECONFIG": str(kubeconfig), "HOME": str(home), "PATH": path}

    def run(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        """Run kubectl, and return its output followed by its error output. Raises AssertionError if it ends with
        another exit code than ``code``."""
        done = subprocess.run(
            [str(KUBECTL), *arguments],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=30 * PATIENCE,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def kubectl(simulator: Simulator, tmp_path: Path) -> Kubectl:
    return Kubectl(simulator.kubeconfig, tmp_path)


def test_run_wait_get_describe_and_delete(kubectl: Kubectl, simulator: Simulator) -> None:
    assert kubectl.run("run", "a", "--image=image:1") == "pod/a created\n"
    assert (
        kubectl.run("wait", "--for=condition=Ready", "pod/a", f"--timeout={10 * PATIENCE:.0f}s")
        == "pod/a condition met\n"
    )
    assert kubectl.run("get", "pods").splitlines()[1].split()[:4] == ["a", "1/1", "Running", "0"]
    wide = kubectl.run("get", "pods", "-o", "wide").splitlines()
    assert wide[0].split() == [
        "NAME",
        "READY",
        "STATUS",
        "RESTARTS",
        "AGE",
        "IP",
        "NODE",
        "NOMINATED",
        "NODE",
        "READINESS",
        "GATES",
    ]
    assert wide[1].split()[5].startswith("10.4.")
    described = kubectl.run("describe", "pod", "a")
    assert "Successfully assigned symphony/a to gke-simulator" in described
    assert re.search("ContainersReady +True", described)
    assert kubectl.run("delete", "pod", "a") == 'pod "a" deleted\n'
    assert simulator.state()["machines"] == [], "kubectl waits until the pod has gone"


def test_get_with_w_prints_each_change(kubectl: Kubectl, simulator: Simulator) -> None:
    command = [str(KUBECTL), "get", "pods", "-w"]
    with subprocess.Popen(command, env=kubectl.environment, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        until(lambda: "pods.watch" in simulator.state()["calls"], 30, what="the watch")
        kubectl.run("run", "a", "--image=image:1")
        kubectl.run("wait", "--for=condition=Ready", "pod/a", f"--timeout={10 * PATIENCE:.0f}s")
        kubectl.run("delete", "pod", "a")
        seen: list[str] = []
        for line in following.stdout:
            seen.append(line.split()[2])
            if seen[-1] == "Terminating" and line.split()[1] == "0/1":
                break
        following.send_signal(signal.SIGTERM)
    assert seen[0] == "STATUS"
    assert [word for word, before in zip(seen[1:], seen, strict=False) if word != before] == [
        "Pending",
        "ContainerCreating",
        "Running",
        "Terminating",
    ]


def test_create_apply_label_and_patch_from_a_file(kubectl: Kubectl) -> None:
    assert kubectl.run("create", "-f", "-", stdin=MANIFEST) == "pod/from-file created\n"
    assert "AlreadyExists" in kubectl.run("create", "-f", "-", stdin=MANIFEST, code=1)
    assert "configured" in kubectl.run("apply", "-f", "-", stdin=MANIFEST)
    assert "unchanged" in kubectl.run("apply", "-f", "-", stdin=MANIFEST)
    kubectl.run("label", "pod", "from-file", "tier=1")
    kubectl.run("annotate", "pod", "from-file", "note=yes")
    kubectl.run("patch", "pod", "from-file", "-p", '{"metadata":{"labels":{"more":"2"}}}')
    pod = json.loads(kubectl.run("get", "pod", "from-file", "-o", "json"))
    assert pod["metadata"]["labels"] == {"app": "grid", "tier": "1", "more": "2"}
    assert pod["metadata"]["annotations"]["note"] == "yes"
    assert kubectl.run("get", "pods", "-l", "tier in (1),!none", "-o", "name") == "pod/from-file\n"
    assert kubectl.run("delete", "-f", "-", stdin=MANIFEST) == 'pod "from-file" deleted\n'


def test_contexts_of_the_configuration_are_there_each_with_its_namespace(tmp_path: Path) -> None:
    spec = Path("pod.yaml")
    pools = {
        "a": GkePool(name="a", namespace="one", context="first-cluster", pod_spec=spec),
        "b": GkePool(name="b", namespace="two", context="second-cluster", pod_spec=spec),
        "c": MigPool(name="c", project="p-1", zone="us-central1-a", group="g"),
    }
    settings = SimpleNamespace(pools=pools, events=None)
    file = tmp_path / "kubeconfig"
    with Simulator(settings, serving=Serving(kubeconfig=file)) as simulator:  # type: ignore[arg-type]
        kubectl = Kubectl(file, tmp_path)
        kubectl.run("run", "a", "--image=i", "--context", "second-cluster")
        kubectl.run("run", "b", "--image=i")
        by_name = {machine["name"]: machine["pool"] for machine in simulator.state()["machines"]}
        assert by_name == {"a": "two", "b": "one"}
        assert [spec.name for spec in simulator.cloud.groups.specs] == ["g"]
