"""Actions of a managed instance group itself: with Google's defaults, with settings for a grid, and after a patch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from provisioner.lab.cloud.compute.group_patch import patch_group
from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.lab.cloud.world import Fault
from tests.support.clouds.mig_cloud import EXACT, SPEC, Cloud
from tests.support.clouds.specs import advised

REGIONAL = MigSpec(project="p", region="us-central1", name="g")
AT_ONCE = replace(EXACT, redistribute=(10.0, 10.0))
CHECKED = {"autoHealingPolicies": [{"healthCheck": "global/healthChecks/alive", "initialDelaySec": 0}]}
OTHER = replace(SPEC, template_name="other")


def patched(cloud: Cloud, **body: Any) -> None:
    patch_group(cloud.mig, body, {"other": OTHER})
    cloud.pass_time(1.1)


def zones(cloud: Cloud) -> Counter[str]:
    return Counter(entry["instance"].split("/zones/")[1].partition("/")[0] for entry in cloud.shown().values())


def emptied(cloud: Cloud, names: str = "adg") -> None:
    """Create nine members in three zones, then delete three of one zone."""
    cloud.run(*"abcdefghi")
    urls = [f"https://x/compute/v1/projects/p/zones/us-central1-a/instances/{name}" for name in names]
    cloud.mig.delete(urls, skip_invalid=True)
    cloud.pass_time(500.0)


def test_a_regional_group_with_googles_defaults_moves_members_once_its_zones_are_uneven() -> None:
    cloud = Cloud(REGIONAL, timings=AT_ONCE)
    emptied(cloud)
    assert cloud.mig.target_size == 6
    assert sorted(zones(cloud).values()) == [2, 2, 2]
    assert not cloud.shown().keys() >= set("bcefhi"), "running members were deleted"
    assert any(name.startswith("g-") for name in cloud.shown()), (
        "members were made elsewhere under the group's own names"
    )


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(advised(project="p", region="us-central1", name="g"), id="for a grid"),
        pytest.param(replace(REGIONAL, target_shape="ANY"), id="another shape"),
    ],
)
def test_a_group_that_does_not_even_out_its_zones_leaves_its_members_alone(spec: MigSpec) -> None:
    cloud = Cloud(spec, timings=AT_ONCE)
    emptied(cloud)
    assert set(cloud.shown()) == set("bcefhi")


def test_a_patch_begins_and_ends_the_redistribution() -> None:
    cloud = Cloud(advised(project="p", region="us-central1", name="g"), timings=AT_ONCE)
    emptied(cloud)
    patched(cloud, updatePolicy={"instanceRedistributionType": "PROACTIVE"})
    cloud.pass_time(500.0)
    assert sorted(zones(cloud).values()) == [2, 2, 2]


@pytest.mark.parametrize(
    ("lifecycle", "checked", "healed"),
    [
        pytest.param({"defaultActionOnFailure": "REPAIR"}, True, True, id="the default action"),
        pytest.param({"defaultActionOnFailure": "DO_NOTHING", "onFailedHealthCheck": "REPAIR"}, True, True, id="said"),
        pytest.param({"defaultActionOnFailure": "REPAIR", "onFailedHealthCheck": "DO_NOTHING"}, True, False, id="not"),
        pytest.param({"defaultActionOnFailure": "DO_NOTHING"}, True, False, id="the default action is none"),
        pytest.param({"defaultActionOnFailure": "REPAIR"}, False, False, id="there is no health check"),
    ],
)
def test_a_group_heals_what_fails_its_health_check_if_it_is_to(
    lifecycle: dict[str, str], checked: bool, healed: bool
) -> None:
    cloud = Cloud(SPEC)
    patched(cloud, instanceLifecyclePolicy=lifecycle, **(CHECKED if checked else {}))
    cloud.faults(Fault("unhealthy", "a", params={"seconds": 30}, limit=1))
    cloud.run("a", "b")
    cloud.pass_time(30.1)
    actions = {name: entry["currentAction"] for name, entry in cloud.shown().items()}
    assert actions == {"a": "RECREATING" if healed else "NONE", "b": "NONE"}
    cloud.pass_time(60.0)
    assert cloud.phases() == {"a": "running", "b": "running"}


@pytest.mark.parametrize(
    ("kind", "method", "names"),
    [
        pytest.param("OPPORTUNISTIC", "SUBSTITUTE", {"a", "b"}, id="the group waits for a call"),
        pytest.param("PROACTIVE", "RECREATE", {"a", "b"}, id="made again under their names"),
        pytest.param("PROACTIVE", "SUBSTITUTE", set(), id="others in their place"),
    ],
)
def test_another_template_replaces_what_runs_where_the_update_is_proactive(
    kind: str, method: str, names: set[str]
) -> None:
    cloud = Cloud(SPEC)
    cloud.run("a", "b")
    policy = {"type": kind, "replacementMethod": method, "maxSurge": {"fixed": int(method != "RECREATE")}}
    patched(cloud, updatePolicy=policy | {"maxUnavailable": {"fixed": 1}}, instanceTemplate=f"/{OTHER.template}")
    cloud.pass_time(120.0)
    shown = cloud.shown()
    assert len(shown) == 2
    assert shown.keys() & {"a", "b"} == names
    made_from = {entry["version"]["instanceTemplate"].rpartition("/")[2] for entry in shown.values()}
    assert made_from == {"g-template" if kind == "OPPORTUNISTIC" else "other"}


def test_a_group_evens_out_its_zones_after_members_were_abandoned() -> None:
    cloud = Cloud(REGIONAL, timings=AT_ONCE)
    cloud.run(*"abcdefghi")
    urls = [f"https://x/compute/v1/projects/p/zones/us-central1-a/instances/{name}" for name in "adg"]
    cloud.mig.abandon(urls)
    cloud.pass_time(500.0)
    assert sorted(zones(cloud).values()) == [2, 2, 2]


PROACTIVE = {"type": "PROACTIVE", "replacementMethod": "RECREATE", "maxSurge": {"fixed": 0}}


def test_another_patch_during_an_update_replaces_each_member_once() -> None:
    cloud = Cloud(SPEC)
    cloud.run("a", "b")
    before = {name: cloud.vm(name)["lastStartTimestamp"] for name in "ab"}  # type: ignore[index]
    patched(cloud, updatePolicy=PROACTIVE, instanceTemplate=f"/{OTHER.template}")
    patched(cloud, description="one")
    patched(cloud, description="two")
    cloud.pass_time(25.0)
    first = {name: cloud.vm(name)["lastStartTimestamp"] for name in "ab"}  # type: ignore[index]
    cloud.pass_time(300.0)
    assert {name: cloud.vm(name)["lastStartTimestamp"] for name in "ab"} == first  # type: ignore[index]
    assert first != before


@pytest.mark.parametrize(
    "then",
    [
        pytest.param({"type": "OPPORTUNISTIC", "replacementMethod": "RECREATE"}, id="the group waits for a call again"),
        pytest.param({"mostDisruptiveAllowedAction": "RESTART"}, id="nothing may be replaced"),
    ],
)
def test_an_update_that_is_no_longer_wanted_goes_no_further(then: dict[str, str]) -> None:
    cloud = Cloud(SPEC, timings=replace(EXACT, schedule=(30.0, 30.0)))
    cloud.mig.create(["a", "b"])
    cloud.pass_time(60.0)
    patched(cloud, updatePolicy=PROACTIVE, instanceTemplate=f"/{OTHER.template}")
    patched(cloud, updatePolicy=then)
    cloud.pass_time(300.0)
    made_from = {name: entry["version"]["instanceTemplate"].rpartition("/")[2] for name, entry in cloud.shown().items()}
    assert made_from == {"a": "other", "b": "g-template"}


def test_a_new_member_may_fail_its_health_check_for_the_initial_delay() -> None:
    cloud = Cloud(SPEC)
    checks = [{"healthCheck": "global/healthChecks/alive", "initialDelaySec": 100}]
    patched(cloud, instanceLifecyclePolicy={"onFailedHealthCheck": "REPAIR"}, autoHealingPolicies=checks)
    cloud.faults(Fault("unhealthy", "a", params={"seconds": 30}, limit=1))
    cloud.run("a")
    cloud.pass_time(90.0)
    assert cloud.shown()["a"]["currentAction"] == "NONE"
    cloud.pass_time(15.0)
    assert cloud.shown()["a"]["currentAction"] == "RECREATING"


@pytest.mark.parametrize("health_check_first", [True, False])
def test_a_group_heals_by_the_settings_that_it_has_when_the_check_fails(health_check_first: bool) -> None:
    cloud = Cloud(SPEC)
    wanted = {"instanceLifecyclePolicy": {"onFailedHealthCheck": "REPAIR"}, **CHECKED}
    if health_check_first:
        patched(cloud, **wanted)
    cloud.faults(Fault("unhealthy", "a", params={"seconds": 30}, limit=1))
    cloud.run("a")
    patched(cloud, **({"autoHealingPolicies": None} if health_check_first else wanted))
    cloud.pass_time(30.0)
    assert cloud.shown()["a"]["currentAction"] == ("NONE" if health_check_first else "RECREATING")


@pytest.mark.parametrize(("forced", "template"), [("NO", "g-template"), ("YES", "other")])
def test_a_repair_keeps_the_template_unless_an_update_is_forced(forced: str, template: str) -> None:
    cloud = Cloud(SPEC)
    cloud.run("a")
    lifecycle = {"defaultActionOnFailure": "REPAIR", "forceUpdateOnRepair": forced}
    patched(cloud, instanceLifecyclePolicy=lifecycle, instanceTemplate=f"/{OTHER.template}")
    cloud.groups.preempt(["a"])
    cloud.pass_time(120.0)
    entry = cloud.shown()["a"]
    assert entry["instanceStatus"] == "RUNNING"
    assert entry["version"]["instanceTemplate"].rpartition("/")[2] == template


def test_a_group_that_is_no_longer_to_repair_leaves_what_died() -> None:
    cloud = Cloud(MigSpec(project="p", zone="us-central1-a", name="g"))
    cloud.run("a")
    cloud.groups.preempt(["a"])
    cloud.pass_time(31.0)
    patched(cloud, instanceLifecyclePolicy={"defaultActionOnFailure": "DO_NOTHING"})
    cloud.pass_time(200.0)
    assert cloud.phases() == {"a": "gone"}
