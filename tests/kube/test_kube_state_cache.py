"""Caches of objects on a real API server. A cache must be current again after its watches were cut, after the server
was away, and if the server does not accept the cache's version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.state.errors import StateError
from provisioner.state.kube.api_login import from_kubeconfig
from provisioner.state.kube.cache import ObjectCache
from provisioner.state.kube.connection import ApiServer
from tests.kube.cluster import Cluster, kubeconfig
from tests.kube.proxy import Proxy, Trouble
from tests.kube.space import Space
from tests.support.waiting import until

pytestmark = pytest.mark.kube

SECONDS = 30.0


class Leases:
    """The Leases of a namespace, which a test adds and removes. A cache sees them through a proxy."""

    def __init__(self, space: Space, proxy: Proxy, directory: Path) -> None:
        self.path = f"/apis/coordination.k8s.io/v1/namespaces/{space.name}/leases"
        self._admin, self._proxy = space.admin, proxy
        token = space.admin.headers["Authorization"].removeprefix("Bearer ")
        file = directory / "kubeconfig"
        file.write_text(json.dumps(kubeconfig(proxy.address, token, ca=proxy.ca, namespace=space.name)))
        self._server = ApiServer(lambda: from_kubeconfig(str(file)))
        self.cache = ObjectCache(self._server, self.path)

    def add(self, name: str) -> None:
        self._admin.create(self.path, {"metadata": {"name": name}, "spec": {"holderIdentity": "x"}})

    def remove(self, name: str) -> None:
        self._admin.delete(f"{self.path}/{name}")

    def until_seen(self, *names: str) -> None:
        until(lambda: self.cache.objects.keys() == set(names), SECONDS, what=f"the cache has {names}")
        self.cache.check()

    def calls(self) -> list[str]:
        """Return the sort of each call of the cache: ``list`` or ``watch``. Probes of the version do not count."""
        calls = [call for call in self._proxy.calls if call.path == self.path and not call.query.endswith("limit=1")]
        return ["watch" if call.watches else "list" for call in calls]

    def steps_from(self, version: str) -> list[str]:
        """Let a new cache read a list, and then watch from ``version`` instead of the list's version. Return the
        cache's calls.

        Check that the cache is current at the end.
        """
        self.cache.stop_following()
        before, cache = len(self.calls()), ObjectCache(self._server, self.path)
        cache.step()
        cache.resource_version = version
        self.add("last")
        cache.step()
        cache.step()
        cache.check()
        assert "last" in cache.objects
        return self.calls()[before:]


@pytest.fixture
def leases(space: Space, proxy: Proxy, tmp_path: Path) -> Iterator[Leases]:
    made = Leases(space, proxy, tmp_path)
    made.add("a")
    made.cache.start_following()
    made.cache.wait_synced(SECONDS)
    until(lambda: made.calls() == ["list", "watch"], SECONDS, what="the watch begins")
    yield made
    made.cache.stop_following()


def test_a_watch_is_followed_also_if_it_is_cut_again_and_again(leases: Leases, proxy: Proxy) -> None:
    leases.add("b")
    leases.until_seen("a", "b")
    for number in range(5):
        until(proxy.cut_watches, SECONDS, what="a stream is open")
        leases.add(f"c{number}")
        leases.until_seen("a", "b", *[f"c{one}" for one in range(number + 1)])
    leases.remove("a")
    leases.until_seen("b", *[f"c{one}" for one in range(5)])
    assert leases.calls().count("list") == 1
    assert leases.calls().count("watch") < 20, "and not in haste"


def test_from_a_version_of_the_future_no_stream_is_followed(leases: Leases) -> None:
    """An API server goes back to an older version if its etcd is restored from a backup. A cache then has a version
    that the server has not reached, and the server would stream nothing. So the cache must list again."""
    assert leases.steps_from(str(10**9)) == ["list", "list"]


def test_after_the_server_was_away_the_cache_is_current_again(cluster: Cluster, leases: Leases, proxy: Proxy) -> None:
    before = leases.cache.resource_version
    proxy.trouble = Trouble.HANG
    proxy.cut()
    leases.remove("a")
    leases.add("b")
    cluster.stop_server()
    proxy.trouble = Trouble.NONE
    until(lambda: "no usable response" in is_unknown(leases), 60.0, what="the objects count as unknown")
    cluster.start_server()
    leases.until_seen("b")
    assert leases.steps_from(before) == ["list", "watch", "list"], "a server that restarted has forgotten it: 410"


def is_unknown(leases: Leases) -> str:
    try:
        leases.cache.check()
    except StateError as error:
        return str(error)
    return ""
