"""Fixtures of the tests of our manifests: an API server that defines all resources of the manifests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kube.cluster import Cluster, GivenCluster
from tests.kube.kit import Kit
from tests.support.manifests import built


@pytest.fixture(scope="session")
def kit(any_cluster: Cluster | GivenCluster) -> Iterator[Kit]:
    """Yield a server that defines all resources of our manifests, and has the manifests' namespaces."""
    if isinstance(any_cluster, GivenCluster):
        pytest.skip("needs a cluster of its own, not the one that TEST_KUBECONFIG names")
    made = Kit(any_cluster.admin)
    made.define()
    spaces = [manifest for manifest in built("base") if manifest["kind"] == "Namespace"]
    for space in spaces:
        made.apply(space)
    yield made
    for space in spaces:
        made.admin.delete(made.path_of(space))
