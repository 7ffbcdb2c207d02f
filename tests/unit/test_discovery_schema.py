"""The check against Google's discovery document finds what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from provisioner.simulator import compute_calls
from provisioner.simulator.compute_documents import mig_document
from provisioner.simulator.compute_settings import MigSpec
from provisioner.simulator.server import Simulator
from tests.discovery_schema import problems_of_answer, problems_of_query

PATH = "projects/p/zones/z/instances/vm"


def problems(document: Any, status: int = 200) -> list[str]:
    return problems_of_answer("GET", PATH, status, document)


def test_a_valid_answer_has_no_problem() -> None:
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
        ({"status": "DEAD"}, ".status: 'DEAD' is not one of"),
        ({"canIpForward": "yes"}, ".canIpForward: expected boolean"),
        ({"disks": {}}, ".disks: expected a list"),
        ({"disks": [{"index": True}]}, ".disks[0].index: expected integer"),
        ({"scheduling": []}, ".scheduling: expected an object"),
        ({"creationTimestamp": "yesterday"}, ".creationTimestamp: 'yesterday' is no RFC 3339 time"),
    ],
)
def test_an_invalid_answer_is_found(document: Any, problem: str) -> None:
    found = problems(document)
    assert len(found) == 1
    assert problem in found[0]


def test_words_that_google_may_add_any_day_are_let_through() -> None:
    assert problems({"status": "SOME_NEW_STATUS", "someNewField": {"value": 1}}) == []
    assert len(problems({"status": "SOME_OLD_STATUS", "someOldField": 1})) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"targetSize": "1"}, id="a number as text"),
        pytest.param({"status": {"isStable": "yes"}}, id="a text for a truth"),
        pytest.param({"sizeOfTarget": 1}, id="a field that is not Google's"),
    ],
)
def test_an_answer_of_any_simulator_is_seen(
    wrong: dict[str, Any], witness: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_calls, "mig_document", lambda mig: mig_document(mig) | wrong)
    with Simulator(migs=[MigSpec(project="p", zone="z-a", name="g")]) as simulator:
        path = "projects/p/zones/z-a/instanceGroupManagers"
        assert requests.get(f"{simulator.compute}{path}/g", timeout=5).status_code == 200
        assert len(witness) == 1
        assert requests.get(f"{simulator.compute}{path}?fild=1", timeout=5).status_code == 200
        assert len(witness) == 3, "also in a list, and a parameter that the method does not have"
    witness.clear()


def test_an_error_that_does_not_look_like_googles_is_found() -> None:
    assert problems({"error": {"code": 500}}, 404) == [
        "error.code: 500 in an answer 404",
        "error.message: not a text",
        "error.errors: empty",
    ]


def test_unknown_parameters_and_methods_are_found() -> None:
    assert problems_of_query("GET", PATH, ["fields", "fild"]) == ["instances.get: unknown parameter fild"]
    with pytest.raises(AssertionError, match="is no method"):
        problems_of_answer("PATCH", "projects/p/zones/z/nothing", 200, {})
