"""What a pod's JSON says about its machine, by the server's own fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from provisioner.backends import BackendError
from provisioner.backends.gke.pods import (
    DEFAULT_GRACE_SECONDS,
    Ending,
    Identity,
    Pod,
    is_unplaced,
    label_value,
    machine_of,
)
from provisioner.model import Create, ErrorClass, Failure, Fingerprint, LossCause, Phase
from provisioner.planning.window import ROUND_ERRORS

NAME = "hf-abcdefghij-000007"
IDENTITY = Identity("demo", "gke-main")
CREATE = Create(NAME, "gke-main", "small", "abcdefghij")
READY = {"type": "Ready", "status": "True"}


def pod(status: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **metadata: Any) -> Pod:
    usual = {"name": NAME, "uid": "u1", "creationTimestamp": "2025-01-01T00:00:00Z", "labels": IDENTITY.labels(CREATE)}
    return {"metadata": usual | metadata, "spec": spec or {}, "status": status or {"phase": "Pending"}}


def running(**status: Any) -> Pod:
    return pod({"phase": "Running", "podIP": "10.0.0.7", "conditions": [READY]} | status)


def terminating(status: dict[str, Any], grace: int | None = 30) -> Pod:
    return pod(status, deletionTimestamp="2025-01-01T01:00:30Z", deletionGracePeriodSeconds=grace)


def disrupted(reason: str, message: str = "", status: str = "True") -> dict[str, Any]:
    return {"type": "DisruptionTarget", "status": status, "reason": reason, "message": message}


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}, **more}


def terminated(reason: str, code: int, **more: Any) -> dict[str, Any]:
    return {"name": "main", "state": {"terminated": {"reason": reason, "exitCode": code}}, **more}


def affine(key: str, operator: str, *values: str) -> dict[str, Any]:
    """The spec of a pod that demands nodes with such a label."""
    terms = [{"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}]
    demanded = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": demanded}}


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        pytest.param(pod(), Phase.PENDING, id="a new pod is pending"),
        pytest.param(pod({}), Phase.PENDING, id="a pod without a status is pending"),
        pytest.param(running(), Phase.RUNNING, id="Running, Ready and an IP is running"),
        pytest.param(running(podIP=None), Phase.PENDING, id="without an IP it does not run"),
        pytest.param(running(conditions=[]), Phase.PENDING, id="without Ready it does not run"),
        pytest.param(
            running(conditions=[{"type": "Ready", "status": "False"}]), Phase.PENDING, id="unready does not run"
        ),
        pytest.param(running(phase="Pending"), Phase.PENDING, id="phase Pending does not run, whatever else it says"),
        pytest.param(running(phase="Unknown"), Phase.PENDING, id="phase Unknown is neither running nor dead"),
        pytest.param(running(phase="Failed"), Phase.GONE, id="phase Failed is gone"),
        pytest.param(running(phase="Succeeded"), Phase.GONE, id="phase Succeeded is gone"),
        pytest.param(terminating({"phase": "Running"}), Phase.STOPPING, id="a deleted pod is stopping"),
        pytest.param(terminating({"phase": "Failed"}), Phase.STOPPING, id="a deleted dead pod needs no more deleting"),
    ],
)
def test_phase(seen: Pod, phase: Phase) -> None:
    assert machine_of(seen)[0].phase is phase


def test_a_running_machine_has_all_that_hf_needs() -> None:
    machine, ending = machine_of(running(startTime="2025-01-01T00:00:05Z"))
    assert (machine.name, machine.ip, machine.launched) == (NAME, "10.0.0.7", 1735689605)
    assert machine.fingerprint == Fingerprint("u1", "2025-01-01T00:00:00Z", "", "10.0.0.7")
    assert (machine.failure, machine.cause, machine.notice, ending) == (None, None, None, None)


def test_launched_is_the_creation_until_a_kubelet_has_started_the_pod() -> None:
    assert machine_of(pod())[0].launched == 1735689600


def test_ordinary_progress_is_no_difference_of_fingerprints() -> None:
    before, after = machine_of(pod())[0], machine_of(running(startTime="2025-01-01T00:00:05Z"))[0]
    assert not before.fingerprint.differs(after.fingerprint)


@pytest.mark.parametrize(
    ("changed", "why"),
    [(pod(uid="u2"), "another pod"), (running(podIP="10.0.0.8"), "its sandbox was made again: its daemons are dead")],
)
def test_another_incarnation_is_a_difference(changed: Pod, why: str) -> None:
    assert machine_of(running())[0].fingerprint.differs(machine_of(changed)[0].fingerprint), why


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        pytest.param(terminating({"phase": "Running"}), LossCause.DELETED, id="deleted by someone"),
        pytest.param(
            terminating({"conditions": [disrupted("PreemptionByScheduler")]}), LossCause.PREEMPTED, id="preempted"
        ),
        pytest.param(
            terminating({"conditions": [disrupted("EvictionByEvictionAPI")]}), LossCause.EVICTED, id="evicted"
        ),
        pytest.param(
            terminating({"conditions": [disrupted("DeletionByTaintManager")]}), LossCause.NODE, id="its node is tainted"
        ),
        pytest.param(
            pod({"phase": "Failed", "conditions": [disrupted("DeletionByPodGC")]}),
            LossCause.NODE,
            id="its node is gone",
        ),
        pytest.param(
            pod({"phase": "Failed", "conditions": [disrupted("TerminationByKubelet", "node shutdown in progress")]}),
            LossCause.NODE,
            id="its node shuts down",
        ),
        pytest.param(
            pod({"phase": "Failed", "conditions": [disrupted("TerminationByKubelet", "low on memory")]}),
            LossCause.EVICTED,
            id="evicted by its kubelet",
        ),
        pytest.param(
            terminating({"conditions": [disrupted("SomethingNew")]}), LossCause.UNKNOWN, id="a reason nobody knows yet"
        ),
        pytest.param(
            terminating({"conditions": [disrupted("PreemptionByScheduler", status="False")]}),
            LossCause.DELETED,
            id="a disruption that was called off does not count",
        ),
        pytest.param(pod({"phase": "Failed", "reason": "Evicted"}), LossCause.EVICTED, id="failed: Evicted"),
        pytest.param(pod({"phase": "Failed", "reason": "Preempting"}), LossCause.PREEMPTED, id="failed: Preempting"),
        pytest.param(pod({"phase": "Failed", "reason": "NodeShutdown"}), LossCause.NODE, id="failed: NodeShutdown"),
        pytest.param(pod({"phase": "Failed", "reason": "Terminated"}), LossCause.NODE, id="failed: Terminated"),
        *(
            pytest.param(
                pod({"phase": "Failed", "conditions": [disrupted("TerminationByKubelet", message)]}), cause, id=message
            )
            for message, cause in (
                ("Pod was terminated in response to imminent node shutdown.", LossCause.NODE),
                ("The node was low on resource: memory.", LossCause.EVICTED),
                ("Preempted in order to admit critical pod", LossCause.PREEMPTED),
            )
        ),
        pytest.param(pod({"phase": "Failed", "reason": "OutOfpods"}), LossCause.NODE, id="failed: its node refused it"),
        pytest.param(pod({"phase": "Failed", "reason": "New"}), LossCause.UNKNOWN, id="failed: nobody knows yet why"),
        pytest.param(
            pod({"phase": "Failed", "reason": "DeadlineExceeded"}), LossCause.EXITED, id="its own deadline passed"
        ),
        pytest.param(pod({"phase": "Failed"}), LossCause.UNKNOWN, id="failed, and nobody says why"),
        *(
            pytest.param(
                pod({"phase": "Failed", "containerStatuses": [terminated(reason, code)]}), cause, id=f"failed: {reason}"
            )
            for reason, code, cause in (
                ("Error", 3, LossCause.EXITED),
                ("OOMKilled", 137, LossCause.EXITED),
                ("ContainerStatusUnknown", 137, LossCause.NODE),
            )
        ),
        pytest.param(
            terminating({"phase": "Failed", "containerStatuses": [terminated("Error", 143)]}),
            LossCause.DELETED,
            id="ended because it was deleted",
        ),
        pytest.param(pod({"phase": "Succeeded"}), LossCause.EXITED, id="exited well"),
        *(
            pytest.param(
                pod({"phase": "Failed", "reason": "Terminated"}, spec), LossCause.PREEMPTED, id=f"Spot: {spec}"
            )
            for spec in (
                {"nodeSelector": {"cloud.google.com/gke-spot": "true"}},
                {"nodeSelector": {"cloud.google.com/gke-provisioning": "spot"}},
                {"tolerations": [{"key": "cloud.google.com/gke-preemptible", "operator": "Exists"}]},
                affine("cloud.google.com/gke-spot", "In", "true"),
                affine("cloud.google.com/gke-spot", "Exists"),
                affine("cloud.google.com/gke-provisioning", "In", "standard", "spot"),
            )
        ),
        *(
            pytest.param(pod({"phase": "Failed", "reason": "Terminated"}, spec), LossCause.NODE, id=f"no Spot: {spec}")
            for spec in (
                affine("cloud.google.com/gke-spot", "NotIn", "true"),
                affine("cloud.google.com/gke-provisioning", "In", "standard"),
                {"affinity": {"nodeAffinity": None}},
            )
        ),
        pytest.param(
            pod({"phase": "Failed", "reason": "Evicted"}, {"nodeSelector": {"cloud.google.com/gke-spot": "true"}}),
            LossCause.EVICTED,
            id="Spot, but evicted",
        ),
        pytest.param(running(), None, id="a running machine has no cause"),
        pytest.param(pod(), None, id="nor has a pending one"),
    ],
)
def test_cause(seen: Pod, cause: LossCause | None) -> None:
    assert machine_of(seen)[0].cause is cause


@pytest.mark.parametrize(
    ("seen", "ending"),
    [
        pytest.param(
            terminating({"phase": "Running"}, 45), Ending(LossCause.DELETED, 45), id="a deletion gives its own grace"
        ),
        pytest.param(terminating({"phase": "Running"}, 0), Ending(LossCause.DELETED, 0), id="or none"),
        pytest.param(
            terminating({"phase": "Failed"}, 45), Ending(LossCause.DELETED, 0), id="what has ended has no time left"
        ),
        pytest.param(
            pod(running()["status"] | {"conditions": [READY, disrupted("PreemptionByScheduler")]}),
            Ending(LossCause.PREEMPTED, DEFAULT_GRACE_SECONDS),
            id="a disruption to come gives the usual grace",
        ),
        pytest.param(
            pod({"conditions": [disrupted("EvictionByEvictionAPI")]}, {"terminationGracePeriodSeconds": 120}),
            Ending(LossCause.EVICTED, 120),
            id="or the pod's own",
        ),
        pytest.param(
            pod({"phase": "Failed", "conditions": [disrupted("DeletionByPodGC")]}), None, id="what is gone ends no more"
        ),
        pytest.param(running(), None, id="a healthy machine has no end"),
    ],
)
def test_ending(seen: Pod, ending: Ending | None) -> None:
    assert machine_of(seen)[1] == ending


def test_a_machine_marked_for_disruption_still_runs() -> None:
    seen = running(conditions=[READY, disrupted("PreemptionByScheduler")])
    assert machine_of(seen)[0].phase is Phase.RUNNING


UNREADY = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "main is not ready"}
OUT_OF_MEMORY = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
SIDECAR = {"initContainers": [{"name": "proxy", "restartPolicy": "Always"}]}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no cpu"}
GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "waits for a gate"}


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [
        pytest.param(
            {"conditions": [UNSCHEDULABLE]}, ErrorClass.STOCKOUT, "Unschedulable: 0/3 nodes: no cpu", id="unschedulable"
        ),
        *(
            pytest.param(
                {"containerStatuses": [waiting(reason, "no such image")]},
                ErrorClass.INVALID,
                f"main: {reason}: no such image",
                id=reason,
            )
            for reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")
        ),
        pytest.param(
            {
                "containerStatuses": [
                    waiting(
                        "CrashLoopBackOff",
                        "back-off 10s",
                        lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}},
                    )
                ]
            },
            ErrorClass.OTHER,
            "main: CrashLoopBackOff: back-off 10s: OOMKilled: exit code 137",
            id="crash loop, with how it ended the last time",
        ),
        pytest.param(
            {
                "initContainerStatuses": [
                    {"name": "setup", "state": {"terminated": {"reason": "Error", "exitCode": 3, "message": "no disk"}}}
                ],
                "containerStatuses": [waiting("PodInitializing")],
            },
            ErrorClass.OTHER,
            "setup: Error: no disk: exit code 3",
            id="an init container failed",
        ),
        pytest.param(
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            ErrorClass.OTHER,
            "Evicted: The node was low on resource: memory.",
            id="failed, in the kubelet's words",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "containerStatuses": [
                    {"name": "main", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
                ],
            },
            ErrorClass.OTHER,
            "main: OOMKilled: exit code 137",
            id="failed, in its container's words",
        ),
        pytest.param(
            {"phase": "Succeeded", "containerStatuses": [terminated("Completed", 0)]},
            ErrorClass.OTHER,
            "main: Completed: exit code 0",
            id="exited well",
        ),
        pytest.param(
            {"phase": "Failed", "conditions": [disrupted("DeletionByPodGC", "PodGC: node no longer exists")]},
            ErrorClass.OTHER,
            "DeletionByPodGC: PodGC: node no longer exists",
            id="failed, in the words of who ended it",
        ),
        pytest.param(
            {"phase": "Pending", "conditions": [disrupted("EvictionByEvictionAPI", "Eviction API: evicting")]},
            ErrorClass.OTHER,
            "EvictionByEvictionAPI: Eviction API: evicting",
            id="about to be ended before it ran",
        ),
        pytest.param(
            {
                "phase": "Failed",
                "initContainerStatuses": [terminated("Error", 143) | {"name": "proxy"}],
                "containerStatuses": [terminated("Error", 3, lastState={"terminated": {"exitCode": 1}})],
            },
            ErrorClass.OTHER,
            "main: Error: exit code 3",
            id="failed: a sidecar is only stopped with the others",
        ),
        pytest.param(
            {
                "phase": "Running",
                "conditions": [UNREADY],
                "initContainerStatuses": [{"name": "proxy", "ready": True, "state": {"running": {}}}],
                "containerStatuses": [
                    {"name": "main", "ready": False, "state": {"running": {}}, "lastState": OUT_OF_MEMORY}
                ],
            },
            ErrorClass.OTHER,
            "main: OOMKilled: exit code 137",
            id="it runs again after it was out of memory, and is not ready",
        ),
        pytest.param(
            {
                "phase": "Running",
                "conditions": [UNREADY],
                "initContainerStatuses": [{"name": "proxy", "ready": True, "lastState": OUT_OF_MEMORY}],
                "containerStatuses": [{"name": "main", "ready": False, "state": {"running": {}}}],
            },
            ErrorClass.OTHER,
            "ContainersNotReady: main is not ready",
            id="what runs again, and is ready, is not why the pod is unready",
        ),
        pytest.param(
            {
                "phase": "Pending",
                "initContainerStatuses": [waiting("CrashLoopBackOff", "back-off 10s", lastState=OUT_OF_MEMORY)],
                "containerStatuses": [waiting("PodInitializing")],
            },
            ErrorClass.OTHER,
            "main: CrashLoopBackOff: back-off 10s: OOMKilled: exit code 137",
            id="an init container is in a crash loop",
        ),
        pytest.param(
            {
                "phase": "Running",
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "False",
                        "reason": "ContainersNotReady",
                        "message": "containers with unready status: [main]",
                    }
                ],
            },
            ErrorClass.OTHER,
            "ContainersNotReady: containers with unready status: [main]",
            id="never ready",
        ),
    ],
)
def test_failure(status: dict[str, Any], error: ErrorClass, text: str) -> None:
    assert machine_of(pod(status, SIDECAR))[0].failure == Failure(error, text)


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"phase": "Pending"}, id="new"),
        pytest.param({"conditions": [{"type": "PodScheduled", "status": "True"}]}, id="scheduled"),
        pytest.param({"containerStatuses": [waiting("ContainerCreating")]}, id="container being created"),
        pytest.param({"containerStatuses": [waiting("PodInitializing")]}, id="init containers at work"),
        pytest.param(
            {"initContainerStatuses": [{"name": "setup", "state": {"terminated": {"exitCode": 0}}}]},
            id="init container ended well",
        ),
        pytest.param(
            {
                "initContainerStatuses": [{"name": "proxy", "started": True, "ready": False, "state": {"running": {}}}],
                "containerStatuses": [waiting("PodInitializing")],
            },
            id="a sidecar runs beside what starts",
        ),
        pytest.param(running()["status"], id="running"),
        pytest.param(
            running(containerStatuses=[{"name": "main", "ready": True, "lastState": OUT_OF_MEMORY}])["status"],
            id="running again, and ready",
        ),
    ],
)
def test_a_pod_that_is_starting_or_running_has_no_failure(status: dict[str, Any]) -> None:
    assert machine_of(pod(status))[0].failure is None


def test_a_gated_pod_is_held_back_and_says_by_what() -> None:
    gates = [{"name": "queue.example.com/wait"}, {"name": "other"}]
    machine = machine_of(pod({"phase": "Pending", "conditions": [GATED]}, {"schedulingGates": gates}))[0]
    assert machine.gated
    text = "SchedulingGated: waits for a gate: queue.example.com/wait, other"
    assert machine.failure == Failure(ErrorClass.OTHER, text)


def test_a_pod_whose_gates_were_just_lifted_is_starting() -> None:
    machine = machine_of(pod({"phase": "Pending", "conditions": [GATED]}))[0]
    assert (machine.gated, machine.failure) == (False, None)


@pytest.mark.parametrize(
    ("status", "unplaced"),
    [
        pytest.param({"conditions": [UNSCHEDULABLE]}, True, id="no node takes it"),
        pytest.param({"conditions": [GATED]}, False, id="gated"),
        pytest.param({"containerStatuses": [waiting("ErrImagePull")]}, False, id="on its node"),
        pytest.param({}, False, id="new"),
    ],
)
def test_unplaced(status: dict[str, Any], unplaced: bool) -> None:
    assert is_unplaced(machine_of(pod(status))[0]) is unplaced


def test_what_is_merely_slow_never_stops_a_pool_at_once() -> None:
    seen = pod({"phase": "Running", "conditions": [UNREADY], "containerStatuses": [{"state": {"running": {}}}]})
    failure = machine_of(seen)[0].failure
    assert failure is not None
    assert failure.error in ROUND_ERRORS


def test_long_messages_are_cut() -> None:
    failure = machine_of(pod({"conditions": [UNSCHEDULABLE | {"message": "x" * 5000}]}))[0].failure
    assert failure is not None
    assert len(failure.text) == 400


def labelled(**changes: str) -> Pod:
    return pod(labels=IDENTITY.labels(CREATE) | {f"hf-provisioner/{key}": value for key, value in changes.items()})


@pytest.mark.parametrize(
    ("seen", "ours"),
    [
        pytest.param(pod(), True, id="all labels and the name agree"),
        pytest.param(pod(labels=None), False, id="no labels"),
        pytest.param(labelled(id="other"), False, id="another provisioner"),
        pytest.param(labelled(pool="other"), False, id="another pool"),
        pytest.param(labelled(slot="000008"), False, id="a copy of our labels under another name"),
        pytest.param(labelled(request="jjjjjjjjjj"), False, id="another request"),
        pytest.param(labelled(template="other"), True, id="the template is information only"),
    ],
)
def test_ours(seen: Pod, ours: bool) -> None:
    assert IDENTITY.owns(seen) is ours
    assert (IDENTITY.read(seen) is not None) is ours


def test_any_pool_of_ours_is_of_this_provisioner() -> None:
    assert IDENTITY.is_of_provisioner(labelled(pool="other"))
    assert not IDENTITY.is_of_provisioner(labelled(id="other"))
    assert not IDENTITY.is_of_provisioner(labelled(slot="000008")), "a copy of our labels under another name"


def test_the_selector_finds_what_the_labels_say() -> None:
    labels = IDENTITY.labels(CREATE)
    assert all(labels[term.partition("=")[0]] == term.partition("=")[2] for term in IDENTITY.selector.split(","))
    assert labels["hf-provisioner/slot"] == "000007"


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"metadata": {"labels": IDENTITY.labels(CREATE)}},
        {"metadata": {"name": NAME, "labels": 3}},
        pod({"phase": "Running", "startTime": "yesterday"}),
        pod({"conditions": [None]}),
    ],
)
def test_a_pod_that_cannot_be_read_is_a_failed_look(broken: Pod) -> None:
    with pytest.raises(BackendError) as caught:
        IDENTITY.read(broken)
    assert caught.value.failure.error is ErrorClass.UNAVAILABLE


def test_a_template_name_becomes_a_valid_label_value() -> None:
    assert label_value("/big one/") == "big_one"
    assert len(label_value("x" * 100)) == 63


def test_what_many_pods_have_in_common_is_kept_once() -> None:
    document = json.dumps(pod({"phase": "Pending", "conditions": [UNSCHEDULABLE], "startTime": "2025-01-01T00:00:05Z"}))
    one, other = (machine_of(json.loads(document))[0] for _ in range(2))
    assert one.failure is other.failure
    assert one.launched is other.launched
    assert one.fingerprint.created is other.fingerprint.created
