"""The simulated cluster's pods, in virtual time: their lives, their ends, what refuses them, what watchers can see."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.simulator.kubernetes import pod_status
from provisioner.simulator.kubernetes.errors import ApiError
from provisioner.simulator.kubernetes.pods import Cluster
from provisioner.simulator.kubernetes.settings import PodTimings
from provisioner.simulator.kubernetes.store import FIRST_VERSION, Stored
from provisioner.simulator.world import Fault, World

QUICK = PodTimings.parse({"schedule": 1, "start": 2, "ready": 3, "stop": 4, "confirm": 1, "reschedule": 10})
RUNNING_AFTER = 6.0
SPACE = "symphony"
CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


@pytest.fixture
def world() -> World:
    return World(seed=1)


@pytest.fixture
def cluster(world: World) -> Cluster:
    return Cluster(world, [SPACE, "other"], QUICK)


def make(cluster: Cluster, name: str = "a", namespace: str = SPACE, **spec: Any) -> Stored:
    containers = [{"name": "main", "image": "image:1"}]
    return cluster.create(namespace, {"metadata": {"name": name}, "spec": {"containers": containers, **spec}})


def pod(cluster: Cluster, name: str = "a") -> dict[str, Any]:
    return cluster.get("pods", SPACE, name).document


def phases(cluster: Cluster) -> dict[str, str]:
    return {machine["name"]: machine["phase"] for machine in cluster.state()}


def reasons(cluster: Cluster) -> set[str]:
    return {event.document["reason"] for event in cluster.stores["events"].select(SPACE)}


def condition(cluster: Cluster, kind: str, name: str = "a") -> dict[str, Any]:
    return pod_status.condition_of(pod(cluster, name), kind) or {}


def refusal(cluster: Cluster, name: str = "a", **spec: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        make(cluster, name, **spec)
    return caught.value


# --- life -------------------------------------------------------------------------------------------------------------


def test_a_pod_is_bound_runs_with_an_address_and_becomes_ready_each_at_its_time(world: World, cluster: Cluster) -> None:
    make(cluster)
    assert pod(cluster)["status"]["phase"] == "Pending"
    world.advance(1.0)
    assert pod(cluster)["spec"]["nodeName"]
    assert condition(cluster, "PodScheduled")["status"] == "True"
    assert "podIP" not in pod(cluster)["status"]
    world.advance(3.0)
    assert pod(cluster)["status"]["phase"] == "Running"
    assert pod(cluster)["status"]["podIP"] == "10.4.0.1"
    assert phases(cluster) == {"a": "pending"}, "a pod that is not Ready is no running machine"
    world.advance(RUNNING_AFTER)
    assert phases(cluster) == {"a": "running"}
    assert all(condition(cluster, kind)["status"] == "True" for kind in CONDITIONS)
    assert {"Scheduled", "Pulling", "Pulled", "Created", "Started"} <= reasons(cluster)


def test_addresses_and_uids_are_unique_and_nodes_are_added_for_many_pods(world: World, cluster: Cluster) -> None:
    for number in range(400):
        make(cluster, f"p{number}")
    world.advance(RUNNING_AFTER)
    documents = [stored.document for stored in cluster.pods.select(SPACE)]
    assert len({document["status"]["podIP"] for document in documents}) == 400
    assert len({document["metadata"]["uid"] for document in documents}) == 400
    per_node = [
        sum(d["spec"]["nodeName"] == node.name for d in documents) for node in cluster.stores["nodes"].select("")
    ]
    assert len(per_node) == 4
    assert max(per_node) <= 110


def test_the_same_seed_gives_the_same_world() -> None:
    def history() -> list[tuple[str, int, str]]:
        world = World(seed=7)
        cluster = Cluster(world, [SPACE])
        for number in range(20):
            make(cluster, f"p{number}")
        world.advance(60.0)
        return [(c.stored.name, c.version, c.stored.uid) for c in cluster.pods.since(FIRST_VERSION) or ()]

    assert history() == history()


def test_generated_names_are_free_and_begin_as_asked(cluster: Cluster) -> None:
    spec = {"containers": [{"name": "main", "image": "i"}]}
    names = {cluster.create(SPACE, {"metadata": {"generateName": "x-"}, "spec": spec}).name for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("x-") and len(name) == 7 for name in names)


# --- ends -------------------------------------------------------------------------------------------------------------


def test_a_deleted_pod_stays_terminating_until_its_kubelet_confirms(world: World, cluster: Cluster) -> None:
    make(cluster)
    world.advance(RUNNING_AFTER)
    asked = cluster.delete(cluster.get("pods", SPACE, "a"))
    assert asked.document["metadata"]["deletionGracePeriodSeconds"] == 30
    assert phases(cluster) == {"a": "stopping"}
    world.advance(RUNNING_AFTER + 4.5)
    assert pod(cluster)["status"]["phase"] == "Failed", "its containers have ended, the object is still there"
    world.advance(RUNNING_AFTER + 5.0)
    assert phases(cluster) == {}
    assert "Killing" in reasons(cluster)


def test_the_grace_period_limits_how_long_containers_take_to_end(world: World, cluster: Cluster) -> None:
    make(cluster)
    world.advance(RUNNING_AFTER)
    cluster.delete(cluster.get("pods", SPACE, "a"), grace=2)
    world.advance(RUNNING_AFTER + 3.0)
    assert phases(cluster) == {}


@pytest.mark.parametrize("wait", [0.0, 0.9])
def test_a_pod_that_was_never_scheduled_goes_at_once(world: World, cluster: Cluster, wait: float) -> None:
    make(cluster)
    world.advance(wait)
    cluster.delete(cluster.get("pods", SPACE, "a"))
    assert phases(cluster) == {}
    world.advance(60.0)
    assert phases(cluster) == {}, "its scheduling must not bring it back"


def test_grace_zero_removes_at_once_and_a_second_delete_may_only_shorten(world: World, cluster: Cluster) -> None:
    make(cluster)
    world.advance(RUNNING_AFTER)
    first = cluster.delete(cluster.get("pods", SPACE, "a"), grace=20)
    longer = cluster.delete(cluster.get("pods", SPACE, "a"), grace=25)
    assert longer.version == first.version
    shorter = cluster.delete(cluster.get("pods", SPACE, "a"), grace=10)
    assert shorter.document["metadata"]["deletionGracePeriodSeconds"] == 10
    cluster.delete(cluster.get("pods", SPACE, "a"), grace=0)
    assert phases(cluster) == {}


def test_a_pod_of_the_same_name_made_after_a_delete_is_not_touched_by_the_old_ones_events(
    world: World, cluster: Cluster
) -> None:
    make(cluster)
    world.advance(RUNNING_AFTER)
    cluster.delete(cluster.get("pods", SPACE, "a"))
    cluster.delete(cluster.get("pods", SPACE, "a"), grace=0)
    new = make(cluster)
    world.advance(60.0)
    assert cluster.get("pods", SPACE, "a").uid == new.uid
    assert phases(cluster) == {"a": "running"}


def test_a_finalizer_keeps_the_object_until_it_is_taken_out(world: World, cluster: Cluster) -> None:
    document = {
        "metadata": {"name": "a", "finalizers": ["x/y"]},
        "spec": {"containers": [{"name": "main", "image": "i"}]},
    }
    cluster.create(SPACE, document)
    world.advance(RUNNING_AFTER)
    cluster.delete(cluster.get("pods", SPACE, "a"))
    world.advance(100.0)
    held = cluster.get("pods", SPACE, "a")
    freed = {**held.document, "metadata": {**held.document["metadata"], "finalizers": []}}
    cluster.update(held, freed, status_only=False)
    assert phases(cluster) == {}


def test_a_preempted_pod_is_told_so_and_has_gone_after_all_of_its_grace(world: World, cluster: Cluster) -> None:
    make(cluster)
    make(cluster, "b")
    world.advance(RUNNING_AFTER)
    assert cluster.preempt(["a", "unknown"]) == ["a"]
    told = condition(cluster, "DisruptionTarget")
    assert (told["status"], told["reason"]) == ("True", "TerminationByKubelet")
    assert pod(cluster)["metadata"]["deletionGracePeriodSeconds"] == 15
    assert cluster.preempt(["a"]) == [], "it is ending already"
    world.advance(RUNNING_AFTER + 15.0)
    assert pod(cluster)["status"]["phase"] == "Failed"
    assert pod(cluster)["status"]["reason"] == "Terminated"
    world.advance(RUNNING_AFTER + 26.0)
    assert phases(cluster) == {"b": "running"}


def test_a_pod_without_node_cannot_be_preempted(cluster: Cluster) -> None:
    make(cluster)
    assert cluster.preempt(["a"]) == []


def test_an_evicted_pod_says_so_and_ends(world: World, cluster: Cluster) -> None:
    make(cluster)
    world.advance(RUNNING_AFTER)
    cluster.evict(cluster.get("pods", SPACE, "a"))
    assert condition(cluster, "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"
    world.advance(60.0)
    assert phases(cluster) == {}


def test_the_pods_of_a_lost_node_are_failed_after_a_while_and_collected(world: World, cluster: Cluster) -> None:
    for number in range(3):
        make(cluster, f"p{number}")
    world.advance(RUNNING_AFTER)
    node = cluster.get("nodes", "", pod(cluster, "p0")["spec"]["nodeName"])
    cluster.fail_node(node)
    world.advance(RUNNING_AFTER + 49.0)
    assert phases(cluster)["p0"] == "running", "nobody has noticed yet"
    world.advance(RUNNING_AFTER + 50.0)
    assert phases(cluster)["p0"] == "failed"
    assert condition(cluster, "DisruptionTarget", "p0")["reason"] == "DeletionByPodGC"
    world.advance(RUNNING_AFTER + 52.0)
    assert phases(cluster) == {"p1": "running", "p2": "running"}


def test_a_pod_that_was_starting_on_a_lost_node_never_runs(world: World, cluster: Cluster) -> None:
    make(cluster)
    world.advance(1.0)
    cluster.fail_node(cluster.get("nodes", "", pod(cluster)["spec"]["nodeName"]))
    world.advance(50.0)
    assert pod(cluster)["status"]["phase"] == "Pending"
    world.advance(60.0)
    assert phases(cluster) == {}


def test_reset_leaves_no_pod_and_no_event(world: World, cluster: Cluster) -> None:
    make(cluster)
    world.advance(RUNNING_AFTER)
    cluster.reset()
    assert (cluster.state(), cluster.stores["events"].select("")) == ([], [])
    assert (cluster.pods.since(FIRST_VERSION) or ())[-1].type == "DELETED", "watchers see them go"


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_name_that_exists_is_refused(cluster: Cluster) -> None:
    make(cluster)
    error = refusal(cluster)
    assert (error.code, error.status["reason"]) == (409, "AlreadyExists")
    assert str(error) == 'pods "a" already exists'


def test_an_unknown_namespace_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match='namespaces "nowhere" not found'):
        make(cluster, namespace="nowhere")


def test_every_mistake_of_a_pod_is_named_at_once(cluster: Cluster) -> None:
    containers = [{"name": "Main", "image": "i"}, {"name": "b", "image": ""}, {"name": "b", "image": "i"}]
    error = refusal(cluster, "Upper_Case", containers=containers, restartPolicy="Sometimes")
    causes = {cause["field"]: cause["reason"] for cause in error.status["details"]["causes"]}
    assert error.code == 422
    assert causes == {
        "metadata.name": "FieldValueInvalid",
        "spec.containers[0].name": "FieldValueInvalid",
        "spec.containers[1].image": "FieldValueRequired",
        "spec.containers[2].name": "FieldValueDuplicate",
        "spec.restartPolicy": "FieldValueNotSupported",
    }


def test_a_pod_without_containers_is_refused(cluster: Cluster) -> None:
    assert str(refusal(cluster, containers=[])) == 'Pod "a" is invalid: spec.containers: Required value'


@pytest.mark.parametrize("labels", [{"bad key": "x"}, {"ok": "not a value"}, {"ok": "x" * 64}])
def test_a_wrong_label_is_refused(cluster: Cluster, labels: dict[str, str]) -> None:
    document = {"metadata": {"name": "a", "labels": labels}, "spec": {"containers": [{"name": "m", "image": "i"}]}}
    with pytest.raises(ApiError, match=r"metadata\.labels"):
        cluster.create(SPACE, document)


def test_dry_run_checks_and_stores_nothing(cluster: Cluster) -> None:
    document = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "m", "image": "i"}]}}
    assert cluster.create(SPACE, document, dry_run=True).name == "a"
    assert cluster.state() == []


# --- faults -----------------------------------------------------------------------------------------------------------


def test_quota_refuses_what_is_beyond_its_limit_in_its_namespace(world: World, cluster: Cluster) -> None:
    world.set_faults([Fault("quota", target=SPACE, params={"limit": 2})])
    make(cluster, "a")
    make(cluster, "b")
    error = refusal(cluster, "c")
    assert error.code == 403
    assert str(error) == 'pods "c" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=2, limited: pods=2'
    make(cluster, "c", namespace="other")
    ended = cluster.get("pods", SPACE, "a")
    cluster.update(ended, {**ended.document, "status": {"phase": "Failed"}}, status_only=True)
    make(cluster, "d")


def test_a_stockout_holds_pods_unschedulable_and_ends_with_the_fault(world: World, cluster: Cluster) -> None:
    world.set_faults([Fault("stockout", target=SPACE, end=15.0)])
    make(cluster)
    world.advance(12.0)
    held = condition(cluster, "PodScheduled")
    assert (held["status"], held["reason"]) == ("False", "Unschedulable")
    assert {"FailedScheduling", "FailedScaleUp", "NotTriggerScaleUp"} <= reasons(cluster)
    assert phases(cluster) == {"a": "pending"}
    world.advance(21.0 + RUNNING_AFTER)
    assert phases(cluster) == {"a": "running"}


def test_repeated_events_are_counted_and_forgotten_after_their_time(world: World, cluster: Cluster) -> None:
    world.set_faults([Fault("stockout")])
    make(cluster)
    world.advance(101.0)
    event = next(e for e in cluster.stores["events"].select(SPACE) if e.document["reason"] == "FailedScheduling")
    assert event.document["count"] == 11
    assert event.document["type"] == "Warning"
    cluster.delete(cluster.get("pods", SPACE, "a"))
    world.advance(101.0 + 3600.0)
    assert cluster.stores["events"].select("") == []


def test_an_image_that_cannot_be_pulled_never_starts(world: World, cluster: Cluster) -> None:
    world.set_faults([Fault("image_pull")])
    make(cluster)
    seen = set()
    for second in range(3, 60):
        world.advance(float(second))
        seen.add(pod(cluster)["status"]["containerStatuses"][0]["state"]["waiting"]["reason"])
    assert seen == {"ErrImagePull", "ImagePullBackOff"}
    assert pod(cluster)["status"]["phase"] == "Pending"


def test_a_crashing_pod_is_restarted_with_growing_gaps(world: World, cluster: Cluster) -> None:
    world.set_faults([Fault("crash")])
    make(cluster)
    world.advance(5.0)
    waiting = pod(cluster)["status"]["containerStatuses"][0]
    assert waiting["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert waiting["lastState"]["terminated"]["exitCode"] == 1
    world.advance(50.0)
    assert pod(cluster)["status"]["containerStatuses"][0]["restartCount"] == 3
    assert phases(cluster) == {"a": "pending"}


def test_a_crashing_pod_that_is_never_restarted_fails_also_after_it_was_ready(world: World, cluster: Cluster) -> None:
    world.set_faults([Fault("crash", params={"seconds": 20})])
    make(cluster, restartPolicy="Never")
    world.advance(RUNNING_AFTER)
    assert phases(cluster) == {"a": "running"}
    world.advance(23.0)
    assert phases(cluster) == {"a": "failed"}


@pytest.mark.parametrize(
    ("params", "restart", "phase", "ended"),
    [
        ({}, "Never", "Failed", (1, "Error")),
        ({"exit_code": 137, "reason": "OOMKilled"}, "Never", "Failed", (137, "OOMKilled")),
        ({"exit_code": 0}, "Never", "Succeeded", (0, "Completed")),
        ({"exit_code": 0}, "OnFailure", "Succeeded", (0, "Completed")),
        ({"exit_code": 0}, "Always", "Running", None),
        ({}, "OnFailure", "Running", None),
    ],
)
def test_how_a_container_ends_and_whether_it_is_restarted_decide_the_phase(
    world: World, cluster: Cluster, params: dict[str, Any], restart: str, phase: str, ended: tuple[int, str] | None
) -> None:
    world.set_faults([Fault("crash", params=params)])
    make(cluster, restartPolicy=restart)
    world.advance(5.0)
    status = pod(cluster)["status"]
    state = status["containerStatuses"][0]["state"].get("terminated")
    assert status["phase"] == phase
    assert ((state["exitCode"], state["reason"]) if state else None) == ended


def test_a_gated_pod_waits_until_its_last_gate_is_lifted(world: World, cluster: Cluster) -> None:
    make(cluster, schedulingGates=[{"name": "a"}, {"name": "b"}])
    for gates in ([{"name": "b"}], []):
        world.advance(world.now + 100.0)
        assert condition(cluster, "PodScheduled")["reason"] == "SchedulingGated"
        held = cluster.get("pods", SPACE, "a")
        spec = {**held.document["spec"], "schedulingGates": gates}
        cluster.update(held, {**held.document, "spec": spec}, status_only=False)
    world.advance(world.now + RUNNING_AFTER)
    assert phases(cluster) == {"a": "running"}


def test_a_pod_whose_probe_fails_runs_and_is_never_ready(world: World, cluster: Cluster) -> None:
    world.set_faults([Fault("never_ready")])
    make(cluster)
    world.advance(600.0)
    assert pod(cluster)["status"]["phase"] == "Running"
    assert phases(cluster) == {"a": "pending"}
    assert "Unhealthy" in reasons(cluster)


def test_a_slow_start_adds_its_seconds(world: World, cluster: Cluster) -> None:
    world.set_faults([Fault("slow_start", params={"seconds": 100})])
    make(cluster)
    world.advance(105.9)
    assert phases(cluster) == {"a": "pending"}
    world.advance(106.0)
    assert phases(cluster) == {"a": "running"}


def test_a_stuck_pod_stays_terminating_while_the_fault_stands(world: World, cluster: Cluster) -> None:
    world.set_faults([Fault("stuck")])
    make(cluster)
    world.advance(RUNNING_AFTER)
    cluster.delete(cluster.get("pods", SPACE, "a"))
    world.advance(500.0)
    assert phases(cluster) == {"a": "stopping"}
    world.set_faults([])
    world.advance(506.0)
    assert phases(cluster) == {}


def test_a_fault_aimed_at_one_name_spares_the_others(world: World, cluster: Cluster) -> None:
    world.set_faults([Fault("never_ready", target="a")])
    make(cluster, "a")
    make(cluster, "b")
    world.advance(60.0)
    assert phases(cluster) == {"a": "pending", "b": "running"}


# --- changes ----------------------------------------------------------------------------------------------------------


def test_every_change_has_a_version_of_its_own_in_order(world: World, cluster: Cluster) -> None:
    make(cluster)
    world.advance(RUNNING_AFTER)
    cluster.delete(cluster.get("pods", SPACE, "a"), grace=0)
    changes = cluster.pods.since(FIRST_VERSION) or ()
    assert [change.type for change in changes] == ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
    versions = [change.version for change in changes]
    assert versions == sorted(set(versions))
    assert [change.stored.document["metadata"]["resourceVersion"] for change in changes] == [str(v) for v in versions]
    assert list(cluster.pods.since(versions[1]) or ()) == list(changes[2:])


def test_only_so_many_changes_are_remembered(world: World) -> None:
    cluster = Cluster(world, [SPACE], QUICK, history=10)
    for number in range(30):
        make(cluster, f"p{number}")
    assert cluster.pods.since(FIRST_VERSION) is None
    assert len(cluster.pods.since(cluster.versions.current - 5) or ()) == 5


def test_a_stored_document_is_never_changed_by_what_happens_later(world: World, cluster: Cluster) -> None:
    first = make(cluster)
    before = first.item
    fresh = Stored(first.kind, first.document, first.version)
    world.advance(RUNNING_AFTER)
    cluster.delete(cluster.get("pods", SPACE, "a"))
    world.advance(60.0)
    assert fresh.item == before


def test_a_pod_ended_by_a_clients_status_leaves_its_node_once_and_is_deleted_at_once(
    world: World, cluster: Cluster
) -> None:
    for number in range(3 * 110):
        make(cluster, f"p{number}")
    world.advance(RUNNING_AFTER)
    stored = cluster.get("pods", SPACE, "p0")
    status = {**stored.document["status"], "phase": "Failed"}
    cluster.update(stored, {**stored.document, "status": status}, status_only=True)
    cluster.delete(cluster.get("pods", SPACE, "p0"))
    assert "p0" not in phases(cluster)
    make(cluster, "fits")
    world.advance(2 * RUNNING_AFTER)
    assert cluster.stores["nodes"].count("") == 3
    make(cluster, "does-not-fit")
    world.advance(3 * RUNNING_AFTER)
    assert cluster.stores["nodes"].count("") == 4


def test_the_spec_of_a_pod_cannot_be_changed(cluster: Cluster) -> None:
    stored = make(cluster)
    changed = {**stored.document, "spec": {**stored.document["spec"], "restartPolicy": "Never"}}
    with pytest.raises(ApiError, match="pod updates may not change fields"):
        cluster.update(stored, changed, status_only=False)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"strat": 1}, "strat: unknown timing"),
        ({"start": -1}, "start: expected seconds ≥ 0"),
        ({"start": [1]}, "start: expected seconds or"),
        ({"bookmark": "x"}, "bookmark: expected seconds"),
    ],
)
def test_a_wrong_timing_is_named(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PodTimings.parse(document)
