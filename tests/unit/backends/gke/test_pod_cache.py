"""The cache behind a watch: it follows the server's order, and contains our own creates before the watch shows them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from provisioner.backends import CAUSE_SECONDS
from provisioner.backends.dns import Resolver
from provisioner.backends.gke.own_pods import Identity, Reading, Wait
from provisioner.backends.gke.pod_cache import MOST_ASKED, UNRESOLVED, PodCache
from provisioner.backends.gke.pod_status import Pod
from provisioner.model import Create, ErrorClass, Failure, LossCause, Notice, Phase
from tests.support.waiting import until

IDENTITY = Identity("demo", "gke-main")


def name(number: int) -> str:
    return f"hf-abcdefghij-{number:06d}"


def pod(number: int, version: int, phase: str = "Pending", uid: str = "", **metadata: Any) -> Pod:
    labels = IDENTITY.labels(Create(name(number), "gke-main", "small", "abcdefghij"))
    usual = {"name": name(number), "uid": uid or f"u{number}", "resourceVersion": str(version), "labels": labels}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": phase, "podIP": "10.0.0.1", "conditions": ready if phase == "Running" else []}
    return {"metadata": usual | metadata, "status": status}


def readings(*pods: Pod) -> list[Reading]:
    return [reading for pod in pods if (reading := IDENTITY.read(pod)) is not None]


class Watch:
    """A clock that a test sets forward."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Watch:
    return Watch()


@pytest.fixture
def cache(clock: Watch) -> PodCache:
    return PodCache(IDENTITY, clock=clock)


def test_a_list_is_the_whole_truth(cache: PodCache) -> None:
    cache.replace(readings(pod(1, 5), pod(2, 6)), "9")
    assert cache.replace(readings(pod(2, 6), pod(3, 12)), "15")
    assert sorted(cache.machines(0.0)) == [name(2), name(3)]


def test_the_mapping_is_the_same_object_until_something_changes(cache: PodCache) -> None:
    cache.replace(readings(pod(1, 5), pod(2, 6)), "9")
    first = cache.machines(0.0)
    assert not cache.replace(readings(pod(1, 5), pod(2, 6)), "10")
    assert not cache.apply("MODIFIED", pod(1, 11, managedFields=[1]))
    assert cache.machines(1.0) is first
    assert cache.apply("MODIFIED", pod(1, 12, "Running"))
    second = cache.machines(2.0)
    assert second[name(1)].phase is Phase.RUNNING
    assert first[name(1)].phase is Phase.PENDING, "a snapshot that was handed out never changes"
    assert second[name(2)] is first[name(2)]


def test_a_change_and_its_opposite_between_two_observations_are_no_change(cache: PodCache) -> None:
    cache.replace(readings(pod(1, 5)), "9")
    first = cache.machines(0.0)
    cache.apply("MODIFIED", pod(1, 10, "Running"))
    cache.apply("MODIFIED", pod(1, 11))
    assert cache.machines(1.0) is first


def test_events_add_change_and_remove(cache: PodCache) -> None:
    cache.replace([], "1")
    cache.apply("ADDED", pod(1, 2))
    assert cache.machines(0.0)[name(1)].phase is Phase.PENDING
    cache.apply("MODIFIED", pod(1, 3, "Running"))
    assert cache.machines(0.0)[name(1)].phase is Phase.RUNNING
    assert cache.apply("DELETED", pod(1, 4, "Running"))
    assert cache.machines(0.0) == {}


def test_a_pod_that_lost_our_labels_is_not_ours_any_more(cache: PodCache) -> None:
    cache.replace(readings(pod(1, 2)), "2")
    assert cache.apply("MODIFIED", pod(1, 3, labels={}))
    assert cache.machines(0.0) == {}


def test_the_end_of_a_predecessor_does_not_remove_its_successor(cache: PodCache) -> None:
    cache.replace(readings(pod(1, 2, uid="new")), "2")
    first = cache.machines(0.0)
    assert not cache.apply("DELETED", pod(1, 3, uid="old"))
    assert cache.machines(0.0) is first


def test_what_we_created_is_there_before_the_watch_says_so(cache: PodCache) -> None:
    cache.replace([], "10")
    cache.add_created(pod(1, 11))
    assert name(1) in cache.machines(0.0)


def test_what_we_created_survives_a_list_that_is_older(cache: PodCache) -> None:
    cache.replace([], "10")
    cache.add_created(pod(1, 15))
    cache.replace([], "14")
    assert name(1) in cache.machines(0.0)


