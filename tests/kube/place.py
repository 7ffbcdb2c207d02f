"""A namespace of a real cluster as a place of the contract suite."""

from __future__ import annotations

from pathlib import Path

from provisioner.backends.gke.api import KubeTimes
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.settings import GkePool
from provisioner.model import ErrorClass
from tests.contract.places import Place
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
"""Short enough for a test, long enough for a server that shares two cores with all its controllers."""
SPEC = "terminationGracePeriodSeconds: 1\ncontainers: [{name: main, image: busybox}]\n"


class KubePlace(Place):
    """The backend acts as the provisioner's own account, through a proxy that can be made to fail."""

    backend: GkeBackend
    pool = "gke-main"
    patience = 30.0

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
        self._opened.append(GkeBackend(self._settings, provisioner="demo", times=TIMES))
        return self._opened[-1]

    def close(self) -> None:
        """End all backends."""
        for backend in self._opened:
            backend.close()

    def present(self) -> set[str]:
        return self._space.names()

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
        """Change the pod spec."""
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
