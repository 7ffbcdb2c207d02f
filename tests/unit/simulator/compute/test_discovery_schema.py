"""The check against Google's discovery document finds what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.checks.discovery_schema import discovery, problems_of_call

PATH = "projects/p/zones/z/instances/vm"


def problems(document: Any, status: int = 200) -> list[str]:
    return problems_of_call("GET", PATH, [], status, document)


def test_a_valid_response_has_no_problem() -> None:
    disks = [{"boot": True, "diskSizeGb": "20"}]
    assert problems({"id": "42", "status": "RUNNING", "labels": {"any": "thing"}, "disks": disks}) == []
    error = {"code": 404, "message": "m", "errors": [{"message": "m", "domain": "global", "reason": "notFound"}]}
    assert problems({"error": error}, 404) == []


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"stat": "x"}, ".stat: unknown field"),
        ({"id": 42}, ".id: expected string, got 42"),
        ({"id": "x"}, ".id: 'x' is no uint64"),
        ({"disks": [{"diskSizeGb": 20}]}, ".disks[0].diskSizeGb: expected string, got 20"),
        ({"status": "DEAD"}, ".status: 'DEAD' is not one of"),
        ({"canIpForward": "yes"}, ".canIpForward: expected boolean"),
        ({"disks": {}}, ".disks: expected a list"),
        ({"disks": [{"index": True}]}, ".disks[0].index: expected integer"),
        ({"scheduling": []}, ".scheduling: expected an object"),
        ({"creationTimestamp": "yesterday"}, ".creationTimestamp: 'yesterday' is no RFC 3339 time"),
    ],
)
def test_an_invalid_response_is_found(document: Any, problem: str) -> None:
    mistakes = problems(document)
    assert len(mistakes) == 1
    assert problem in mistakes[0]


def test_words_that_google_may_add_any_day_are_let_through() -> None:
    assert problems({"status": "SOME_NEW_STATUS", "someNewField": {"value": 1}}) == []
    assert len(problems({"status": "SOME_OLD_STATUS", "someOldField": 1})) == 2


def test_of_the_beta_api_only_what_was_recorded_is_let_through() -> None:
    group = "projects/p/zones/z/instanceGroupManagers/g"

    def complaints(**policy: object) -> list[str]:
        return problems_of_call("GET", group, [], 200, {"updatePolicy": policy})

    assert complaints(minReadySec=0) == []
    assert complaints(minReadySec="0") == [
        "instanceGroupManagers.get: .updatePolicy.minReadySec: expected integer, got '0'",
    ]
    beta = discovery("beta")["schemas"]["InstanceGroupManager"]["properties"].keys()
    [other, *_] = sorted(beta - discovery()["schemas"]["InstanceGroupManager"]["properties"].keys())
    assert problems_of_call("GET", group, [], 200, {other: None}) == [
        f"instanceGroupManagers.get: .{other}: unknown field"
    ]


def test_an_error_that_does_not_look_like_googles_is_found() -> None:
    assert problems({"error": {"code": 500}}, 404) == [
        "instances.get: error.code: 500 in an answer 404",
        "instances.get: error.message: not a text",
        "instances.get: error.errors: empty",
    ]


def test_unknown_parameters_and_methods_are_found() -> None:
    assert problems_of_call("GET", PATH, ["fields", "fild"], 200, {}) == ["instances.get: unknown parameter fild"]
    nothing = "projects/p/zones/z/nothing"
    assert problems_of_call("PATCH", nothing, [], 200, {}) == [f"PATCH {nothing}: no method of the Compute Engine API"]
