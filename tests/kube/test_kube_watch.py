"""Watches of a real server. The server streams lists or refuses to do so. Its streams end, expire or fall silent."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from provisioner.backends import BackendError
from provisioner.backends.gke.api import KubeTimes
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.own_pods import Identity
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.model import Create
from provisioner.names import machine_name
from provisioner.testing.place import PREFIX, REQUEST
from tests.kube.cluster import Cluster
from tests.kube.place import SPEC, TIMES
from tests.kube.proxy import Proxy, Trouble
from tests.kube.space import Space
from tests.support.waiting import until

pytestmark = pytest.mark.kube

MAIN, SPOT = "gke-main", "gke-spot"
SECONDS = 30.0


def name(number: int) -> str:
    return machine_name(PREFIX, REQUEST, number)


def add(space: Space, *numbers: int, pool: str = MAIN, provisioner: str = "demo") -> set[str]:
    """Make pods of a pool without the backend, and return their names. The pods do not change by themselves."""

    def make(number: int) -> str:
        labels = Identity(provisioner, pool).labels(Create(name(number), pool, "small", REQUEST))
        space.add_pod(name(number), labels, schedulerName="none")
        return name(number)

    with ThreadPoolExecutor(8) as threads:
        return set(threads.map(make, numbers))


class Bench:
    """Backends on one namespace, through a proxy."""

    def __init__(self, space: Space, proxy: Proxy, directory: Path) -> None:
        self._space, self._directory = space, directory
        self._kubeconfig = space.write_kubeconfig(directory / "kubeconfig", proxy)
        (directory / "pod.yaml").write_text(SPEC)
        self._open: list[GkeBackend] = []

    def backend(
        self, pool: str = MAIN, *, times: KubeTimes = TIMES, namespaces: Namespaces | None = None
    ) -> GkeBackend:
        """Return a backend that does not watch yet."""
        settings = GkePool(
            name=pool,
            namespace=self._space.name,
            pod_spec=self._directory / "pod.yaml",
            kubeconfig=self._kubeconfig,
        )
        self._open.append(GkeBackend(settings, namespaces or Namespaces(times), provisioner="demo"))
        return self._open[-1]

    def watching(self, *, times: KubeTimes = TIMES) -> GkeBackend:
        """Return a backend that has read its first list."""
        backend = self.backend(times=times)
        backend.start(lambda: None)
        observe(backend)
        return backend

    def close(self) -> None:
        for backend in self._open:
            backend.close()


@pytest.fixture
def bench(space: Space, proxy: Proxy, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(space, proxy, tmp_path)
    yield made
    made.close()


def observe(backend: GkeBackend) -> set[str]:
    return set(backend.observe(0.0, {}).machines)


def until_seen(backend: GkeBackend, expected: set[str]) -> None:
    """Wait until an observation shows exactly these pods. Observations before it may fail."""
    until(lambda: looked(backend) == expected, SECONDS, what=f"{len(expected)} pods are seen")


def looked(backend: GkeBackend) -> set[str] | None:
    """Return the machine names of one observation; None if the observation fails."""
    try:
        return observe(backend)
    except BackendError:
        return None


def test_a_list_is_streamed_and_its_stream_followed(space: Space, proxy: Proxy, bench: Bench) -> None:
    names = add(space, *range(300))
    backend = bench.watching()
    assert observe(backend) == names
    names |= add(space, 300)
    until_seen(backend, names)
    (call,) = proxy.observations()
    assert call.watches
    assert call.lists


def test_where_no_list_is_streamed_pages_are_listed_and_a_watch_follows_them(
    space: Space, proxy: Proxy, bench: Bench
) -> None:
    names = add(space, *range(510))
    proxy.trouble = Trouble.NO_STREAMED_LISTS
    backend = bench.watching()
    assert observe(backend) == names
    names |= add(space, 510)
    until_seen(backend, names)
    refused, first, second, watch = proxy.observations()
    assert (refused.lists, refused.watches) == (True, True)
    assert (first.lists, first.watches, "limit=500" in first.query) == (True, False, True)
    assert (second.lists, second.watches, "continue=" in second.query) == (True, False, True)
    assert (watch.lists, watch.watches) == (False, True)


def test_a_stream_that_breaks_is_resumed_without_a_list(space: Space, proxy: Proxy, bench: Bench) -> None:
    names = add(space, 1)
    backend = bench.watching()
    assert proxy.cut_watches() == 1
    names |= add(space, 2)
    until_seen(backend, names)
    assert [call.lists for call in proxy.observations()] == [True, False]


def test_after_a_restart_the_server_has_forgotten_versions_and_the_pods_are_listed_again(
    cluster: Cluster, space: Space, proxy: Proxy, bench: Bench
) -> None:
    add(space, 1, 2)
    backend = bench.watching()
    proxy.trouble = Trouble.HANG
    proxy.cut()
    space.remove(name(1))
    add(space, 3)
    cluster.stop_server()
    until(lambda: looked(backend) is None, SECONDS, what="no observation succeeds")
    cluster.start_server()
    assert looked(backend) is None
    proxy.trouble = Trouble.NONE
    until_seen(backend, {name(2), name(3)})
    assert [call.lists for call in proxy.observations()] == [True, False, True], "listed, refused with 410, listed"


def test_the_pools_of_a_namespace_share_one_watch_and_others_pods_are_ignored(
    space: Space, proxy: Proxy, bench: Bench
) -> None:
    main, spot = add(space, 1, 2), add(space, 3, pool=SPOT)
    add(space, 6, pool="gke-gone")
    namespaces = Namespaces(TIMES)
    backends = [bench.backend(pool, namespaces=namespaces) for pool in (MAIN, SPOT)]
    for backend in backends:
        backend.start(lambda: None)
    assert [observe(backend) for backend in backends] == [main, spot]
    add(space, 7, provisioner="another")
    space.admin.patch(f"{space.pods_path}/{name(1)}", {"metadata": {"labels": {"hf-provisioner/pool": SPOT}}})
    main |= add(space, 5)
    until_seen(backends[0], main - {name(1)})
    until_seen(backends[1], spot | {name(1)})
    assert len(proxy.observations()) == 1
    assert proxy.cut_watches() == 1