@pytest.mark.parametrize("hear", ["list", "bookmark"])
def test_what_we_created_is_gone_when_the_server_has_passed_it_by(cache: PodCache, hear: str) -> None:
    cache.replace([], "10")
    cache.add_created(pod(1, 15))
    if hear == "list":
        cache.replace([], "15")
    else:
        cache.advance("15")
    assert cache.machines(0.0) == {}


def test_a_bookmark_removes_nothing_that_the_watch_has_shown(cache: PodCache) -> None:
    cache.replace(readings(pod(2, 3)), "10")
    cache.add_created(pod(1, 15))
    cache.apply("ADDED", pod(1, 15))
    cache.advance("20")
    assert sorted(cache.machines(0.0)) == [name(1), name(2)]


def test_a_response_after_the_watch_reported_the_end_brings_nothing_back(cache: PodCache) -> None:
    cache.replace([], "10")
    cache.apply("ADDED", pod(1, 11))
    cache.apply("DELETED", pod(1, 12))
    cache.add_created(pod(1, 11))
    assert cache.machines(0.0) == {}


def test_foreign_pods_are_invisible(cache: PodCache) -> None:
    cache.apply("ADDED", pod(1, 2, labels={"app": "web"}))
    cache.add_created(pod(2, 3, labels={}))
    assert cache.machines(0.0) == {}


def terminating(version: int, grace: int = 30) -> Pod:
    return pod(1, version, "Running", deletionTimestamp="2025-01-01T00:00:00Z", deletionGracePeriodSeconds=grace)


def test_a_notice_ends_in_loop_time_counted_from_when_it_came(cache: PodCache, clock: Watch) -> None:
    cache.replace(readings(pod(1, 2, "Running")), "2")
    cache.apply("MODIFIED", terminating(3))
    clock.now += 4.0
    assert cache.machines(1000.0)[name(1)].notice == Notice(LossCause.DELETED, 1026.0)


def test_a_notice_stays_the_same_object_while_it_is_repeated(cache: PodCache, clock: Watch) -> None:
    cache.replace(readings(terminating(3)), "3")
    first = cache.machines(1000.0)
    clock.now += 5.0
    cache.apply("MODIFIED", terminating(4))
    assert cache.machines(1005.0) is first


def test_a_notice_keeps_its_end_when_something_else_of_the_machine_changes(cache: PodCache, clock: Watch) -> None:
    cache.replace(readings(terminating(3)), "3")
    first = cache.machines(1000.0)[name(1)]
    clock.now += 5.0
    moved = terminating(4)
    moved["status"]["podIP"] = "10.0.0.9"
    cache.apply("MODIFIED", moved)
    second = cache.machines(1005.0)[name(1)]
    assert (first.ip, second.ip) == ("10.0.0.1", "10.0.0.9")
    assert second.notice == first.notice


def test_a_deletion_with_less_grace_ends_earlier(cache: PodCache, clock: Watch) -> None:
    cache.replace(readings(terminating(3)), "3")
    cache.machines(1000.0)
    clock.now += 5.0
    cache.apply("MODIFIED", terminating(4, grace=1))
    assert cache.machines(1005.0)[name(1)].notice == Notice(LossCause.DELETED, 1006.0)


def test_with_require_dns_a_machine_runs_once_its_name_resolves() -> None:
    resolvable: set[str] = set()
    resolver = Resolver(resolvable.__contains__, itertools.count(0, 10).__next__)
    cache = PodCache(IDENTITY, resolver)
    try:
        cache.replace(readings(pod(1, 2, "Running")), "2")
        first = cache.machines(0.0)
        assert (first[name(1)].phase, first[name(1)].failure) == (Phase.PENDING, UNRESOLVED)
        assert cache.machines(1.0) is first
        resolvable.add(name(1))
        until(lambda: cache.machines(2.0)[name(1)].phase is Phase.RUNNING, 30)
        assert cache.machines(3.0)[name(1)].failure is None
    finally:
        resolver.close()


def test_a_server_whose_versions_are_no_numbers_is_followed_by_its_events_alone(cache: PodCache) -> None:
    cache.replace([], "abc")
    cache.add_created(pod(1, 1, resourceVersion="abd"))
    assert cache.machines(0.0) == {}
    cache.apply("ADDED", pod(1, 1, resourceVersion="abd"))
    assert name(1) in cache.machines(0.0)


# --- ended pods -------------------------------------------------------------------------------------------------------

GARBAGE = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}


