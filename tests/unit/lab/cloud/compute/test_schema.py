"""The fields of the simulator's documents, compared with Google's discovery document, and the check of responses
against the discovery document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from provisioner.lab.cloud.compute.schema import Field, FieldType, messages
from tests.support.checks.discovery_schema import RECORDED, discovery, problems_of_call

RESOURCES = [
    "Autoscaler",
    "Instance",
    "InstanceGroup",
    "InstanceGroupManager",
    "InstanceManagedByIgmError",
    "InstanceTemplate",
    "InstanceWithNamedPorts",
    "MachineType",
    "ManagedInstance",
    "Operation",
    "PerInstanceConfig",
    "Region",
    "Zone",
]


@pytest.mark.parametrize("resource", RESOURCES)
def test_the_fields_of_a_resource_are_googles(resource: str) -> None:
    assert list(_differences(resource, discovery()["schemas"][resource], resource)) == []


def _differences(message: str, schema: dict[str, Any], path: str) -> Iterator[str]:
    for name, field in messages()[message].fields.items():
        theirs = _resolved(schema["properties"].get(name))
        if theirs is None and (schema["id"], name) in RECORDED:
            theirs = discovery("beta")["schemas"][schema["id"]]["properties"][name]
        if theirs is None:
            yield f"{path}.{name}: Google has no such field"
            continue
        inner = theirs.get("items") if field.repeated else theirs
        inner = (
            _resolved(inner.get("additionalProperties")) if inner and field.kind is FieldType.MAP else _resolved(inner)
        )
        if inner is None or not _alike(name, field, inner):
            yield f"{path}.{name}: Google has {theirs}"
        elif field.message:
            yield from _differences(field.message, inner, f"{path}.{name}")


def _resolved(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    while schema and "$ref" in schema:
        schema = discovery()["schemas"][schema["$ref"]]
    return schema


def _alike(name: str, field: Field, theirs: dict[str, Any]) -> bool:
    if field.message or field.kind is FieldType.OBJECT:
        return bool(theirs["type"] == "object")
    number = theirs["type"] in ("integer", "number") or theirs.get("format") in ("int64", "uint64")
    time = theirs["type"] == "string" and re.search(r"(?i:timestamp|[a-z]Time)$", name) is not None
    kinds = {FieldType.NUMBER: number, FieldType.TRUTH: theirs["type"] == "boolean", FieldType.TIME: time}
    return kinds.get(field.kind, theirs["type"] == "string" and not number and not time)


# --- the check of responses -------------------------------------------------------------------------------------------

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


def test_an_error_that_differs_from_googles_form_is_found() -> None:
    assert problems({"error": {"code": 500}}, 404) == [
        "instances.get: error.code: 500 in an answer 404",
        "instances.get: error.message: not a text",
        "instances.get: error.errors: empty",
    ]


def test_unknown_parameters_and_methods_are_found() -> None:
    assert problems_of_call("GET", PATH, ["fields", "fild"], 200, {}) == ["instances.get: unknown parameter fild"]
    nothing = "projects/p/zones/z/nothing"
    assert problems_of_call("PATCH", nothing, [], 200, {}) == [f"PATCH {nothing}: no method of the Compute Engine API"]
