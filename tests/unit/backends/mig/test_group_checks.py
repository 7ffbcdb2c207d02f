"""Findings on a group's settings, with advice."""

from __future__ import annotations

import re
from typing import Any

import pytest

from provisioner.backends import Finding, Severity
from provisioner.backends.mig.group_checks import (
    autoscaler_findings,
    group_findings,
    is_prefix_of,
    missing_group_finding,
    name_findings,
    template_findings,
)
from provisioner.backends.mig.settings import MigPool

ZONAL = MigPool(name="mig-a", project="p", zone="us-central1-a", group="g")
REGIONAL = MigPool(name="mig-r", project="p", region="us-central1", group="g")
WHERE = "g --zone=us-central1-a --project=p"
GCLOUD = "gcloud compute instance-groups managed"
NOTHING = {"defaultActionOnFailure": "DO_NOTHING"}
GOOD = {
    "updatePolicy": {
        "type": "OPPORTUNISTIC",
        "replacementMethod": "SUBSTITUTE",
        "instanceRedistributionType": "NONE",
    },
    "instanceLifecyclePolicy": NOTHING,
}
HEALTH = [{"healthCheck": "projects/p/global/healthChecks/grid", "initialDelaySec": 300}]


@pytest.mark.parametrize(
    ("changes", "severity", "line"),
    [
        pytest.param({}, None, "", id="as recommended"),
        pytest.param(
            {"updatePolicy": {"type": "PROACTIVE", "replacementMethod": "RECREATE"}},
            Severity.ERROR,
            f"another template: {GCLOUD} update {WHERE} --update-policy-type=opportunistic",
            id="a new template would cost all machines",
        ),
        pytest.param({"updatePolicy": {"type": "OPPORTUNISTIC"}}, None, "", id="a zonal group has nothing to even out"),
        pytest.param({"autoHealingPolicies": HEALTH}, None, "", id="a health check without a consequence"),
        pytest.param(
            {"autoHealingPolicies": HEALTH, "instanceLifecyclePolicy": NOTHING | {"onFailedHealthCheck": "REPAIR"}},
            Severity.ERROR,
            f"fails its health check grid, .*REPAIR.*: {GCLOUD} update {WHERE} --clear-autohealing",
            id="a health check that repairs",
        ),
        pytest.param(
            {"instanceLifecyclePolicy": NOTHING | {"onFailedHealthCheck": "REPAIR"}}, None, "", id="without a check"
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
    assert all(re.search(line.replace("(", r"\(").replace(")", r"\)"), finding.text) for finding in findings)


def test_a_health_check_repairs_by_the_default_action_unless_it_has_its_own() -> None:
    usual = {"autoHealingPolicies": HEALTH, "instanceLifecyclePolicy": {"defaultActionOnFailure": "REPAIR"}}
    assert ["health check" in finding.text for finding in group_findings(ZONAL, GOOD | usual)] == [True, False]
    own = usual["instanceLifecyclePolicy"] | {"onFailedHealthCheck": "DO_NOTHING"}  # type: ignore[operator]
    assert len(group_findings(ZONAL, GOOD | usual | {"instanceLifecyclePolicy": own})) == 1


@pytest.mark.parametrize(
    ("policy", "shape", "errors"),
    [
        pytest.param({"instanceRedistributionType": "NONE"}, {"targetShape": "EVEN"}, 0, id="it is off"),
        pytest.param({"instanceRedistributionType": "PROACTIVE"}, {"targetShape": "EVEN"}, 1, id="it is on"),
        pytest.param({}, {}, 1, id="Google's defaults"),
        pytest.param({}, {"targetShape": "ANY"}, 0, id="another shape is never evened out"),
    ],
)
def test_a_regional_group_must_not_even_out_its_zones(
    policy: dict[str, str], shape: dict[str, str], errors: int
) -> None:
    findings = group_findings(REGIONAL, GOOD | {"updatePolicy": policy, "distributionPolicy": shape})
    assert [finding.severity for finding in findings] == [Severity.ERROR] * errors
    line = f"{GCLOUD} update g --region=us-central1 --project=p --instance-redistribution-type=none"
    assert all(finding.text.endswith(line) for finding in findings)


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
    findings = [*autoscaler_findings(ZONAL, autoscaler)]
    assert len(findings) == errors
    assert all(finding.text.endswith(f"{GCLOUD} stop-autoscaling {WHERE}") for finding in findings)


def test_a_template_without_labels_is_a_warning() -> None:
    assert [*template_findings(ZONAL, {"properties": {"labels": {"grid": "a"}}})] == []
    assert [finding.severity for finding in template_findings(ZONAL, {"properties": {}})] == [Severity.WARNING]


def test_a_group_that_is_missing_can_be_made_with_one_line() -> None:
    assert (
        f"{GCLOUD} create g --region=us-central1 --project=p --template=TEMPLATE --size=0"
        in missing_group_finding(REGIONAL).text
    )


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
    assert (is_prefix_of(ours, theirs) or is_prefix_of(theirs, ours)) is covered
    findings = name_findings(ZONAL, ours, [f"{theirs}-abcde01234-000001", "g-x1y2", f"{ours}-abcde01234-000007"])
    refused = covered and ours != theirs
    assert [finding.severity for finding in findings] == [Severity.REFUSED] * refused
    assert all(repr(theirs) in finding.text for finding in findings)


def test_a_finding_names_its_pool() -> None:
    assert isinstance(missing_group_finding(ZONAL), Finding)
    assert missing_group_finding(ZONAL).pool == "mig-a"


@pytest.mark.parametrize(
    ("life", "least", "wrong"), [("3600", 3600.0, True), ("3601", 3600.0, False), (None, 9e9, False)]
)
def test_a_life_that_no_instance_of_the_template_has_is_an_error(life: str | None, least: float, wrong: bool) -> None:
    scheduling = {"maxRunDuration": {"seconds": life}} if life else {}
    template = {"properties": {"labels": {"grid": "a"}, "scheduling": scheduling}}
    findings = [*template_findings(ZONAL.model_copy(update={"least_life_seconds": least}), template)]
    assert [one.severity for one in findings] == [Severity.ERROR] * wrong
    assert all("least_life_seconds (3600)" in one.text for one in findings)
