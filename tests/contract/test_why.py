"""The reasons why pods wait, and the causes of their ends. The simulator and a real API server show the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Simulator
from provisioner.lab.cloud.world import Fault
from provisioner.model import ErrorClass, LossCause, Machine, MachineEnd, Phase
from provisioner.testing.place import PREFIX, REQUEST, Place
from tests.contract.places import GkePlace
from tests.kube.client import Client
from tests.kube.kubelets import LABEL, STUCK
from tests.kube.space import Pods
from tests.support.clients.wire import Wire
from tests.support.waiting import until

ONE = f"{PREFIX}-{REQUEST}-000001"
GATE = "queue.example.com/wait"
SCALE_UP = (
    "Node scale up in zones us-central1-a associated with this pod failed: {}. Pod is at risk of not being scheduled."
)


@dataclass
class Cloud:
    """A namespace, our backend's view of it, and the actions of other users in it."""

    place: Place
    pods: Pods
    spec: Path
    fault: Callable[[Fault], None]
    """Function that sets a fault in the simulator. A real kubelet reads the fault from the pod's label."""
    event_calls: Callable[[], int]
    """Function that returns the number of lists of events."""

    def write(self, kubelet: str = "", **spec: Any) -> None:
        """Write the pod spec from which pods are created from now on."""
        metadata = {"labels": {LABEL: kubelet}} if kubelet else {}
        containers = [{"name": "main", "image": "busybox"}]
        self.spec.write_text(
            yaml.safe_dump({"kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}})
        )

    def seen(self) -> Machine:
        return self.place.observe().machines[ONE]

    def until(self, condition: Callable[[Machine], bool], what: str) -> Machine:
        """Wait until ``condition`` holds for the machine. Return the machine."""
        matching = until(
            lambda: machine if condition(machine := self.seen()) else None, self.place.patience, what=f"{what} is seen"
        )
        assert matching is not None
        return matching

    def run(self, kubelet: str = "", **spec: Any) -> None:
        """Create a pod from a spec, and wait until its machine runs."""
        self.write(kubelet, **spec)
        self.place.create(1)
        self.place.until_seen(ONE)


@pytest.fixture(params=["simulator", pytest.param("kube", marks=pytest.mark.kube)])
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cloud]:
    yield from (real if request.param == "kube" else simulated)(request, tmp_path)


def simulated(_: pytest.FixtureRequest, directory: Path) -> Iterator[Cloud]:
    with Simulator(namespaces=["symphony"]) as simulator, Wire(simulator.address) as wire:
        place = GkePlace(simulator, wire, directory, watched=True)

        def fault(one: Fault) -> None:
            simulator.call(lambda cloud: cloud.impose(Conditions(faults=[one])))

        def event_calls() -> int:
            return simulator.call(lambda cloud: cloud.world.calls["events.list"])

        pods = Pods(Client(simulator.kubeconfig), "symphony")
        yield Cloud(place, pods, directory / "pod.yaml", fault, event_calls)
        place.close()


def real(request: pytest.FixtureRequest, directory: Path) -> Iterator[Cloud]:
    request.getfixturevalue("cluster")
    space, proxy = request.getfixturevalue("space"), request.getfixturevalue("proxy")
    from tests.kube.place import KubePlace

    place = KubePlace(space, proxy, directory, watched=True)

    def event_calls() -> int:
        return sum("/events" in call.path for call in proxy.calls)

    yield Cloud(place, space, directory / "pod.yaml", lambda _: None, event_calls)
    place.close()


# --- reasons for waiting ----------------------------------------------------------------------------------------------

CRASH = {"seconds": 0.05}
OUT_OF_MEMORY = CRASH | {"exit_code": 137, "reason": "OOMKilled"}


@pytest.mark.parametrize(
    ("kubelet", "fault", "restart", "phase", "error", "words"),
    [
        pytest.param(
            "image-pull", Fault("image_pull"), "Always", Phase.PENDING, ErrorClass.INVALID, ["main: ", "ImagePull"],
            id="an image that cannot be pulled",
        ),
        pytest.param(
            "config", Fault("bad_config"), "Always", Phase.PENDING, ErrorClass.INVALID,
            ['main: CreateContainerConfigError: secret "grid" not found'], id="a secret that is missing",
        ),
        pytest.param(
            "crash-loop", Fault("crash", params=CRASH), "Always", Phase.PENDING, ErrorClass.OTHER,
            ["main: CrashLoopBackOff: back-off", ": Error: exit code 1"], id="a container that crashes again and again",
        ),
        pytest.param(
            "never-ready", Fault("never_ready"), "Always", Phase.PENDING, ErrorClass.OTHER,
            ["ContainersNotReady: containers with unready status: [main]"], id="a container that is never ready",
        ),
        pytest.param(
            "oom", Fault("crash", params=OUT_OF_MEMORY), "Never", Phase.GONE, ErrorClass.OTHER,
            ["main: OOMKilled: exit code 137"], id="a container that is out of memory once and for all",
        ),
    ],
)  # fmt: skip
def test_the_reason_why_a_pod_does_not_run_is_in_the_servers_words(
    cloud: Cloud, kubelet: str, fault: Fault, restart: str, phase: Phase, error: ErrorClass, words: list[str]
) -> None:
    cloud.write(kubelet, restartPolicy=restart)
    cloud.fault(fault)
    cloud.place.create(1)
    machine = cloud.until(lambda machine: words[-1] in (machine.failure.text if machine.failure else ""), words[-1])
    assert machine.failure is not None
    assert (machine.phase, machine.failure.error) == (phase, error)
    assert all(word in machine.failure.text for word in words), machine.failure.text
    assert machine.queued is None


# --- gates ------------------------------------------------------------------------------------------------------------


def test_a_gated_pod_waits_with_its_reason_until_its_gates_are_removed(cloud: Cloud) -> None:
    cloud.write(schedulingGates=[{"name": GATE}])
    cloud.place.create(1)
    machine = cloud.until(lambda machine: machine.queued is not None, "the gate")
    assert (machine.phase, machine.failure) == (Phase.PENDING, None), "no node is missing, the gates block the pod"
    assert machine.queued is not None
    assert machine.queued.reason.startswith("SchedulingGated: Scheduling is blocked due to non-empty scheduling gates")
    assert machine.queued.reason.endswith(GATE)
    assert abs(time.time() - machine.queued.since) < 60
    cloud.pods.lift(ONE)
    machine = cloud.place.until_seen(ONE)
    assert (machine.queued, machine.failure) == (None, None)


# --- messages of the autoscaler ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "error"),
    [("GCE out of resources", ErrorClass.STOCKOUT), ("GCE quota exceeded", ErrorClass.QUOTA)],
)
def test_the_reason_for_a_missing_node_is_in_the_autoscalers_words(cloud: Cloud, words: str, error: ErrorClass) -> None:
    cloud.write(nodeSelector={"disk": "huge"})
    cloud.fault(Fault("stockout", params={"words": words}))
    cloud.place.create(1)
    first = cloud.until(lambda machine: machine.failure is not None, "the scheduler's words")
    assert first.failure is not None
    assert first.failure.error is ErrorClass.STOCKOUT
    cloud.pods.say(ONE, "TriggeredScaleUp", "pod triggered scale-up: [{pool 3->4 (max: 9)}]")
    cloud.pods.say(ONE, "FailedScaleUp", SCALE_UP.format(words))
    cloud.pods.say(ONE, "NotTriggerScaleUp", "pod didn't trigger scale-up: 1 in backoff after failed scale-up")
    machine = cloud.until(lambda machine: words in (machine.failure.text if machine.failure else ""), words)
    assert machine.failure is not None
    assert machine.failure.error is error
    assert f"FailedScaleUp: {SCALE_UP.format(words)}; Unschedulable: 0/" in machine.failure.text


