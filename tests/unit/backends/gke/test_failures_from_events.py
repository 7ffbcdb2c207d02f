"""Failures that are read from the Events of pods: of pods without a node, and of pods that have a node but do not run
there yet."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.backends.gke.failures_from_events import NO_ADDRESS, OF_A_NODE, OF_NO_NODE, explanations
from provisioner.backends.gke.failures_from_status import NOT_PREPARED
from provisioner.backends.gke.own_pods import Wait
from provisioner.model import ErrorClass, Failure

ZONE = "Node scale up in zones us-east1-b associated with this pod failed: {}. Pod is at risk of not being scheduled."
STOCKOUT, QUOTA = ZONE.format("GCE out of resources"), ZONE.format("GCE quota exceeded")
TRIED = "pod triggered scale-up: [{https://www.googleapis.com/compute/v1/projects/p/instanceGroups/g 0->1 (max: 9)}]"
NOT_TRIED = "pod didn't trigger scale-up: 1 in backoff after failed scale-up"


WAITS, PLACED = Wait("u1", placed=False), Wait("u1", placed=True)


def event(reason: str, message: str, second: int = 0, uid: str = "u1", **more: Any) -> dict[str, Any]:
    at = f"2025-01-01T00:00:{second:02}Z"
    return {"reason": reason, "message": message, "involvedObject": {"uid": uid}, "lastTimestamp": at, **more}


@pytest.mark.parametrize(
    ("events", "error", "text"),
    [
        pytest.param([event("FailedScaleUp", STOCKOUT)], ErrorClass.STOCKOUT, STOCKOUT, id="out of resources"),
        pytest.param([event("FailedScaleUp", QUOTA)], ErrorClass.QUOTA, QUOTA, id="quota exceeded"),
        pytest.param(
            [event("FailedScaleUp", ZONE.format("IP space exhausted"))],
            ErrorClass.STOCKOUT,
            ZONE.format("IP space exhausted"),
            id="any other failure is a place without machines",
        ),
        pytest.param(
            [event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached, quota exceeded")],
            ErrorClass.STOCKOUT,
            "1 max node group size reached",
            id="no try was made",
        ),
        pytest.param([event("TriggeredScaleUp", TRIED)], ErrorClass.STOCKOUT, TRIED, id="a try is under way"),
        pytest.param(
            [event("FailedScaleUp", QUOTA, 1), event("NotTriggerScaleUp", NOT_TRIED, 2)],
            ErrorClass.QUOTA,
            QUOTA,
            id="a missing second try does not hide the failure",
        ),
        pytest.param(
            [event("FailedScaleUp", QUOTA, 1), event("TriggeredScaleUp", TRIED, 2)],
            ErrorClass.STOCKOUT,
            TRIED,
            id="another try replaces the message of the one before",
        ),
        pytest.param(
            [event("FailedScaleUp", STOCKOUT, 2), event("FailedScaleUp", QUOTA, 1)],
            ErrorClass.STOCKOUT,
            STOCKOUT,
            id="the last of a kind counts, in whatever order they come",
        ),
        pytest.param(
            [event("FailedScaleUp", QUOTA, 5), event("TriggeredScaleUp", TRIED, 5)],
            ErrorClass.QUOTA,
            QUOTA,
            id="within one second a try comes before its failure",
        ),
        pytest.param(
            [
                event("TriggeredScaleUp", TRIED, 5),
                event("FailedScaleUp", QUOTA, lastTimestamp=None, eventTime="2025-01-01T00:00:06.000000Z"),
            ],
            ErrorClass.QUOTA,
            QUOTA,
            id="Events of the newer form have another time",
        ),
    ],
)
def test_the_last_word(events: list[dict[str, Any]], error: ErrorClass, text: str) -> None:
    expected = explanations(events, {WAITS})[WAITS]
    assert expected.error is error
    assert text in expected.text


@pytest.mark.parametrize(
    ("groups", "fits"),
    [
        pytest.param("3 Insufficient cpu", False, id="every group is too small"),
        pytest.param("1 Insufficient cpu, 2 Insufficient memory", False, id="each for another reason"),
        pytest.param(
            "2 Insufficient cpu, 1 node(s) had untolerated taint {a: b}, 1 node(s) didn't match Pod's node affinity",
            False,
            id="too small or not suitable",
        ),
        pytest.param(
            "1 node(s) had taint {a: b}, that the pod didn't tolerate, 1 Insufficient nvidia.com/gpu",
            False,
            id="a comma in a reason",
        ),
        pytest.param("2 Insufficient cpu, 1 max node group size reached", True, id="one group is only full"),
        pytest.param(
            "1 node(s) had taint {a: b}, that, 1 Insufficient cpu, 1 in backoff after failed scale-up",
            True,
            id="one group only waits",
        ),
        pytest.param("1 node(s) didn't match Pod's node affinity/selector", True, id="a suitable group may be hidden"),
        pytest.param("", True, id="without a reason"),
    ],
)
def test_a_pod_that_fits_no_group_needs_an_operator_and_a_full_group_is_a_stock_out(groups: str, fits: bool) -> None:
    found = explanations([event("NotTriggerScaleUp", f"pod didn't trigger scale-up: {groups}")], {WAITS})[WAITS]
    assert found.error is (ErrorClass.STOCKOUT if fits else ErrorClass.INVALID)
    assert ("correct its requests" in found.text) is not fits
    failed = explanations([event("FailedScaleUp", f"pod didn't trigger scale-up: {groups}")], {WAITS})[WAITS]
    assert failed.error is ErrorClass.STOCKOUT, "a try was made, so a group suits the pod"


def test_only_the_pods_asked_about_are_explained_each_by_its_own_events() -> None:
    events = [
        event("FailedScaleUp", QUOTA, uid="u1"),
        event("FailedScaleUp", STOCKOUT, uid="u2"),
        event("FailedScaleUp", QUOTA, uid="u3"),
        {"reason": "FailedScaleUp", "message": QUOTA},
        event("Scheduled", "assigned", uid="u4"),
    ]
    asked = {Wait(uid, placed=False) for uid in ("u1", "u2", "u4")}
    assert explanations(events, asked) == {
        Wait("u1", placed=False): Failure(ErrorClass.QUOTA, f"FailedScaleUp: {QUOTA}"),
        Wait("u2", placed=False): Failure(ErrorClass.STOCKOUT, f"FailedScaleUp: {STOCKOUT}"),
    }


NO_SECRET = 'MountVolume.SetUp failed for volume "license" : secret "license" not found'
MISSING = "Unable to attach or mount volumes: unmounted volumes=[license], unattached volumes=[]: timed out"
SANDBOX = 'Failed to create pod sandbox: plugin type="ptp" failed (add): failed to allocate for range 0: {}'


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([], NOT_PREPARED, id="without an Event"),
        pytest.param([event("FailedScaleUp", STOCKOUT, 9)], NOT_PREPARED, id="from before it had a node"),
        pytest.param([event("Unhealthy", "probe failed")], NOT_PREPARED, id="of another kind"),
        *(
            pytest.param([event(reason, "words")], Failure(ErrorClass.OTHER, f"{reason}: words"), id=reason)
            for reason in OF_A_NODE
        ),
        pytest.param(
            [event("FailedMount", NO_SECRET, 1), event("FailedMount", MISSING, 2)],
            Failure(ErrorClass.OTHER, f"FailedMount: {NO_SECRET}"),
            id="missing volumes do not hide the cause",
        ),
        pytest.param(
            [event("FailedMount", MISSING, 1)],
            Failure(ErrorClass.OTHER, f"FailedMount: {MISSING}"),
            id="alone it counts",
        ),
        pytest.param(
            [event("FailedMount", NO_SECRET, 1), event("NetworkNotReady", "cni config uninitialized", 2)],
            Failure(ErrorClass.OTHER, "NetworkNotReady: cni config uninitialized"),
            id="the newest",
        ),
    ],
)
def test_the_last_word_of_a_node(events: list[dict[str, Any]], expected: Failure) -> None:
    assert explanations(events, {PLACED}) == {PLACED: expected}


@pytest.mark.parametrize("sign", NO_ADDRESS)
def test_a_node_without_addresses_is_no_room(sign: str) -> None:
    said = explanations([event("FailedCreatePodSandBox", SANDBOX.format(sign.title()))], {PLACED})
    assert said[PLACED].error is ErrorClass.STOCKOUT


def test_the_reasons_of_both_stages_differ() -> None:
    assert set(OF_NO_NODE).isdisjoint(OF_A_NODE)
