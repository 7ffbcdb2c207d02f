"""The demand of unschedulable pods, end to end, with a real API server and scheduler.

HostFactory's real scripts and the loop make machines in the embedded cloud. The machines become nodes of the cluster,
as they do with a site's start-up script.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.demand.kubernetes import Kubernetes
from provisioner.demand.service import DemandService
from provisioner.demand.settings import Demand
from provisioner.demand.sources import Fleet, Shape, SourceError
from provisioner.hostfactory.templates import load
from provisioner.lab.playground import Playground
from provisioner.state.directory import StateDir
from provisioner.testing.waiting import until
from tests.kube.cluster import Cluster
from tests.kube.space import DEMAND_RBAC, Space

pytestmark = [pytest.mark.kube, pytest.mark.timeout(900)]

TEMPLATE = "GceVm"
SIZE = {"cpu": "8", "memory": "32Gi", "pods": "110"}
"""Size of the template's machines in config/demoinst."""
TAINT = "grid:NoSchedule"


class Site:
    """A cluster whose nodes for jobs are machines that the demand service requests and returns."""

    def __init__(self, cluster: Cluster, space: Space, cloud: Playground, kubeconfig: Path) -> None:
        self.cluster, self.space, self.cloud = cluster, space, cloud
        pods = Kubernetes(
            namespaces=(space.name,),
            node_labels={TEMPLATE: {"grid": space.name}},
            node_taints={TEMPLATE: [TAINT]},
            kubeconfig=space.write_kubeconfig(kubeconfig),
        )
        settings = Demand(sources={"pods": pods}, fall_after_seconds=0.0, minimum_age_seconds=0.0, fall_share=1.0)
        templates = load(str(cloud.config), cloud.environment).templates
        self._service = DemandService(settings, templates, [StateDir(str(cloud.state))], cloud.hf)
        self.nodes: set[str] = set()

    def add_pod(self, name: str, **spec: Any) -> None:
        """Add a pod. A machine has room for two such pods. The machines accept the pod unless ``spec`` says
        otherwise."""
        containers = [{"name": "job", "image": "busybox", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}]
        fitting = {"nodeSelector": {"grid": self.space.name}, "tolerations": [{"key": "grid", "operator": "Exists"}]}
        self.space.add_pod(name, containers=containers, **fitting | spec)

    def node_of(self, pod: str) -> str:
        """Return the node of a pod; empty if the pod waits."""
        return str(self.space.pod(pod)["spec"].get("nodeName", ""))

    def running(self) -> set[str]:
        """Return the machines that run, as the cloud itself reports them."""
        return {machine["name"] for machine in self.cloud.cloud() if machine["phase"] == "running"}

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Take steps of the demand service until the condition holds."""

        def holds() -> bool:
            self._follow_machines()
            self.report = self._service.step(time.time())
            assert not self.report.sources["pods"]["problem"], self.report
            return bool(condition())

        try:
            until(holds, 240, every=0.5, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.report}") from error

    def _follow_machines(self) -> None:
        running = self.running()
        for name in running - self.nodes:
            self.cluster.add_node(name, capacity=SIZE, taint="grid", grid=self.space.name)
        for name in self.nodes - running:
            self.cluster.remove_node(name)
        self.nodes = running


@pytest.fixture
def site(cluster: Cluster, space: Space, tmp_path: Path) -> Iterator[Site]:
    with Playground() as cloud, space.seeing_nodes(DEMAND_RBAC):
        made = Site(cluster, space, cloud, tmp_path / "kubeconfig")
        try:
            yield made
        finally:
            for name in made.nodes:
                cluster.remove_node(name)


def test_machines_follow_unschedulable_pods_and_no_machine_that_works_is_returned(site: Site) -> None:
    pods = [f"job-{number}" for number in range(5)]
    for name in pods:
        site.add_pod(name)
    site.until(lambda: all(map(site.node_of, pods)), "all pods have a node")
    assert len(site.running()) == 3
    busy = site.node_of(pods[0])
    for name in [name for name in pods if site.node_of(name) != busy]:
        site.space.delete(name)
    site.until(lambda: len(site.running()) == 1, "the return of machines without work")
    assert site.running() == {busy}, site.report
    assert site.report.templates[TEMPLATE]["wanted"] == 1
    for name in pods:
        site.space.delete(name)
    site.until(lambda: not site.running(), "the return of the last machine")


def test_pods_that_no_machine_would_accept_make_no_machine(site: Site) -> None:
    """No machine may be made for the three pods that would fit no template's machines. The scheduler must place only
    the fourth pod, for which a machine is made."""
    terms = [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    site.add_pod("tolerates-nothing", tolerations=[])
    site.add_pod("other-node", nodeSelector={"disk": "ssd"})
    site.add_pod("other-affinity", nodeSelector={}, affinity={"nodeAffinity": required})
    site.until(lambda: sum(site.report.sources["pods"]["unfit"].values()) == 3, "the pods are named")
    assert (site.report.templates[TEMPLATE]["wanted"], site.running()) == (0, set())
    site.add_pod("job")
    site.until(lambda: site.node_of("job"), "the pod has a node")
    assert len(site.running()) == 1
    for name in ("tolerates-nothing", "other-node", "other-affinity"):
        assert not site.node_of(name)


def test_a_login_that_may_not_list_nodes_fails_the_read(space: Space, tmp_path: Path) -> None:
    source = Kubernetes(kubeconfig=space.write_kubeconfig(tmp_path / "kubeconfig"))
    with pytest.raises(SourceError, match="forbidden"):
        source.read(Fleet(time.time(), {TEMPLATE: Shape(8, 32768, 0)}, {}))