def test_no_event_is_read_of_pods_that_run(cloud: Cloud) -> None:
    cloud.run()
    cloud.write(schedulingGates=[{"name": GATE}])
    cloud.place.create(2)
    ended = cloud.place.now() + 40
    until(lambda: cloud.seen() and cloud.place.now() > ended, 30)
    assert cloud.event_calls() == 0


# --- causes of ends ---------------------------------------------------------------------------------------------------


def exits(cloud: Cloud) -> None:
    cloud.pods.exit(ONE, 0)


def fails(cloud: Cloud) -> None:
    cloud.pods.exit(ONE, 3)


def is_evicted(cloud: Cloud) -> None:
    cloud.pods.evict(ONE)


def is_deleted(cloud: Cloud) -> None:
    cloud.pods.delete(ONE)


def is_collected(cloud: Cloud) -> None:
    """Delete the pod, as the garbage collector deletes pods whose node is gone."""
    is_disrupted("DeletionByPodGC", "PodGC: node no longer exists")(cloud)
    cloud.pods.delete(ONE, grace=0)


def ends(reason: str, message: str) -> Callable[[Cloud], None]:
    """Return a function that ends the pod with this reason, as a kubelet does."""
    return lambda cloud: cloud.pods.set_status(ONE, phase="Failed", reason=reason, message=message)


