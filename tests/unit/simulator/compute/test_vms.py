"""The model of MIGs: VMs that are preempted, die, are repaired, get stuck or come late, without any HTTP."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.simulator.compute.settings import Switches
from provisioner.simulator.world import Fault
from tests.support.clouds.mig_cloud import EXACT, SPEC, ZONE, Cloud


@pytest.mark.parametrize("spot", [False, True])
def test_a_preempted_vm_gets_its_notice_and_stays_as_a_dead_member(spot: bool) -> None:
    model = "SPOT" if spot else "STANDARD"
    cloud = Cloud(replace(SPEC, provisioning_model=model))
    cloud.run("a", "b")
    assert cloud.groups.preempt(["a", "nobody"]) == ["a"]
    assert cloud.phases() == {"a": "stopping", "b": "running"}
    assert cloud.groups.preempt(["a"]) == [], "it is being preempted already"
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


def test_a_repair_without_capacity_goes_on_trying() -> None:
    cloud = Cloud(replace(SPEC, default_action_on_failure="REPAIR"))
    cloud.run("a")
    cloud.faults(Fault("stockout"))
    cloud.groups.preempt(["a"])
    cloud.pass_time(55.0)
    member = cloud.shown()["a"]
    assert member["currentAction"] == "RECREATING"
    assert member["lastAttempt"]["errors"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert "instanceStatus" not in member


def test_a_repair_does_not_bring_back_a_member_that_was_deleted_meanwhile() -> None:
    cloud = Cloud(replace(SPEC, default_action_on_failure="REPAIR"))
    cloud.run("a")
    cloud.groups.preempt(["a"])
    cloud.pass_time(35.0)
    cloud.delete("a")
    cloud.pass_time(100.0)
    assert cloud.phases() == {}


def test_a_repair_leaves_a_vm_alone_that_somebody_recreated_meanwhile() -> None:
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


def test_the_end_of_an_abandoned_vm_is_no_business_of_the_mig() -> None:
    cloud = Cloud(timings=replace(EXACT, leave=(60.0, 60.0)), switches=Switches(dead_member_stays=False))
    cloud.run("a")
    cloud.mig.abandon([cloud.url("a")])
    cloud.pass_time(1.1)
    cloud.groups.delete_vm(cloud.groups.vm("p", ZONE, "a"))
    cloud.pass_time(10.0)
    assert cloud.vm("a") is None
    assert cloud.shown()["a"]["currentAction"] == "ABANDONING"
    assert cloud.mig.target_size == 0


def test_a_guest_is_switched_off_hard_after_a_while() -> None:
    cloud = Cloud(timings=replace(EXACT, delete=(500.0, 500.0), delete_cap=130.0))
    cloud.run("a")
    cloud.delete("a")
    cloud.pass_time(130.0)
    assert cloud.phases() == {"a": "stopping"}
    cloud.pass_time(3.1)
    assert cloud.phases() == {}


def test_a_vm_that_is_deleted_during_its_preemption_does_not_stay() -> None:
    cloud = Cloud()
    cloud.run("a")
    cloud.groups.preempt(["a"])
    cloud.delete("a")
    cloud.pass_time(40.0)
    assert cloud.phases() == {}


def test_recreating_gives_the_same_name_a_new_vm() -> None:
    cloud = Cloud(switches=Switches(recreate_keeps_id=False))
    cloud.run("a")
    before = cloud.vm("a")
    cloud.mig.recreate([cloud.url("a")])
    cloud.pass_time(25.0)
    after = cloud.vm("a")
    assert before is not None
    assert after is not None
    assert after["status"] == "RUNNING"
    assert after["id"] != before["id"]


def test_a_vm_deleted_or_stopped_by_others_leaves_a_dead_member() -> None:
    cloud = Cloud(switches=Switches(dead_member_stays=True))
    cloud.run("a", "b")
    cloud.groups.delete_vm(cloud.groups.vm("p", ZONE, "a"))
    cloud.groups.stop_vm(cloud.groups.vm("p", ZONE, "b"))
    cloud.pass_time(10.0)
    assert cloud.phases() == {"a": "gone", "b": "gone"}
    assert "instanceStatus" not in cloud.shown()["a"]
    assert cloud.shown()["b"]["instanceStatus"] == "TERMINATED"
    assert cloud.mig.target_size == 2


def test_a_vm_that_others_delete_before_it_ever_ran_is_made_again() -> None:
    cloud = Cloud()
    cloud.mig.create(["a"])
    cloud.pass_time(5.0)
    cloud.groups.delete_vm(cloud.groups.vm("p", ZONE, "a"))
    cloud.pass_time(25.0)
    assert cloud.phases() == {"a": "running"}


def test_stuck_vms_stay_where_they_are() -> None:
    cloud = Cloud()
    cloud.faults(Fault("stuck_provisioning", target="a"), Fault("stuck_stopping", target="b"))
    cloud.run("a", "b")
    cloud.delete("b")
    cloud.pass_time(5000.0)
    assert cloud.phases() == {"a": "pending", "b": "stopping"}


def test_an_ip_can_come_late() -> None:
    cloud = Cloud()
    cloud.faults(Fault("no_ip", params={"seconds": 7}))
    cloud.run("a")
    document = cloud.vm("a")
    assert document is not None
    assert document["status"] == "RUNNING"
    assert "networkIP" not in document["networkInterfaces"][0]
    cloud.pass_time(7.0)
    later = cloud.vm("a")
    assert later is not None
    assert later["networkInterfaces"][0]["networkIP"] == "10.128.0.2"


def test_the_fault_preemption_takes_vms_away_some_time_after_they_run() -> None:
    cloud = Cloud()
    cloud.faults(Fault("preemption", target="a", params={"seconds": 3}))
    cloud.run("a", "b")
    cloud.pass_time(3.5)
    assert cloud.phases() == {"a": "stopping", "b": "running"}


def test_an_address_is_given_to_another_vm_but_not_back_to_the_same_name() -> None:
    cloud = Cloud()
    cloud.run("a")
    cloud.delete("a")
    cloud.pass_time(10.0)
    cloud.run("a")
    cloud.run("b")
    ips = {entry["name"]: entry["ip"] for entry in cloud.groups.state()}
    assert ips == {"a": "10.128.0.3", "b": "10.128.0.2"}
