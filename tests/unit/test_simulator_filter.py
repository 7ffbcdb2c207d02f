"""Compute Engine's filters and partial responses."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.simulator.compute_filter import compile_fields, compile_filter, select

VM: dict[str, Any] = {
    "name": "hf-a-000001",
    "id": "42",
    "status": "RUNNING",
    "creationTimestamp": "2026-01-02T03:04:05.000-07:00",
    "labels": {"team": "risk", "empty": ""},
    "scheduling": {"preemptible": False},
    "networkInterfaces": [{"networkIP": "10.0.0.7", "name": "nic0"}],
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name eq hf-.*", True),
        ("name eq hf", False),
        ('name eq "hf-(a|b)-.*"', True),
        ("name ne hf-.*", False),
        ("(name eq hf-.*)(status eq STOPPED)", False),
        ("name=hf-a-000001", True),
        ("name = HF-A-000001", True),
        ("name=hf-a", False),
        ("name=hf-*", True),
        ("name:a-0000", True),
        ("name:hf-*", True),
        ("name!=hf-a-000001", False),
        ("labels.team=risk", True),
        ("labels.team:*", True),
        ("labels.absent:*", False),
        ("-labels.absent:*", True),
        ("labels.absent=x", False),
        ("(status = RUNNING) (labels.team = risk)", True),
        ("status=RUNNING labels.team=other", False),
        ("status=STOPPED OR labels.team=risk", True),
        ("status=STOPPED OR labels.team=risk AND name=x", False),
        ("NOT status=RUNNING", False),
        ("NOT (status=STOPPED OR name=x)", True),
        ("networkInterfaces.networkIP=10.0.0.7", True),
        ("scheduling.preemptible=false", True),
        ("id>41", True),
        ("id<=41", False),
        ('creationTimestamp>"2026-01-01"', True),
        ('status="RUNNING" AND name:"hf"', True),
    ],
)
def test_a_filter_lets_through(text: str, expected: bool) -> None:
    assert compile_filter(text)(VM) is expected


@pytest.mark.parametrize(
    "text",
    [
        "name",
        "name eq",
        "name eq [",
        "(name=x",
        "name=x)",
        "= x",
        "name = (x)",
        "name eq a AND status=RUNNING",
        'name="x',
    ],
)
def test_a_malformed_filter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid list filter expression"):
        compile_filter(text)


PAGE: dict[str, Any] = {"kind": "compute#instanceList", "items": [VM, VM], "nextPageToken": "next"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("nextPageToken", {"nextPageToken": "next"}),
        ("items/name", {"items": [{"name": "hf-a-000001"}] * 2}),
        ("items(name,id)", {"items": [{"name": "hf-a-000001", "id": "42"}] * 2}),
        ("items(networkInterfaces/networkIP)", {"items": [{"networkInterfaces": [{"networkIP": "10.0.0.7"}]}] * 2}),
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


@pytest.mark.parametrize("fields", ["items(name", "items)", "items(,name)", ",", "items()", "a//b"])
def test_a_malformed_field_selection_is_refused(fields: str) -> None:
    with pytest.raises(ValueError, match="Invalid field selection"):
        compile_fields(fields)
