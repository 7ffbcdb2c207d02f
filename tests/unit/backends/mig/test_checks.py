"""What is said of a group whose settings will go wrong, and what to do about it."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner.backends import Finding, Severity
from provisioner.backends.mig.checks import (
    autoscaler_findings,
    covers,
    group_findings,
    missing,
    name_findings,
    template_findings,
)
from provisioner.backends.mig.settings import MigPool

ZONAL = MigPool(name="mig-a", project="p", zone="us-central1-a", group="g")
REGIONAL = MigPool(name="mig-r", project="p", region="us-central1", group="g")
WHERE = "g --zone=us-central1-a --project=p"
GCLOUD = "gcloud compute instance-groups managed"
GOOD = {
    "updatePolicy": {"type": "OPPORTUNISTIC", "replacementMethod": "SUBSTITUTE"},
    "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
}


@pytest.mark.parametrize(
    ("changes", "severity", "line"),
    [
        pytest.param({}, None, "", id="as recommended"),
        pytest.param(
            {"updatePolicy": {"type": "PROACTIVE", "replacementMethod": "RECREATE"}}, None, "", id="RECREATE is fine"
        ),
        pytest.param(
            {"updatePolicy": {"type": "PROACTIVE", "replacementMethod": "SUBSTITUTE"}},
            Severity.ERROR,
            f"(CONDITION_NOT_MET): {GCLOUD} update {WHERE} --update-policy-type=opportunistic",
            id="creates would be refused",
        ),
        pytest.param(
            {"updatePolicy": {"type": "PROACTIVE"}}, Severity.ERROR, "CONDITION_NOT_MET", id="SUBSTITUTE is the default"
        ),
        pytest.param(
            {"instanceLifecyclePolicy": {}},
            Severity.WARNING,
            f"{GCLOUD} update {WHERE} --default-action-on-vm-failure=do-nothing",
            id="REPAIR is the default",
        ),
    ],
)
def test_a_groups_settings(changes: dict[str, Any], severity: Severity | None, line: str) -> None:
    findings = group_findings(ZONAL, GOOD | changes)
    assert [finding.severity for finding in findings] == [severity] * (severity is not None)
    assert all(line in finding.text for finding in findings)


@pytest.mark.parametrize(
    ("pool", "most", "limit"),
    [(ZONAL, None, 0), (ZONAL, 1000, 0), (ZONAL, 1001, 1000), (REGIONAL, 2000, 0), (REGIONAL, 2001, 2000)],
)
def test_more_machines_than_a_group_holds(pool: MigPool, most: int | None, limit: int) -> None:
    findings = group_findings(pool.model_copy(update={"max_machines": most}), GOOD)
    assert [f"holds {limit} instances" in finding.text for finding in findings] == [True] * bool(limit)


@pytest.mark.parametrize(
    ("autoscaler", "errors"),
    [
        ({"autoscalingPolicy": {"mode": "OFF"}}, 0),
        ({"autoscalingPolicy": {"mode": "ON"}}, 1),
        ({"autoscalingPolicy": {"mode": "ONLY_SCALE_OUT"}}, 1),
        ({}, 1),
    ],
)
def test_an_autoscaler_has_to_be_off(autoscaler: dict[str, Any], errors: int) -> None:
    findings = autoscaler_findings(ZONAL, autoscaler)
    assert len(findings) == errors
    assert all(finding.text.endswith(f"{GCLOUD} stop-autoscaling {WHERE}") for finding in findings)


def test_a_template_without_labels_is_a_warning() -> None:
    assert template_findings(ZONAL, {"properties": {"labels": {"grid": "a"}}}) == []
    assert [finding.severity for finding in template_findings(ZONAL, {"properties": {}})] == [Severity.WARNING]


def test_a_group_that_is_missing_can_be_made_with_one_line() -> None:
    assert f"{GCLOUD} create g --region=us-central1 --project=p --template=TEMPLATE --size=0" in missing(REGIONAL).text


@pytest.mark.parametrize(
    ("ours", "theirs", "covered"),
    [
        ("hf", "hf-b", True),
        ("hf-b", "hf", True),
        ("hf", "hf", True),
        ("hf-a", "hf-b", False),
        ("hf", "hfb", False),
    ],
)
def test_prefixes_that_cover_one_another(ours: str, theirs: str, covered: bool) -> None:
    assert (covers(ours, theirs) or covers(theirs, ours)) is covered
    findings = name_findings(ZONAL, ours, [f"{theirs}-abcde01234-000001", "g-x1y2", f"{ours}-abcde01234-000007"])
    refused = covered and ours != theirs
    assert [finding.severity for finding in findings] == [Severity.REFUSED] * refused
    assert all(repr(theirs) in finding.text for finding in findings)


def test_a_finding_names_its_pool() -> None:
    assert isinstance(missing(ZONAL), Finding)
    assert missing(ZONAL).pool == "mig-a"
