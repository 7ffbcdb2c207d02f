"""Our reading of Kubernetes Events from the simulated API server: its times, its number of calls, and a loop that works
without Events."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from provisioner.backends.gke import api
from provisioner.backends.gke.api import KubeTimes
from provisioner.backends.gke.failures_from_events import OF_NO_NODE, PodEvents
from provisioner.backends.gke.own_pods import Identity, Wait
from provisioner.backends.gke.pod_cache import PodCache
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.backends.gke.shared_pod_caches import PodCaches
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.model import Create, ErrorClass, Failure
from tests.support.clouds.kube_cloud import QUICK, SPACE
from tests.support.waiting import until

POOLS = Identity("demo", "gke-main"), Identity("demo", "gke-spare")
NO_NODE = Fault("stockout", params={"words": "GCE quota exceeded"})


def name(number: int) -> str:
    return f"hf-abcdefghij-{number:06d}"


class Bench:
    """Pods that no node accepts, the cache of these pods, and the reader of their Events."""

    def __init__(self, simulator: Simulator, spec: Path, *faults: Fault, pods: int = 1, **times: float) -> None:
        self.simulator = simulator
        self.impose(NO_NODE, *faults)
        pool = GkePool(name="gke-main", namespace=SPACE, pod_spec=spec, kubeconfig=Path(simulator.kubeconfig))
        namespaces = Namespaces(KubeTimes(**({"waiting": 0.0} | times)))
        self.woken: set[str] = set()
        self.caches = PodCaches()
        self._pools = [PodCache(identity) for identity in POOLS]
        for cache in self._pools:
            self._namespace = namespaces.join(pool, cache)
            self.caches.add(cache, partial(self.woken.add, cache.identity.pool))
        self.events = PodEvents(self._namespace.api, SPACE, self.caches)
        simulator.call(lambda cloud: [cloud.cluster.create(SPACE, manifest(number)) for number in range(pods)])
        until(lambda: len(self.waiting()) == pods, 30, what="no node takes the pods")

    def impose(self, *faults: Fault) -> None:
        self.simulator.impose(faults, {"gke": QUICK})

    def waiting(self) -> frozenset[Wait]:
        """Observe the pods, and return those that wait."""
        for cache in self._pools:
            self._namespace.refresh(cache)
        return self.caches.waiting(0.0)

    def observe(self) -> bool:
        """Observe as the backend does: the pods, then their Events."""
        self.waiting()
        self.events.observe()
        return True

    def texts(self) -> list[str]:
        self.observe()
        return [failure.text if failure else "" for failure in self.failures()]

    def failures(self) -> list[Failure | None]:
        return [machine.failure for pool in self._pools for machine in pool.machines(0.0).values()]

    def calls(self) -> int:
        return self.simulator.call(lambda cloud: cloud.world.calls["events.list"])


def manifest(number: int) -> dict[str, Any]:
    """Return the manifest of a pod. Even numbers belong to the first pool, odd numbers to the second."""
    identity = POOLS[number % 2]
    labels = identity.labels(Create(name(number), identity.pool, "small", "abcdefghij"))
    containers = [{"name": "main", "image": "busybox"}]
    return {"metadata": {"name": name(number), "labels": labels}, "spec": {"containers": containers}}


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator(namespaces=[SPACE]) as running:
        yield running


def test_once_in_a_while_events_are_read_for_all_pools_one_list_for_each_reason(
    simulator: Simulator, tmp_path: Path
) -> None:
    bench = Bench(simulator, tmp_path, pods=2)
    until(lambda: all("GCE quota exceeded" in text for text in bench.texts()), 30, what="the words are reported")
    for _ in range(50):
        bench.observe()
    assert bench.calls() == len(OF_NO_NODE)
    assert bench.woken == {identity.pool for identity in POOLS}


def test_they_are_read_again_when_their_time_has_come_and_no_more_once_there_is_a_node(
    simulator: Simulator, tmp_path: Path
) -> None:
    bench = Bench(simulator, tmp_path, events=0.05)
    until(lambda: bench.observe() and bench.calls() >= 3 * len(OF_NO_NODE), 30, what="a third reading")
    bench.impose()
    until(lambda: not bench.waiting(), 30, what="there is a node")
    bench.events.close()
    before = bench.calls()
    for _ in range(50):
        bench.observe()
    assert bench.calls() == before
    assert not any("GCE" in text for text in bench.texts())


def test_a_pod_that_has_not_waited_long_is_left_in_peace(simulator: Simulator, tmp_path: Path) -> None:
    bench = Bench(simulator, tmp_path, waiting=60.0)
    for _ in range(20):
        bench.observe()
    assert bench.calls() == 0


ADDRESSES = "failed to allocate for range 0: no IP addresses available in range set: 10.4.0.1-10.4.0.254"


@pytest.mark.parametrize(
    ("reason", "words", "error"),
    [
        ("FailedMount", 'secret "license" not found', ErrorClass.OTHER),
        ("NetworkNotReady", "cni config uninitialized", ErrorClass.OTHER),
        ("FailedCreatePodSandBox", ADDRESSES, ErrorClass.STOCKOUT),
    ],
)
def test_the_reason_why_a_node_does_not_prepare_its_pods_is_reported_until_it_has(
    simulator: Simulator, tmp_path: Path, reason: str, words: str, error: ErrorClass
) -> None:
    bench = Bench(simulator, tmp_path, pods=2, events=0.05)
    bench.impose(Fault("unprepared", params={"reason": reason, "words": words}))
    expected = Failure(error, f"{reason}: {words}")
    until(lambda: bench.observe() and bench.failures() == [expected, expected], 30, what="the words are reported")
    bench.impose()
    until(lambda: bench.observe() and bench.failures() == [None, None], 30, what="the pods go on")
    bench.events.close()


def test_long_lists_are_read_in_pages(simulator: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PAGE", 2)
    bench = Bench(simulator, tmp_path, pods=5)
    until(
        lambda: all("GCE quota exceeded" in text for text in bench.texts()), 30, what="the words are reported for all"
    )
    assert bench.calls() == 3 * len(OF_NO_NODE)


@pytest.mark.parametrize("mode", ["denied", "unavailable"])
def test_a_refused_reading_is_a_line_in_the_log_and_nothing_else(
    simulator: Simulator, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    with caplog.at_level(logging.WARNING):
        bench = Bench(simulator, tmp_path, Fault(mode, target="events.list"), events=0.05)
        until(lambda: bench.observe() and bench.calls() >= 2, 30, what="events are asked for again")
        bench.events.close()
    assert {record.message for record in caplog.records} == {"Events of waiting pods could not be read"}
    (failure,) = bench.failures()
    assert failure is not None
    assert failure.error is ErrorClass.STOCKOUT
    assert failure.text.startswith("Unschedulable: 0/")