def is_disrupted(reason: str, message: str) -> Callable[[Cloud], None]:
    """Return a function that marks the pod for disruption and then fails it."""

    def act(cloud: Cloud) -> None:
        cloud.pods.set_condition(ONE, "DisruptionTarget", "True", reason=reason, message=message)
        cloud.pods.exit(ONE, 137)

    return act


LOSSES: Mapping[str, tuple[Callable[[Cloud], None], Phase, LossCause, str]] = {
    "its container exits well": (exits, Phase.GONE, LossCause.EXITED, "main: Completed: exit code 0"),
    "its container fails": (fails, Phase.GONE, LossCause.EXITED, "main: Error: exit code 3"),
    "it is evicted through the API": (is_evicted, Phase.STOPPING, LossCause.EVICTED, "EvictionByEvictionAPI"),
    "it is deleted by others": (is_deleted, Phase.STOPPING, LossCause.DELETED, ""),
    "its kubelet evicts it": (
        ends("Evicted", "The node was low on resource: memory."), Phase.GONE, LossCause.EVICTED,
        "Evicted: The node was low on resource: memory.",
    ),
    "the scheduler needs the room": (
        is_disrupted("PreemptionByScheduler", "preempting to accommodate a higher priority pod"), Phase.GONE,
        LossCause.PREEMPTED, "PreemptionByScheduler: preempting",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("happens", "phase", "cause", "words"), LOSSES.values(), ids=LOSSES)
def test_why_a_pod_ended(
    cloud: Cloud, happens: Callable[[Cloud], None], phase: Phase, cause: LossCause, words: str
) -> None:
    cloud.fault(Fault("stuck"))
    cloud.run(STUCK)
    happens(cloud)
    machine = cloud.until(lambda machine: machine.phase is phase and machine.cause is cause, f"{phase}, {cause}")
    assert words in (machine.failure.text if machine.failure else "")
    assert (machine.notice is not None) is (phase is Phase.STOPPING)


@pytest.mark.parametrize(
    ("happens", "cause"),
    [
        pytest.param(is_evicted, LossCause.EVICTED, id="evicted"),
        pytest.param(is_deleted, LossCause.DELETED, id="deleted"),
        pytest.param(lambda cloud: cloud.pods.remove(ONE), LossCause.DELETED, id="deleted without any grace"),
        pytest.param(is_collected, LossCause.NODE, id="failed and collected, because its node is gone"),
    ],
)
def test_the_cause_of_an_end_is_known_although_no_observation_saw_it(
    cloud: Cloud, happens: Callable[[Cloud], None], cause: LossCause
) -> None:
    cloud.run(terminationGracePeriodSeconds=1)
    happens(cloud)
    until(lambda: not cloud.pods.names(), cloud.place.patience, what="the pod is gone")
    cloud.place.until_gone(ONE)
    assert cloud.place.observe([ONE]).ends == {ONE: MachineEnd(cause)}


def test_a_pod_that_came_and_went_before_any_observation_is_known_to_be_gone(cloud: Cloud) -> None:
    cloud.write()
    cloud.place.observe()
    cloud.place.create(1)
    cloud.pods.remove(ONE)
    until(lambda: cloud.place.observe().ends, cloud.place.patience, what="its end is reported")
    observation = cloud.place.observe([ONE])
    assert (observation.machines, observation.ends) == ({}, {ONE: MachineEnd(LossCause.DELETED)})


def test_a_pod_that_is_unready_for_a_while_is_the_same_machine(cloud: Cloud) -> None:
    cloud.run()
    before = cloud.seen()
    cloud.pods.set_condition(ONE, "Ready", "False", reason="ContainersNotReady", message="main is not ready")
    unready = cloud.until(lambda machine: machine.phase is Phase.PENDING, "an unready pod")
    assert (unready.cause, unready.notice, unready.fingerprint) == (None, None, before.fingerprint)
    cloud.pods.set_condition(ONE, "Ready", "True")
    assert cloud.place.until_seen(ONE) == before
