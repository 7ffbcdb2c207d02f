"""Events about pods that ended by themselves: their texts for operators and for the cluster's log, and their cost if
many pods end at once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from kubernetes.client import CoreV1Api

from provisioner.backends import Ended, Recording
from provisioner.backends.gke.backend import GkeBackend
from provisioner.backends.gke.loss_event_writer import COMPONENT, MOST
from provisioner.backends.gke.settings import GkePool
from provisioner.backends.gke.shared_connections import Namespaces
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.model import ErrorClass, Failure, LossCause
from tests.conformance.stage import Case, Grid, stage
from tests.support.clouds.kube_cloud import official_client
from tests.support.waiting import until

SPOT_POD = "nodeSelector: {cloud.google.com/gke-spot: 'true'}\ncontainers: [{name: main, image: busybox}]\n"
STORM = 10_000
REFUSED = "Events on lost pods are refused, and not tried again"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Simulator]:
    with stage() as running:
        yield running


@pytest.fixture(scope="module")
def api(cloud: Simulator) -> Iterator[CoreV1Api]:
    with official_client(cloud) as client:
        yield client


def grid(directory: Path, cloud: Simulator, number: int, **pool: Any) -> Grid:
    """Return a provider instance with a running loop and pods on Spot nodes."""
    hf = Grid(directory, cloud, Case(number, "", lambda _: None, loop=False, pool=pool))
    (hf.conf / "pod.yaml").write_text(SPOT_POD)
    hf.start_loop()
    return hf


def ours(api: CoreV1Api, place: str) -> list[Any]:
    """Return the Events that the provisioner has written."""
    return [one for one in api.list_namespaced_event(place).items if one.source.component == COMPONENT]


def sent(cloud: Simulator) -> int:
    """Return the number of Events that the provisioner has sent to the cloud."""
    calls: int = cloud.state()["calls"].get("events.create", 0)
    return calls


def test_each_pod_that_is_lost_or_never_runs_has_an_event_that_says_why_and_whose_it_was(
    tmp_path: Path, cloud: Simulator, api: CoreV1Api
) -> None:
    with grid(tmp_path, cloud, 1) as hf:
        preempted, evicted, deleted, returned = hf.complete(4)
        pods = f"{cloud.kubernetes}/api/v1/namespaces/{hf.place}/pods"
        uids = {one.metadata.name: one.metadata.uid for one in api.list_namespaced_pod(hf.place).items}
        cloud.preempt(preempted)
        requests.post(f"{pods}/{evicted}/eviction", json={"kind": "Eviction", "metadata": {}}, timeout=30)
        requests.delete(f"{pods}/{deleted}", timeout=30)
        hf.reclaims(preempted, evicted, deleted, among=[preempted, evicted, deleted, returned])
        assert hf.ended(hf.return_machines(returned))["status"] == "complete"
        hf.fault("slow_start", params={"seconds": 3600})
        request = hf.request("T2", 1)
        [waiting] = hf.until_cloud(lambda names: len(names) == 1, "pending")
        requests.delete(f"{pods}/{waiting}", timeout=30)
        hf.faults()
        assert hf.ended(request)["status"] == "complete"

        events = until(lambda: len(found := ours(api, hf.place)) == 4 and found, 30, what="four Events")
        reasons = {one.involved_object.name: one.reason for one in events}
        expected = {preempted: "Preempted", evicted: "Evicted", deleted: "Deleted", waiting: "FailedToRun"}
        assert reasons == expected, "and none on one that HostFactory gave back"
        event = next(one for one in events if one.reason == "Preempted")
        regarding = event.involved_object
        assert (regarding.kind, regarding.namespace, regarding.uid) == ("Pod", hf.place, uids[preempted])
        assert (event.type, event.count, event.reporting_component) == ("Warning", 1, COMPONENT)
        id_ = preempted.split("-")[1]
        assert event.message.startswith("Machine was preempted")
        assert event.message.endswith(f"Request {id_}, template T2, pool gke-main; it is reported to HostFactory.")
        selector = f"hf-provisioner/request={id_},hf-provisioner/template=T2"
        assert len(api.list_namespaced_event(hf.place, label_selector=selector).items) == 3


@pytest.mark.slow
def test_no_event_holds_the_loop_up_nor_its_end(tmp_path: Path, cloud: Simulator) -> None:
    with grid(tmp_path, cloud, 2) as hf:
        machines = hf.complete(2)
        before = sent(cloud)
        hf.faults(Fault("hang", f"{hf.place}/events.create"))
        cloud.preempt(machines[0])
        hf.reclaims(machines[0], among=machines)
        until(lambda: sent(cloud) == before + 1, 30, what="an Event is sent")
        cloud.preempt(machines[1])
        hf.reclaims(*machines)
        assert hf.ended(hf.return_machines(*machines))["status"] == "complete"
        assert len(hf.complete(1)) == 1
        hf.stop_loop()
        assert sent(cloud) == before + 1, "none is sent beside one that hangs"
        hf.faults()


def test_a_pool_may_write_none(tmp_path: Path, cloud: Simulator) -> None:
    before = sent(cloud)
    with grid(tmp_path, cloud, 3, loss_events=False) as hf:
        machines = hf.complete(1)
        cloud.preempt(*machines)
        hf.reclaims(*machines)
    assert sent(cloud) == before


# --- many, and a server that takes none -------------------------------------------------------------------------------


@pytest.fixture
def backend(tmp_path: Path, cloud: Simulator) -> Iterator[GkeBackend]:
    (tmp_path / "pod.yaml").write_text(SPOT_POD)
    settings = {"name": "pods", "namespace": "case-4", "pod_spec": tmp_path / "pod.yaml"}
    made = GkeBackend(GkePool(**settings, endpoint=cloud.kubernetes), Namespaces(), provisioner="demo")
    yield made
    made.close()
    cloud.impose()


def storm(count: int = STORM) -> list[Ended]:
    """Return ``count`` pods that end at once. Every tenth pod ends with its node, and the others are preempted."""
    failure = Failure(ErrorClass.OTHER, "The machine vanished.")
    causes = [LossCause.NODE if number % 10 == 0 else LossCause.PREEMPTED for number in range(count)]
    fields: dict[str, Any] = {"uid": "a-uid", "lost": True, "failure": failure}
    names = [f"hf-aaaaaaaaaa-{number:06d}" for number in range(count)]
    return [Ended(name, "aaaaaaaaaa", "T2", cause=cause, **fields) for name, cause in zip(names, causes, strict=True)]


def test_a_storm_costs_a_few_calls_and_is_counted_whole(cloud: Simulator, api: CoreV1Api, backend: GkeBackend) -> None:
    before = sent(cloud)
    assert isinstance(backend, Recording)
    backend.record_ends(storm())
    events = until(lambda: len(found := ours(api, "case-4")) == MOST + 1 and found, 30, what="all Events")
    assert sent(cloud) == before + MOST + 1
    (rest,) = (one for one in events if " more machines " in one.message)
    left = STORM - MOST
    assert rest.message.startswith(f"{left} more machines of pool pods ended: {left - 999} Preempted, 999 NodeLost.")
    assert (rest.reason, rest.involved_object.name) == ("Preempted", f"hf-aaaaaaaaaa-{MOST:06d}")


def test_without_the_right_it_is_said_once_and_not_tried_again(
    cloud: Simulator, backend: GkeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.impose([Fault("denied", "case-4/events.create")])
    before = sent(cloud)
    backend.record_ends(storm(3))
    until(lambda: REFUSED in caplog.messages, 30, what="it is logged")
    for _ in range(3):
        backend.record_ends(storm(3))
        backend.close()
    assert sent(cloud) == before + 1
    (line,) = (vars(one) for one in caplog.records if one.message == REFUSED)
    assert (line["levelno"], line["error"], "cannot create" in line["text"]) == (logging.WARNING, "denied", True)


def test_an_event_that_fails_once_does_not_keep_later_ones_away(
    cloud: Simulator, api: CoreV1Api, backend: GkeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    already = len(ours(api, "case-4"))
    cloud.impose([Fault("unavailable", "case-4/events.create", limit=1)])
    backend.record_ends(storm(1))
    until(lambda: "Events were not written" in caplog.messages, 30, what="it is logged")
    backend.record_ends(storm(2))
    events = until(lambda: len(found := ours(api, "case-4")) > already + 1 and found, 30, what="the later ones")
    assert len(events) == already + 2
