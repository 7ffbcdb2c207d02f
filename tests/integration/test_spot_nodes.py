"""Reading from Kubernetes whether the node of a pod is a Spot node. If a Spot node is gone, the pod was preempted. The
loss of another node has another cause."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.backends.gke import api as gke_api
from provisioner.backends.gke import spot_nodes
from provisioner.backends.gke.login import connect
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.spot_nodes import SpotNodes
from provisioner.lab.cloud.kubernetes.nodes import PODS_PER_NODE
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from tests.conformance.stage import TIMINGS, Case, Grid
from tests.support.clouds.kube_cloud import QUICK, SPACE, manifest
from tests.support.waiting import until

ON_SPOT, UNSEEN = Fault("spot_node"), Fault("denied", "nodes.list")
PLAIN = "containers: [{name: main, image: busybox}]\n"
TOLERANT = f"tolerations: [{{key: cloud.google.com/gke-spot, operator: Exists}}]\n{PLAIN}"


@pytest.mark.parametrize(
    ("faults", "pod", "cause"),
    [
        pytest.param([ON_SPOT], PLAIN, "preempted", id="a Spot node, which the pod did not ask for"),
        pytest.param([], TOLERANT, "node", id="a node on demand, though the pod would bear Spot"),
        pytest.param([ON_SPOT, UNSEEN], PLAIN, "node", id="a Spot node that we may not see"),
        pytest.param([UNSEEN], TOLERANT, "preempted", id="a node that we may not see, of a pod that would bear Spot"),
    ],
)
def test_the_node_says_whether_its_loss_was_a_preemption(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, faults: list[Fault], pod: str, cause: str
) -> None:
    caplog.set_level(logging.DEBUG, spot_nodes.__name__)
    case = Case(1, "", lambda _: None, loop=False)
    with Simulator(namespaces=["case-1"]) as cloud, Grid(tmp_path, cloud, case) as hf:
        cloud.impose(faults, TIMINGS)
        (hf.conf / "pod.yaml").write_text(pod)
        hf.start_loop()
        taken, kept = hf.complete(2)
        known = "Spot nodes are not known" if UNSEEN in faults else "Nodes read"
        until(lambda: known in caplog.text, 30, what=known)
        assert cloud.preempt(taken) == [taken]
        hf.reclaims(taken, among=[taken, kept])
        hosts = {"machines": [{"name": name, "machineId": name} for name in (taken, kept)]}
        assert hf.call("getReturnRequests", hosts)["message"] == f"Hosts to return: 1. {taken}: {cause}."


@pytest.fixture(scope="module")
def cloud() -> Iterator[Simulator]:
    with Simulator(namespaces=[SPACE]) as simulator:
        yield simulator


class Reader:
    """A reader of the nodes of the existing pods."""

    def __init__(self, cloud: Simulator, spec: Path) -> None:
        spec.write_text(PLAIN)
        pool = GkePool(name="gke-main", namespace=SPACE, pod_spec=spec, kubeconfig=Path(cloud.kubeconfig))
        self.cloud, self.nodes = cloud, SpotNodes(connect(pool))
        self.calls_before = self._calls()

    def pod(self, name: str, *faults: Fault) -> str:
        """Create a pod while these faults are in force. Return the name of its node."""
        self.cloud.impose([*faults], {"gke": {**QUICK, "schedule": 0.0}})
        self.cloud.call(lambda cloud: cloud.cluster.create(SPACE, manifest(name)))
        until(lambda: self._node(name), 30, what="the pod has a node")
        return self._node(name)

    def read(self, *names: str) -> list[bool | None]:
        """Read the nodes completely. Return for each pod whether it is on Spot; None if this is unknown."""
        for name in names:
            self.nodes.is_spot(name)
        self.nodes.observe()
        self.nodes.close()
        return [self.nodes.is_spot(name) for name in names]

    @property
    def calls(self) -> int:
        """Return the number of lists of nodes so far."""
        return self._calls() - self.calls_before

    def _node(self, name: str) -> str:
        found = self.cloud.call(lambda cloud: cloud.cluster.get("pods", SPACE, name).document["spec"].get("nodeName"))
        return str(found or "")

    def _calls(self) -> int:
        return self.cloud.call(lambda cloud: cloud.world.calls["nodes.list"])


@pytest.fixture
def reader(cloud: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr(spot_nodes, "PAUSE_SECONDS", 0.0)
    yield Reader(cloud, tmp_path / "pod.yaml")
    cloud.reset()


def test_nodes_are_read_once_for_all_pods_that_come_to_them(reader: Reader) -> None:
    spot, plain = reader.pod("a", ON_SPOT), reader.pod("b")
    assert reader.read("", spot, plain) == [None, True, False]
    one_reading = reader.calls
    assert one_reading == len(spot_nodes.SPOT_SELECTORS)
    assert reader.read(spot, plain) == [True, False]
    assert reader.calls == one_reading


def test_a_node_that_is_gone_stays_known(reader: Reader) -> None:
    spot = reader.pod("a", ON_SPOT)
    assert reader.read(spot) == [True]
    reader.cloud.call(lambda cloud: cloud.cluster.fail_node(cloud.cluster.get("nodes", "", spot)))
    assert reader.read(reader.pod("b"), spot) == [False, True]


def test_pages_are_read_to_the_end(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gke_api, "PAGE", 1)
    pods = [f"pod-{number}" for number in range(2 * PODS_PER_NODE)]
    nodes = {reader.pod(name, ON_SPOT) for name in pods}
    assert len(nodes) == 2
    assert reader.read(*nodes) == [True, True]


def test_a_refusal_is_final_and_a_failure_is_not(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, spot_nodes.__name__)
    spot = reader.pod("a", ON_SPOT)
    reader.cloud.impose([Fault("unavailable", "nodes.list", limit=1)])
    assert reader.read(spot) == [None]
    assert reader.read(spot) == [True]
    reader.cloud.impose([Fault("denied", "nodes.list", limit=1)])
    asked = reader.calls
    assert reader.read("another") == [None]
    assert reader.read("another") == [None]
    assert reader.calls == asked + 1
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_few_nodes_are_asked_for_seldom(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spot_nodes, "PAUSE_SECONDS", 3600.0)
    assert reader.read("one") == [False]
    assert reader.read("another") == [None]


def test_the_memory_of_nodes_is_bounded(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spot_nodes, "MOST", 2)
    reader.read("one")
    assert reader.read("two", "three") == [False, False]
    calls = reader.calls
    assert reader.read("two", "three") == [False, False]
    assert reader.calls == calls, "a node that was forgotten is not waited for"
    assert reader.nodes.is_spot("one") is None
