"""The model of MIGs without HTTP: VMs that are preempted, die, are repaired, get stuck or come late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.lab.cloud.compute.settings import Switches
from tests.support.clouds.mig_cloud import SPEC, ZONE, Cloud


@pytest.mark.parametrize("spot", [False, True])
def test_a_preempted_vm_gets_its_notice_and_stays_as_a_dead_member(spot: bool) -> None:
    model = "SPOT" if spot else "STANDARD"
    cloud = Cloud(replace(SPEC, provisioning_model=model))
    cloud.run("a", "b")
    assert cloud.groups.preempt(["a", "unknown"]) == ["a"]
    assert cloud.phases() == {"a": "stopping", "b": "running"}
    assert cloud.groups.preempt(["a"]) == [], "its preemption is under way"
    cloud.pass_time(29.0)
    assert cloud.shown()["a"]["instanceStatus"] == "STOPPING"
    cloud.pass_time(1.1)
    member = cloud.shown()["a"]
    assert (member["instanceStatus"], member["currentAction"], member["targetStatus"]) == (
        "TERMINATED",
        "NONE",
        "RUNNING",
    )
    assert cloud.mig.target_size == 2
    cloud.pass_time(500.0)
    assert cloud.phases() == {"a": "gone", "b": "running"}
    cloud.delete("a")
    cloud.pass_time(4.0)
    assert cloud.phases() == {"b": "running"}


@pytest.mark.parametrize("stays", [True, False])
def test_a_preemption_may_delete_the_vm_and_the_member_stays_or_not(stays: bool) -> None:
    cloud = Cloud(replace(SPEC, termination_action="DELETE"), switches=Switches(dead_member_stays=stays))
    cloud.run("a")
    cloud.groups.preempt(["a"])
    cloud.pass_time(40.0)
    assert cloud.phases() == ({"a": "gone"} if stays else {})
    assert cloud.mig.target_size == int(stays)
    if stays:
        assert "instanceStatus" not in cloud.shown()["a"]


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("termination", ["STOP", "DELETE"])
def test_a_mig_that_repairs_makes_a_preempted_vm_again_with_another_ip(keeps: bool, termination: str) -> None:
    spec = replace(SPEC, default_action_on_failure="REPAIR", termination_action=termination)
    cloud = Cloud(spec, switches=Switches(recreate_keeps_id=keeps))
    cloud.run("a")
    before = cloud.vm("a")
    cloud.groups.preempt(["a"])
    cloud.pass_time(50.5)
    assert cloud.shown()["a"]["currentAction"] == "RECREATING"
    cloud.pass_time(20.0)
    after = cloud.vm("a")
    assert before is not None
    assert after is not None
    assert cloud.shown()["a"]["currentAction"] == "NONE"
    assert (after["id"] == before["id"], after["creationTimestamp"] == before["creationTimestamp"]) == (keeps, keeps)
    assert after["lastStartTimestamp"] > before["lastStartTimestamp"]
    assert after["networkInterfaces"][0]["networkIP"] != before["networkInterfaces"][0]["networkIP"]
    assert cloud.mig.target_size == 1


def test_a_repair_leaves_a_vm_alone_that_was_recreated_meanwhile() -> None:
    cloud = Cloud(replace(SPEC, default_action_on_failure="REPAIR"))
    cloud.run("a")
    cloud.groups.preempt(["a"])
    cloud.pass_time(31.0)
    cloud.mig.recreate([cloud.url("a")])
    cloud.pass_time(13.0)
    recreated = cloud.vm("a")
    assert recreated is not None
    assert recreated["status"] == "RUNNING"
    cloud.pass_time(60.0)
    assert cloud.vm("a") == recreated


def test_a_vm_that_others_delete_before_it_ever_ran_is_made_again() -> None:
    cloud = Cloud()
    cloud.mig.create(["a"])
    cloud.pass_time(5.0)
    cloud.groups.delete_vm(cloud.groups.vm("p", ZONE, "a"))
    cloud.pass_time(25.0)
    assert cloud.phases() == {"a": "running"}
