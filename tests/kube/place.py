"""A namespace of a real cluster as a place of the contract suite."""

from __future__ import annotations

from pathlib import Path

from provisioner.backends.gke.api import KubeTimes
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.model import ErrorClass
from provisioner.testing.place import How, Place
from tests.contract.places import end_pod
from tests.kube.proxy import Proxy, Trouble
from tests.kube.space import Space

TIMES = KubeTimes(
    call=3.0,
    silence=30.0,
    blind=1.0,
    first_observation=10.0,
    stream=60.0,
    first_retry=0.05,
    last_retry=0.5,
    waiting=0.2,
    events=0.5,
)
"""Times that are short enough for a test, and long enough for a server that shares two cores with its controllers."""
SPEC = "terminationGracePeriodSeconds: 1\ncontainers: [{name: main, image: busybox}]\n"


class KubePlace(Place):
    """A namespace of a real cluster. The backend uses the provisioner's account, through a proxy that can fail."""

    backend: GkeBackend
    pool = "gke-main"

    def __init__(self, space: Space, proxy: Proxy, directory: Path, *, watched: bool) -> None:
        super().__init__()
        self._space, self._proxy = space, proxy
        self._spec = directory / "pod.yaml"
        self._spec.write_text(SPEC)
        config = space.write_kubeconfig(directory / "kubeconfig", proxy)
        self._settings = GkePool(name=self.pool, namespace=space.name, pod_spec=self._spec, kubeconfig=config)
        self._opened: list[GkeBackend] = []
        self.backend = self.another()
        if watched:
            self.backend.start(lambda: None)

    def another(self) -> GkeBackend:
        return self._another(self._settings, "demo")

    def other_pool(self) -> GkeBackend:
        return self._another(self._settings.model_copy(update={"name": "gke-other"}), "demo")

    def other_provisioner(self) -> GkeBackend:
        return self._another(self._settings, "other")

    def _another(self, settings: GkePool, provisioner: str) -> GkeBackend:
        self._opened.append(GkeBackend(settings, Namespaces(TIMES), provisioner=provisioner))
        return self._opened[-1]

    def close(self) -> None:
        """End all backends."""
        for backend in self._opened:
            backend.close()

    def present(self) -> list[str]:
        return sorted(self._space.names())

    def end(self, name: str, how: How) -> bool:
        """End the pod as its kubelet or an operator does."""
        if is_possible := how in (How.EXIT, How.KILL, How.TIME_LIMIT):
            end_pod(self._space, name, how)
        return is_possible

    def creates(self) -> int:
        return len(self._proxy.creates())

    def spawn_foreign(self, name: str) -> None:
        self._space.add_pod(name)

    def copy(self, name: str, as_name: str) -> None:
        self._space.add_pod(as_name, self._space.pod(name)["metadata"]["labels"])

    def stray(self, name: str) -> None:
        self._space.admin.patch(f"{self._space.pods_path}/{name}", {"metadata": {"labels": None}})

    def remove(self, name: str) -> None:
        self._space.remove(name)

    def recreate(self, name: str) -> None:
        labels = self._space.pod(name)["metadata"]["labels"]
        self._space.remove(name)
        self._space.add_pod(name, labels)

    def fail_creates(self, error: ErrorClass) -> None:
        if error is ErrorClass.QUOTA:
            self._space.limit(pods=0)
        elif error is ErrorClass.DENIED:
            self._space.grant("get", "list", "watch", "delete")
        else:
            self.rewrite("containers: [{name: main, image: busybox, resources: {requests: {cpu: -1}}}]\n")

    def rewrite(self, spec: str) -> None:
        """Change the pod spec, from which later pods are made."""
        self._spec.write_text(spec)

    def lose_responses(self) -> None:
        self._proxy.trouble = Trouble.LOSE

    def hang(self) -> None:
        self._proxy.trouble = Trouble.HANG
        self._proxy.cut()

    def black_out(self) -> None:
        self._proxy.trouble = Trouble.FAIL
        self._proxy.cut()

    def heal(self) -> None:
        self._proxy.trouble = Trouble.NONE
