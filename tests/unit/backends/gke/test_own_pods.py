"""The machine of a pod, read from the server's own fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from provisioner.backends import BackendError
from provisioner.backends.gke.failures_from_status import NOT_PREPARED
from provisioner.backends.gke.own_pods import Ending, Identity, Wait, get_wait, label_value, machine_of
from provisioner.backends.gke.pod_spec import CONTAINERS
from provisioner.backends.gke.pod_status import DEFAULT_GRACE_SECONDS, Pod
from provisioner.backends.responses import translated_errors
from provisioner.model import Create, ErrorClass, Failure, Fingerprint, LossCause, Phase, Queued

NAME = "hf-abcdefghij-000007"
IDENTITY = Identity("demo", "gke-main")
CREATE = Create(NAME, "gke-main", "small", "abcdefghij")
READY = {"type": "Ready", "status": "True"}


def pod(status: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **metadata: Any) -> Pod:
    usual = {"name": NAME, "uid": "u1", "creationTimestamp": "2025-01-01T00:00:00Z", "labels": IDENTITY.labels(CREATE)}
    return {"metadata": usual | metadata, "spec": spec or {}, "status": status or {"phase": "Pending"}}


def running(**status: Any) -> Pod:
    return pod({"phase": "Running", "podIP": "10.0.0.7", "conditions": [READY]} | status)


def terminating(status: dict[str, Any], grace: int | None = 30, **metadata: Any) -> Pod:
    return pod(status, deletionTimestamp="2025-01-01T01:00:30Z", deletionGracePeriodSeconds=grace, **metadata)


def disrupted(reason: str, message: str = "", status: str = "True") -> dict[str, Any]:
    return {"type": "DisruptionTarget", "status": status, "reason": reason, "message": message}


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}, **more}


def terminated(reason: str, code: int, **more: Any) -> dict[str, Any]:
    return {"name": "main", "state": {"terminated": {"reason": reason, "exitCode": code}}, **more}


def affine(key: str, operator: str, *values: str) -> dict[str, Any]:
    """Return the spec of a pod that requires nodes whose label meets this condition."""
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


@pytest.mark.parametrize(
    ("seen", "hindrance"),
    [
        pytest.param(pod(finalizers=["example.com/a"]), None, id="it is not deleted"),
        pytest.param(terminating({"phase": "Running"}), None, id="its kubelet ends it"),
        pytest.param(
            terminating({"phase": "Running"}, finalizers=["example.com/a", "example.com/b"]),
            Failure(ErrorClass.OTHER, "it waits for its finalizers: example.com/a, example.com/b"),
            id="its finalizers hold it",
        ),
    ],
)
def test_why_a_pod_does_not_go(seen: Pod, hindrance: Failure | None) -> None:
    assert machine_of(seen)[0].hindrance == hindrance


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


def failed(reason: str = "", spec: dict[str, Any] | None = None, **status: Any) -> Pod:
    return pod({"phase": "Failed", **({"reason": reason} if reason else {}), **status}, spec)


SPOT = {"nodeSelector": {"cloud.google.com/gke-spot": "true"}}
ON_SPOT = (
    SPOT,
    {"nodeSelector": {"cloud.google.com/gke-provisioning": "spot"}},
    {"tolerations": [{"key": "cloud.google.com/gke-preemptible", "operator": "Exists"}]},
    affine("cloud.google.com/gke-spot", "In", "true"),
    affine("cloud.google.com/gke-spot", "Exists"),
    affine("cloud.google.com/gke-provisioning", "In", "standard", "spot"),
)
NOT_ON_SPOT = (
    affine("cloud.google.com/gke-spot", "NotIn", "true"),
    affine("cloud.google.com/gke-provisioning", "In", "standard"),
    {"affinity": {"nodeAffinity": None}},
)
DISRUPTIONS = (
    ("PreemptionByScheduler", "", LossCause.PREEMPTED),
    ("EvictionByEvictionAPI", "", LossCause.EVICTED),
    ("DeletionByTaintManager", "", LossCause.NODE),
    ("DeletionByPodGC", "", LossCause.NODE),
    ("TerminationByKubelet", "node shutdown in progress", LossCause.NODE),
    ("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.", LossCause.NODE),
    ("TerminationByKubelet", "The node was low on resource: memory.", LossCause.EVICTED),
    ("TerminationByKubelet", "Preempted in order to admit critical pod", LossCause.PREEMPTED),
    ("SomethingNew", "", LossCause.UNKNOWN),
)
FAILURES = {
    "Evicted": LossCause.EVICTED,
    "Preempting": LossCause.PREEMPTED,
    "NodeShutdown": LossCause.NODE,
    "Terminated": LossCause.NODE,
    "OutOfpods": LossCause.NODE,
    "OutOfnvidia.com/gpu": LossCause.NODE,
    "TopologyAffinityError": LossCause.NODE,
    "NodePorts": LossCause.NODE,
    "TaintToleration": LossCause.NODE,
    "DeadlineExceeded": LossCause.EXPIRES,
    "New": LossCause.UNKNOWN,
    "": LossCause.UNKNOWN,
}
EXITS = (
    ("Error", 3, LossCause.EXITED),
    ("OOMKilled", 137, LossCause.EXITED),
    ("ContainerStatusUnknown", 137, LossCause.NODE),
)
CALLED_OFF = disrupted("PreemptionByScheduler", status="False")
STOPPED = terminating({"phase": "Failed", "containerStatuses": [terminated("Error", 143)]})
CAUSES: dict[str, tuple[Pod, LossCause | None]] = {
    "a running machine has no cause": (running(), None),
    "nor has a pending one": (pod(), None),
    "deleted by someone": (terminating({"phase": "Running"}), LossCause.DELETED),
    "a disruption that was called off does not count": (terminating({"conditions": [CALLED_OFF]}), LossCause.DELETED),
    "ended because it was deleted": (STOPPED, LossCause.DELETED),
    "exited well": (pod({"phase": "Succeeded"}), LossCause.EXITED),
    "Spot, but evicted": (failed("Evicted", SPOT), LossCause.EVICTED),
    **{f"stopping: {why}, {text}": (terminating({"conditions": [disrupted(why, text)]}), cause)
       for why, text, cause in DISRUPTIONS},
    **{f"failed: {why}, {text}": (failed(conditions=[disrupted(why, text)]), cause)
       for why, text, cause in DISRUPTIONS},
    **{f"failed: {reason}": (failed(reason), cause) for reason, cause in FAILURES.items()},
    **{f"its container: {reason}": (failed(containerStatuses=[terminated(reason, code)]), cause)
       for reason, code, cause in EXITS},
    **{f"Spot: {spec}": (failed("Terminated", spec), LossCause.PREEMPTED) for spec in ON_SPOT},
    **{f"no Spot: {spec}": (failed("Terminated", spec), LossCause.NODE) for spec in NOT_ON_SPOT},
}  # fmt: skip


@pytest.mark.parametrize(("seen", "cause"), CAUSES.values(), ids=CAUSES)
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


STUCK_IMAGES = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")
CRASHED = {"terminated": {"reason": "Error", "exitCode": 3, "message": "no disk"}}
RUNS = {"name": "main", "ready": False, "state": {"running": {}}}
AGAIN = waiting("CrashLoopBackOff", "back-off 10s", lastState=OUT_OF_MEMORY)
TEXTS: dict[str, tuple[dict[str, Any], str]] = {
    "crash loop, with how it ended the last time": (
        {"containerStatuses": [AGAIN]}, "main: CrashLoopBackOff: back-off 10s: OOMKilled: exit code 137",
    ),
    "an init container is in a crash loop": (
        {"initContainerStatuses": [AGAIN], "containerStatuses": [waiting("PodInitializing")]},
        "main: CrashLoopBackOff: back-off 10s: OOMKilled: exit code 137",
    ),
    "an init container failed": (
        {"initContainerStatuses": [{"name": "setup", "state": CRASHED}], "containerStatuses": [waiting("Init")]},
        "setup: Error: no disk: exit code 3",
    ),
    "failed, in the kubelet's words": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        "Evicted: The node was low on resource: memory.",
    ),
    "failed, in its container's words": (
        {"phase": "Failed", "containerStatuses": [terminated("OOMKilled", 137)]}, "main: OOMKilled: exit code 137",
    ),
    "exited well": (
        {"phase": "Succeeded", "containerStatuses": [terminated("Completed", 0)]}, "main: Completed: exit code 0",
    ),
    "failed, in the words of who ended it": (
        {"phase": "Failed", "conditions": [disrupted("DeletionByPodGC", "PodGC: node no longer exists")]},
        "DeletionByPodGC: PodGC: node no longer exists",
    ),
    "about to be ended before it ran": (
        {"phase": "Pending", "conditions": [disrupted("EvictionByEvictionAPI", "Eviction API: evicting")]},
        "EvictionByEvictionAPI: Eviction API: evicting",
    ),
    "failed: a sidecar is only stopped with the others": (
        {
            "phase": "Failed",
            "initContainerStatuses": [terminated("Error", 143) | {"name": "proxy"}],
            "containerStatuses": [terminated("Error", 3, lastState={"terminated": {"exitCode": 1}})],
        },
        "main: Error: exit code 3",
    ),
    "it runs again after it was out of memory, and is not ready": (
        {
            "phase": "Running",
            "conditions": [UNREADY],
            "initContainerStatuses": [{"name": "proxy", "ready": True, "state": {"running": {}}}],
            "containerStatuses": [RUNS | {"lastState": OUT_OF_MEMORY}],
        },
        "main: OOMKilled: exit code 137",
    ),
    "what runs again, and is ready, is not why the pod is unready": (
        {
            "phase": "Running",
            "conditions": [UNREADY],
            "initContainerStatuses": [{"name": "proxy", "ready": True, "lastState": OUT_OF_MEMORY}],
            "containerStatuses": [RUNS],
        },
        "ContainersNotReady: main is not ready",
    ),
    "never ready": ({"phase": "Running", "conditions": [UNREADY]}, "ContainersNotReady: main is not ready"),
}  # fmt: skip
FAILED: dict[str, tuple[dict[str, Any], ErrorClass, str]] = {
    "unschedulable": ({"conditions": [UNSCHEDULABLE]}, ErrorClass.STOCKOUT, "Unschedulable: 0/3 nodes: no cpu"),
    **{
        why: ({"containerStatuses": [waiting(why, "no such image")]}, ErrorClass.INVALID, f"main: {why}: no such image")
        for why in STUCK_IMAGES
    },
    **{name: (status, ErrorClass.OTHER, text) for name, (status, text) in TEXTS.items()},
}


@pytest.mark.parametrize(("status", "error", "text"), FAILED.values(), ids=FAILED)
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
    text = "SchedulingGated: waits for a gate: queue.example.com/wait, other"
    assert (machine.queued, machine.failure) == (Queued(1_735_689_600, text), None), "a normal wait is no failure"


def test_a_pod_whose_gates_were_just_removed_is_starting() -> None:
    machine = machine_of(pod({"phase": "Pending", "conditions": [GATED]}))[0]
    assert (machine.queued, machine.failure) == (None, None)


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
    assert get_wait(machine_of(pod(status))[0]) == (Wait("u1", placed=False) if unplaced else None)


def ready_to_start(status: str) -> dict[str, Any]:
    return {"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": status}]}


CREATING = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}


@pytest.mark.parametrize(
    ("status", "node", "unprepared"),
    [
        pytest.param(ready_to_start("False"), "node-1", True, id="its node says so"),
        pytest.param({"phase": "Pending", "containerStatuses": [CREATING]}, "node-1", True, id="an older node"),
        pytest.param(ready_to_start("True"), "node-1", False, id="it pulls its image"),
        pytest.param({"phase": "Running"}, "node-1", False, id="its containers run"),
        pytest.param(ready_to_start("False"), "", False, id="it has no node"),
        pytest.param({"phase": "Pending", "containerStatuses": [waiting("ErrImagePull")]}, "node-1", False,
                     id="something else is wrong"),
    ],
)  # fmt: skip
def test_unprepared(status: dict[str, Any], node: str, unprepared: bool) -> None:
    machine = machine_of(pod(status, {"nodeName": node}))[0]
    assert (machine.failure == NOT_PREPARED) is unprepared
    assert (get_wait(machine) == Wait("u1", placed=True)) is unprepared


def test_what_is_merely_slow_never_stops_a_pool_at_once() -> None:
    seen = pod({"phase": "Running", "conditions": [UNREADY], "containerStatuses": [{"state": {"running": {}}}]})
    failure = machine_of(seen)[0].failure
    assert failure is not None
    assert not failure.error.backs_off


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


def test_a_label_names_the_slot() -> None:
    assert IDENTITY.labels(CREATE)["hf-provisioner/slot"] == "000007"


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
def test_a_pod_that_cannot_be_read_is_a_failed_observation(broken: Pod) -> None:
    """If a pod cannot be read, the observation must fail with a BackendError. ``translated_errors``, which surrounds
    each observation, list and watch, makes this error."""
    with pytest.raises(BackendError), translated_errors():
        IDENTITY.read(broken)


def test_a_template_name_becomes_a_valid_label_value() -> None:
    assert label_value("/big one/") == "big_one"
    assert len(label_value("x" * 100)) == 63


def test_what_many_pods_have_in_common_is_kept_once() -> None:
    document = json.dumps(pod({"phase": "Pending", "conditions": [UNSCHEDULABLE], "startTime": "2025-01-01T00:00:05Z"}))
    one, other = (machine_of(json.loads(document))[0] for _ in range(2))
    assert one.failure is other.failure
    assert one.launched is other.launched
    assert one.fingerprint.created is other.fingerprint.created


@pytest.mark.parametrize(
    ("seconds", "started", "expires"),
    [
        pytest.param(3600, "2025-01-01T00:00:05Z", 1735693205.0, id="so long after its kubelet took it"),
        pytest.param(3600, None, None, id="no kubelet has it yet"),
        pytest.param(None, "2025-01-01T00:00:05Z", None, id="it may run for ever"),
    ],
)
def test_when_its_kubelet_ends_a_pod(seconds: int | None, started: str | None, expires: float | None) -> None:
    seen = running(startTime=started)
    assert machine_of({**seen, "spec": {"activeDeadlineSeconds": seconds}})[0].expires_at == expires


def ended(name: str, code: int) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"reason": "Error" if code else "Completed", "exitCode": code}}}


MESH = {"name": "mesh", "ready": True, "state": {"running": {}}}
TWO = [{"name": "worker"}, {"name": "logs"}]


@pytest.mark.parametrize(
    ("policy", "statuses", "annotation", "over"),
    [
        pytest.param("Never", [ended("worker", 0), ended("logs", 1), MESH], "worker,logs", True, id="all of ours"),
        pytest.param("Never", [ended("worker", 0), MESH], "worker", True, id="another was added to its spec"),
        pytest.param("Never", [ended("worker", 0), ended("logs", 0)], None, True, id="of a pod of before: all"),
        pytest.param("Never", [ended("worker", 0), MESH], "worker,logs", False, id="one of ours runs on"),
        pytest.param("Never", [ended("worker", 0)], None, False, id="one has no status yet"),
        pytest.param("OnFailure", [ended("worker", 0), ended("logs", 0)], None, True, id="ended well"),
        pytest.param("OnFailure", [ended("worker", 0), ended("logs", 1)], None, False, id="one is started again"),
        pytest.param("Always", [ended("worker", 0), ended("logs", 0)], None, False, id="both are started again"),
        pytest.param(None, [ended("worker", 0), ended("logs", 0)], None, False, id="that is the default"),
        pytest.param("Never", [], None, False, id="nothing is known"),
    ],
)
def test_a_pod_is_over_when_all_containers_of_its_spec_have_ended_for_good(
    policy: str | None, statuses: list[dict[str, Any]], annotation: str | None, over: bool
) -> None:
    containers = TWO if annotation is None else [{"name": one} for one in (*annotation.split(","), "mesh")]
    spec = {"containers": containers} | ({"restartPolicy": policy} if policy else {})
    seen = pod(
        {"phase": "Running", "podIP": "10.0.0.7", "conditions": [UNREADY], "containerStatuses": statuses},
        spec,
        annotations={CONTAINERS: annotation} if annotation else {},
    )
    machine = machine_of(seen)[0]
    assert (machine.phase is Phase.GONE) is over
    assert (machine.cause is LossCause.EXITED) is over
    if over:
        assert machine.failure is not None
        assert "exit code" in machine.failure.text


@pytest.mark.parametrize("length", [1, 40, 56, 63])
def test_who_makes_a_pod_is_named_within_the_servers_limit(length: int) -> None:
    one, other = Identity("a" * length, "b" * length), Identity("a" * length, "c" * length)
    assert len(one.manager) <= 128
    assert one.manager != other.manager


@pytest.mark.parametrize("length", [1, 50, 63])
def test_our_creates_have_a_manager_that_every_server_takes_and_no_other_pool_has(length: int) -> None:
    """Two pools must have different field managers. Each has at most 128 characters, because a server refuses a longer
    ``fieldManager``."""
    pools = [Identity("p" * length, one * length) for one in "ab"]
    managers = {one.manager for one in pools}
    assert len(managers) == 2
    assert all(0 < len(manager) <= 128 for manager in managers)
    made = {"metadata": {"managedFields": [{"manager": pools[0].manager, "operation": "Update"}]}}
    assert [one.made(made, "") for one in pools] == [True, False]


ON_42 = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
NOT_0 = {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [0]}}


@pytest.mark.parametrize(
    ("policy", "container", "exit_code", "phase"),
    [
        pytest.param("Never", {}, 1, Phase.GONE, id="the pod's policy"),
        pytest.param("Never", {"restartPolicy": "Always"}, 1, Phase.PENDING, id="its own: always"),
        pytest.param("Never", {"restartPolicy": "OnFailure"}, 1, Phase.PENDING, id="its own: on failure"),
        pytest.param("Never", {"restartPolicy": "OnFailure"}, 0, Phase.GONE, id="on failure, and it succeeded"),
        pytest.param("Always", {"restartPolicy": "Never"}, 1, Phase.GONE, id="its own: never"),
        pytest.param("OnFailure", {"restartPolicy": "Never"}, 1, Phase.GONE, id="its own: never, not on failure"),
        pytest.param("Never", {"restartPolicyRules": [ON_42]}, 42, Phase.PENDING, id="a rule that fits"),
        pytest.param("Never", {"restartPolicyRules": [ON_42]}, 1, Phase.GONE, id="a rule that does not fit"),
        pytest.param("Never", {"restartPolicyRules": [ON_42, NOT_0]}, 1, Phase.PENDING, id="the second rule fits"),
        pytest.param("Never", {"restartPolicyRules": [NOT_0]}, 0, Phase.GONE, id="a rule for other codes"),
    ],
)
def test_a_machine_has_ended_when_its_container_is_not_started_again(
    policy: str, container: dict[str, Any], exit_code: int, phase: Phase
) -> None:
    state = {"terminated": {"exitCode": exit_code, "reason": "Error"}}
    statuses = [{"name": "worker", "state": state}, {"name": "mesh", "state": {"running": {}}}]
    seen = {
        "metadata": {"name": "a", "annotations": {"hf-provisioner/containers": "worker"}},
        "spec": {"restartPolicy": policy, "containers": [{"name": "worker", **container}, {"name": "mesh"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": statuses},
    }
    assert machine_of(seen)[0].phase is phase
