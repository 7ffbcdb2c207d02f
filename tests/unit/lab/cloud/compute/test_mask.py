"""Compute Engine's partial responses."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.lab.cloud.compute.mask import DEEPEST, compile_fields, select

VM: dict[str, Any] = {
    "name": "hf-a-000001",
    "id": "42",
    "labels": {"team": "risk", "empty": ""},
    "scheduling": {"preemptible": False},
    "networkInterfaces": [{"networkIP": "10.0.0.7", "name": "nic0"}],
}

PAGE: dict[str, Any] = {"kind": "compute#instanceList", "items": [VM, VM], "nextPageToken": "next"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("nextPageToken", {"nextPageToken": "next"}),
        ("items/name", {"items": [{"name": "hf-a-000001"}] * 2}),
        ("items(name,id)", {"items": [{"name": "hf-a-000001", "id": "42"}] * 2}),
        ("items(networkInterfaces(networkIP))", {"items": [{"networkInterfaces": [{"networkIP": "10.0.0.7"}]}] * 2}),
        (
            "items/name, items/labels/team, kind",
            {"kind": PAGE["kind"], "items": [{"name": "hf-a-000001", "labels": {"team": "risk"}}] * 2},
        ),
        ("items(name,scheduling),items", {"items": [VM, VM]}),
        ("items(absent,id)", {"items": [{"id": "42"}] * 2}),
        ("*", PAGE),
    ],
)
def test_a_partial_response_holds(fields: str, expected: dict[str, Any]) -> None:
    assert select(PAGE, compile_fields(fields)) == expected


@pytest.mark.parametrize(
    "fields", ["items.zones.instances(name)", "items/*/instances/name", "items.zones.instances.name"]
)
def test_a_partial_response_of_an_aggregated_list_goes_through_the_zones(fields: str) -> None:
    page = {"items": {"zones/us-central1-a": {"instances": [VM]}}, "kind": "x"}
    expected = {"items": {"zones/us-central1-a": {"instances": [{"name": "hf-a-000001"}]}}}
    assert select(page, compile_fields(fields)) == expected


@pytest.mark.parametrize(
    "fields",
    [
        "items(name",
        "items(,name)",
        "a//b",
        pytest.param("a(" * 2000 + "b" + ")" * 2000, id="thousands of parentheses"),
    ],
)
def test_a_malformed_field_selection_is_refused(fields: str) -> None:
    with pytest.raises(ValueError, match="Invalid field selection"):
        compile_fields(fields)


def test_a_selection_goes_as_deep_as_any_document() -> None:
    assert compile_fields("a/" * (DEEPEST - 1) + "b")