def test_the_cause_of_an_end_is_known_although_no_observation_saw_it(cache: PodCache, clock: Watch) -> None:
    cache.replace(readings(pod(1, 5, "Running"), pod(2, 6, "Running"), pod(3, 7, "Running")), "9")
    assert cache.causes() == {}
    dead = {**pod(1, 10), "status": {"phase": "Failed", "conditions": [GARBAGE]}}
    cache.apply("MODIFIED", dead)
    cache.apply("DELETED", dead)
    cache.apply("DELETED", pod(2, 11, "Running"))
    assert cache.causes() == {name(1): LossCause.NODE, name(2): LossCause.UNKNOWN}, "it may stand without our labels"
    cache.with_strayed({}, {name(1): "", name(2): ""}, 0.0)
    assert cache.causes() == {name(1): LossCause.NODE, name(2): LossCause.DELETED}
    clock.now += CAUSE_SECONDS
    cache.apply("DELETED", pod(3, 12, "Running"))
    assert len(cache.causes()) == 3
    clock.now += 1
    assert cache.causes() == {name(3): LossCause.UNKNOWN}, "not for ever"


def test_a_pod_that_a_later_list_or_bookmark_lacks_is_gone_without_a_cause(cache: PodCache) -> None:
    cache.replace(readings(pod(1, 5), pod(2, 6)), "9")
    cache.replace(readings(pod(2, 6)), "11")
    assert cache.causes() == {name(1): LossCause.UNKNOWN}
    cache.add_created(pod(3, 12))
    cache.advance("12")
    assert cache.causes() == {name(1): LossCause.UNKNOWN, name(3): LossCause.UNKNOWN}


def test_the_latest_end_of_a_name_counts(cache: PodCache, clock: Watch) -> None:
    cache.replace(readings(pod(1, 5), pod(2, 6)), "9")
    cache.apply("DELETED", pod(1, 10))
    cache.apply("DELETED", pod(2, 11))
    clock.now += CAUSE_SECONDS
    cache.apply("ADDED", pod(1, 12, uid="again"))
    cache.apply("DELETED", pod(1, 13, uid="again"))
    cache.with_strayed({}, {name(1): ""}, 0.0)
    clock.now += 1
    assert cache.causes() == {name(1): LossCause.DELETED}


def test_a_pod_whose_labels_came_back_has_not_gone(cache: PodCache) -> None:
    cache.replace(readings(pod(1, 5)), "9")
    cache.apply("MODIFIED", pod(1, 10, labels={}))
    cache.apply("MODIFIED", pod(1, 11))
    assert cache.causes() == {}
    cache.with_strayed({}, {name(1): ""}, 0.0)
    assert cache.causes() == {}


def test_the_end_of_another_uid_changes_no_cause(cache: PodCache) -> None:
    cache.replace(readings(pod(1, 5, uid="new")), "9")
    cache.apply("DELETED", pod(1, 4, uid="old"))
    assert cache.causes() == {}


# --- pods without a node ----------------------------------------------------------------------------------------------

SAID = Failure(ErrorClass.QUOTA, "FailedScaleUp: GCE quota exceeded.")


def unplaced(number: int, version: int) -> Pod:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no cpu"}
    return {**pod(number, version), "status": {"phase": "Pending", "conditions": [condition]}}


def placed(number: int, version: int) -> Pod:
    """Return a pod whose node is preparing it."""
    return {**pod(number, version), "spec": {"nodeName": "node-1"}, "status": {"phase": "Pending"}}


NO_NODE = Wait("u1", placed=False)


def test_a_pod_waits_for_a_node_once_it_has_waited_and_until_it_has_one(cache: PodCache, clock: Watch) -> None:
    cache.replace(readings(unplaced(1, 5), pod(2, 6)), "9")
    assert cache.waiting(3.0) == frozenset()
    clock.now += 2
    cache.apply("ADDED", unplaced(3, 10))
    clock.now += 1
    assert cache.waiting(3.0) == {NO_NODE}
    clock.now += 2
    assert cache.waiting(3.0) == {NO_NODE, Wait("u3", placed=False)}
    cache.apply("MODIFIED", pod(1, 11))
    cache.apply("DELETED", unplaced(3, 12))
    assert cache.waiting(0.0) == frozenset()


def test_a_pod_waits_anew_on_the_node_that_it_got(cache: PodCache, clock: Watch) -> None:
    cache.replace(readings(unplaced(1, 5)), "9")
    clock.now += 3
    cache.apply("MODIFIED", placed(1, 10))
    assert cache.waiting(3.0) == frozenset()
    clock.now += 3
    assert cache.waiting(3.0) == {Wait("u1", placed=True)}


