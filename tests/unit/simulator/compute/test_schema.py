"""What the simulator knows of Compute Engine's fields is what Google's discovery document says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from provisioner.simulator.compute.schema import Field, FieldType, field_at, messages
from tests.support.checks.discovery_schema import RECORDED, discovery

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


@pytest.mark.parametrize(
    ("path", "kind", "repeated"),
    [
        ("name", FieldType.TEXT, False),
        ("id", FieldType.NUMBER, False),
        ("labels", FieldType.MAP, False),
        ("labels.team", FieldType.TEXT, False),
        ("scheduling", FieldType.OBJECT, False),
        ("scheduling.preemptible", FieldType.TRUTH, False),
        ("creationTimestamp", FieldType.TIME, False),
        ("disks", FieldType.OBJECT, True),
        ("networkInterfaces.networkIP", FieldType.TEXT, False),
        ("resourcePolicies", FieldType.TEXT, True),
    ],
)
def test_a_path_leads_to_a_field(path: str, kind: FieldType, repeated: bool) -> None:
    field = field_at("Instance", path.split("."))
    assert (field.kind, field.repeated) == (kind, repeated)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("nam", "nam"),
        ("labels.team.more", "labels.team.more"),
        ("metadata.team", "metadata.team"),
        ("name.first", "name.first"),
        ("resourceStatus.physicalHost.more", "resourceStatus.physicalHost"),
    ],
)
def test_a_path_that_leads_nowhere_is_named(path: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"'{wrong}' is no field of Instance"):
        field_at("Instance", path.split("."))
