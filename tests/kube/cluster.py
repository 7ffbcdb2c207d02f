"""A real Kubernetes cluster on loopback: etcd, kube-apiserver, controllers, scheduler, and nodes that kwok plays.

The cluster's processes also end when the test run is killed. The cluster needs no container and no root.
"""

from __future__ import annotations

import ctypes
import json
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.kube import kubelets
from tests.kube.client import Client
from tests.support.ports import free_ports
from tests.support.waiting import until

ADMIN = "admin"
CONTROLLERS = ("kube-controller-manager", "kube-scheduler", "kwok")
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NODES = 10
START_SECONDS = 90.0
"""Deadline of a start. A busy machine of two cores needs half of it."""
NODE_CAPACITY = {"cpu": "1000", "memory": "4Ti", "pods": "400", "ephemeral-storage": "1Ti"}


class GivenCluster:
    """The cluster that a kubeconfig names. Its processes are not ours, so tests cannot stop it."""

    owned = False

    def __init__(self, kubeconfig: Path) -> None:
        self.admin = Client(kubeconfig)


class Cluster:
    """A cluster of our own. A context manager."""

    owned = True

    def __init__(self, programs: Path) -> None:
        """``programs``: the directory with etcd, kube-apiserver and the others."""
        self._programs = programs
        self.directory = Path(tempfile.mkdtemp(prefix="hostfactory-kube-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._token = secrets.token_hex(16)
        self._etcd, self._peer, self._port, self._kwok = free_ports(4)
        self.server = f"https://127.0.0.1:{self._port}"
        self.ca = self.directory / "server.crt"
        self.key = self.directory / "server.key"
        self._kubeconfig = self.directory / "kubeconfig"

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self._start_etcd()
            self._start_server()
            self.admin = Client(self._kubeconfig)
            self._until_ready()
            self._start_controllers()
            for number in range(NODES):
                self.add_node(f"node-{number}")
            until(lambda: len(self.ready_nodes()) == NODES, START_SECONDS, every=0.2, what="all nodes are ready")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process. The logs stay until :meth:`forget`."""
        for process in reversed(self._processes.values()):
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()

    def forget(self) -> None:
        """Remove data and logs."""
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- what may happen to a cluster ---------------------------------------------------------------------------------

    def stop_server(self) -> None:
        """Kill the API server. The other processes run on."""
        self._end("kube-apiserver")

    def start_server(self) -> None:
        """Start the API server again, on the same port and with the same data. Return once it serves."""
        self._start_server()
        self._until_ready()
        # Left alone they would wait up to a minute before they try again, and every test after this with them.
        for program in CONTROLLERS:
            self._end(program)
        # Another kwok plays no node before the lease of the one before has ended.
        self.admin.delete(LEASES)
        self._start_controllers()

    def copy_data(self) -> Path:
        """Copy the data of etcd, and return the copy's directory. etcd stops meanwhile."""
        copy = self.directory / f"etcd-{secrets.token_hex(4)}"
        with self._stopped_etcd():
            shutil.copytree(self.directory / "etcd", copy)
        return copy

    def restore_data(self, copy: Path) -> None:
        """Bring etcd back from a copy, as an operator does. All later writes are lost."""
        with self._stopped_etcd():
            shutil.rmtree(self.directory / "etcd")
            shutil.copytree(copy, self.directory / "etcd")

    @contextmanager
    def _stopped_etcd(self) -> Iterator[None]:
        self.stop_server()
        self._end("etcd")
        yield
        self._start_etcd()
        self.start_server()

    def add_node(
        self, name: str, *, taint: str = "", capacity: Mapping[str, str] = NODE_CAPACITY, **labels: str
    ) -> None:
        """Add a node that kwok plays. With a ``taint``, it runs only pods that tolerate the taint's key."""
        taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
        self.admin.create(
            "/api/v1/nodes",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "annotations": {"kwok.x-k8s.io/node": "fake"},
                    "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels},
                },
                "spec": {"taints": taints},
                "status": {"allocatable": capacity, "capacity": capacity},
            },
        )

    def remove_node(self, name: str) -> None:
        """Delete a node's object, as a cloud does after it deleted the node's machine."""
        self.admin.delete(f"/api/v1/nodes/{name}")

    def expel(self, name: str, taint: str) -> None:
        """Taint a node, so that pods without a toleration have to leave."""
        self.admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [{"key": taint, "effect": "NoExecute"}]}})

    def ready_nodes(self) -> list[str]:
        """Return the names of the ready nodes that any pod may run on."""
        nodes = self.admin.get("/api/v1/nodes")["items"]
        return [node["metadata"]["name"] for node in nodes if _is_ready(node) and not node["spec"].get("taints")]

    # --- processes ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Write the files that the programs need.

        They are a key with its certificate, a user's token, a kubeconfig and settings.
        """
        request = (
            "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
        )
        usage = ["-addext", "keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign"]
        files = ["-keyout", str(self.key), "-out", str(self.ca)]
        subprocess.run([*request.split(), *usage, *files], check=True, capture_output=True)
        self._file("tokens.csv", f"{self._token},{ADMIN},1,system:masters\n")
        self._file("kubeconfig", json.dumps(kubeconfig(self.server, self._token, ca=self.ca)))
        self._file("kwok.yaml", kubelets.configuration())
        self._file("scheduler.yaml", yaml.safe_dump(self._scheduler_settings()))
        (self.directory / "plugins").mkdir()

    def _scheduler_settings(self) -> dict[str, Any]:
        """Return the scheduler's settings, with a high limit of requests.

        The default limit of 50 requests a second lets only 52 pods a second run.
        """
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self._kubeconfig), "qps": 2000, "burst": 4000},
        }

    def _start_etcd(self) -> None:
        own, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        self._start(
            "etcd",
            f"--data-dir={self.directory}/etcd",
            f"--listen-client-urls={own}",
            f"--advertise-client-urls={own}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            # As kubeadm sets it. Without it a watch of a quiet cluster gets no bookmark for minutes.
            "--experimental-watch-progress-notify-interval=5s",
            f"--quota-backend-bytes={8 << 30}",
            "--log-level=warn",
        )

    def _start_server(self) -> None:
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--tls-cert-file={self.ca}",
            f"--tls-private-key-file={self.key}",
            f"--token-auth-file={self.directory}/tokens.csv",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",  # as GKE: what a namespace takes is said by its labels
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.key}",
            f"--service-account-signing-key-file={self.key}",
            "--delete-collection-workers=8",
        )

    def _start_controllers(self) -> None:
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={self._kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--service-account-private-key-file={self.key}",
            f"--root-ca-file={self.ca}",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            f"--flex-volume-plugin-dir={self.directory}/plugins",
            # A claim bound in vain, since its caches are behind the server, waits for the next round: 15 s each.
            "--pvclaimbinder-sync-period=1s",
        )
        self._start("kube-scheduler", f"--config={self.directory}/scheduler.yaml", "--secure-port=0")
        self._start(
            "kwok",
            f"--kubeconfig={self._kubeconfig}",
            f"--config={self.directory}/kwok.yaml",
            "--manage-all-nodes=true",
            "--cidr=10.32.0.1/12",
            "--node-lease-duration-seconds=40",
            f"--server-address=127.0.0.1:{self._kwok}",
            "-v=ERROR",
        )

    def _start(self, program: str, *arguments: str) -> None:
        """Start a program that ends with this process, at the latest. Ctrl-C does not reach the program, because it has
        a session of its own: the cluster ends its programs in order."""
        with (self.directory / f"{program}.log").open("ab") as log:
            self._processes[program] = subprocess.Popen(
                [str(self._programs / program), *arguments],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def _end(self, program: str) -> None:
        process = self._processes.pop(program)
        process.kill()
        process.wait()

    def _until_ready(self) -> None:
        until(self._serves, START_SECONDS, every=0.1, what=f"the API server serves (logs in {self.directory})")

    def _serves(self) -> bool:
        self._check_alive()
        return self.admin.alive()

    def _check_alive(self) -> None:
        for program, process in self._processes.items():
            if process.poll() is not None:
                log = (self.directory / f"{program}.log").read_text(errors="replace")
                raise AssertionError(f"{program} ended with {process.returncode}:\n{log[-2000:]}")

    def _file(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)


def kubeconfig(server: str, token: str, *, ca: Path | None = None, namespace: str = "default") -> dict[str, Any]:
    """Return a kubeconfig for one user."""
    cluster = {"server": server} | ({"certificate-authority": str(ca)} if ca else {})
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
        "current-context": "test",
    }


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node["status"].get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _die_with_parent() -> None:
    """Let Linux kill this process when the thread that started it ends for any reason."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