@pytest.mark.parametrize(
    ("error", "no_room"), [(ErrorClass.OTHER, False), (ErrorClass.STOCKOUT, True)], ids=["a volume", "no addresses"]
)
def test_the_reason_why_a_node_does_not_prepare_a_pod_is_shown_once_known(
    cache: PodCache, error: ErrorClass, no_room: bool
) -> None:
    cache.replace(readings(placed(1, 5)), "9")
    cache.explain({NO_NODE: SAID})
    assert cache.machines(0.0)[name(1)].failure is None, "what was said before it had a node is past"
    words = Failure(error, "in the node's words")
    assert cache.explain({Wait("u1", placed=True): words})
    shown = cache.machines(1.0)[name(1)]
    assert (shown.failure, shown.spills_at_once) == (words, no_room)
    cache.apply("MODIFIED", pod(1, 10, "Running"))
    assert cache.machines(2.0)[name(1)].failure is None


@pytest.mark.parametrize(
    ("reason", "no_room"),
    [
        pytest.param("FailedScaleUp", True, id="no node could be had"),
        pytest.param("TriggeredScaleUp", False, id="one is on its way"),
        pytest.param("NotTriggerScaleUp", False, id="none was asked for: another pod may be about to go"),
    ],
)
def test_a_pod_lacks_room_once_the_autoscaler_has_failed_to_get_a_node(
    cache: PodCache, reason: str, no_room: bool
) -> None:
    cache.replace(readings(unplaced(1, 5)), "9")
    assert not cache.machines(0.0)[name(1)].spills_at_once, "that no node is free now says nothing yet"
    cache.explain({NO_NODE: Failure(ErrorClass.STOCKOUT, f"{reason}: words")})
    assert cache.machines(1.0)[name(1)].spills_at_once is no_room


def test_what_is_said_of_an_unplaced_pod_stands_before_the_schedulers_words(cache: PodCache) -> None:
    cache.replace(readings(unplaced(1, 5), pod(2, 6)), "9")
    before = cache.machines(0.0)
    assert cache.explain({NO_NODE: SAID, Wait("u2", placed=False): SAID})
    after = cache.machines(1.0)
    text = "FailedScaleUp: GCE quota exceeded.; Unschedulable: no cpu"
    assert after[name(1)].failure == Failure(ErrorClass.QUOTA, text)
    assert after[name(2)] is before[name(2)], "of a pod that merely starts nothing is said"
    assert not cache.explain({NO_NODE: SAID, Wait("u2", placed=False): SAID})
    assert cache.machines(2.0) is after
    waiting = {"name": "main", "state": {"waiting": {"reason": "ErrImagePull"}}}
    cache.apply("MODIFIED", {**pod(1, 10), "status": {"phase": "Pending", "containerStatuses": [waiting]}})
    assert cache.machines(3.0)[name(1)].failure == Failure(ErrorClass.INVALID, "main: ErrImagePull"), "it has a node"


def test_the_end_of_a_pod_that_strayed_does_not_move(cache: PodCache) -> None:
    """Each observation must show the end that the first one announced. Otherwise the pod would never count as stuck,
    and each observation would differ."""
    ending = {**pod(1, 5, deletionTimestamp="2025-01-01T01:00:30Z", deletionGracePeriodSeconds=30)}
    ending["metadata"]["labels"] = {}
    first = cache.with_strayed({name(1): ending}, {name(1): "u1"}, 100.0)
    assert first[name(1)].notice == Notice(LossCause.DELETED, 130.0)
    assert cache.with_strayed({name(1): ending}, {name(1): "u1"}, 160.0) is first


def test_an_observation_asks_for_a_limited_number_of_names_strayed_first_and_no_known_ends(
    cache: PodCache,
) -> None:
    cache.replace(readings(pod(1, 5)), "9")
    cache.apply("DELETED", pod(1, 10, "Failed"))
    stray = pod(2, 6)
    stray["metadata"]["labels"] = {}
    cache.with_strayed({name(2): stray}, {name(2): "u2"}, 0.0)
    names = {name(number): f"u{number}" for number in range(3, MOST_ASKED + 9)} | {name(1): "u1", name(2): "u2"}
    asked = cache.worth_asking(names)
    assert len(asked) == MOST_ASKED
    assert next(iter(asked)) == name(2)
    assert name(1) not in asked
    assert cache.worth_asking({name(1): ""}) == {name(1): ""}, "HF gave it back: it is asked for whatever was heard"
