"""The model of MIGs without HTTP: the creation, deletion and refusal of members and their VMs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from provisioner.lab.cloud.compute.operations import ApiError
from provisioner.lab.cloud.compute.settings import Switches
from provisioner.lab.cloud.world import Fault
from tests.support.clouds.mig_cloud import EXACT, SPEC, Cloud


def test_a_vm_goes_through_provisioning_and_staging_to_running() -> None:
    cloud = Cloud()
    cloud.mig.create(["a"])
    seen: list[str] = []
    for _ in range(26):
        cloud.pass_time(0.5)
        status = cloud.shown().get("a", {}).get("instanceStatus", "")
        if not seen or seen[-1] != status:
            seen.append(status)
    assert seen == ["", "PROVISIONING", "STAGING", "RUNNING"]
    assert cloud.shown()["a"]["currentAction"] == "NONE"
    assert cloud.mig.is_stable
    document = cloud.vm("a")
    assert document is not None
    assert document["networkInterfaces"][0]["networkIP"] == "10.128.0.2"
    assert document["lastStartTimestamp"] > document["creationTimestamp"]


def test_deleting_lowers_target_size_at_once_then_the_vm_goes_then_the_member() -> None:
    cloud = Cloud()
    cloud.run("a", "b")
    cloud.delete("a")
    cloud.pass_time(1.1)
    assert cloud.mig.target_size == 1
    assert cloud.shown()["a"]["currentAction"] == "DELETING"
    assert "version" not in cloud.shown()["a"]
    assert cloud.phases() == {"a": "stopping", "b": "running"}
    cloud.pass_time(5.0)
    assert cloud.vm("a") is None
    assert "a" in cloud.shown()
    cloud.pass_time(2.0)
    assert cloud.phases() == {"b": "running"}


@pytest.mark.parametrize("cancel", [True, False])
def test_deleting_a_member_without_vm_cancels_it_or_lets_the_vm_come_up_first(cancel: bool) -> None:
    cloud = Cloud(timings=replace(EXACT, schedule=(5.0, 5.0)), switches=Switches(cancel_creating=cancel))
    cloud.mig.create(["a"])
    cloud.pass_time(1.5)
    cloud.delete("a")
    came_up = False
    for _ in range(60):
        cloud.pass_time(0.5)
        came_up |= cloud.vm("a") is not None
    assert came_up is not cancel
    assert cloud.phases() == {}
    assert cloud.mig.target_size == 0


def test_one_foreign_name_fails_a_delete_unless_it_is_to_be_skipped() -> None:
    cloud = Cloud()
    cloud.run("a")
    with pytest.raises(ApiError) as refused:
        cloud.delete("a", "unknown", skip=False)
    assert refused.value.status == 400
    cloud.delete("a", "unknown", skip=True)
    cloud.pass_time(10.0)
    assert cloud.phases() == {}


def test_a_stockout_stays_creating_with_its_error_and_is_tried_again_after_growing_gaps() -> None:
    cloud = Cloud()
    cloud.faults(Fault("stockout", params={"code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"}))
    cloud.mig.create(["a"])
    cloud.pass_time(3.0)
    member = cloud.shown()["a"]
    assert member["currentAction"] == "CREATING"
    assert [error["code"] for error in member["lastAttempt"]["errors"]["errors"]] == [
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    ]
    assert cloud.mig.target_size == 1
    assert cloud.phases() == {"a": "pending"}
    failed_at = [2]  # after the second of the operation and of the schedule
    for second in range(4, 700):
        cloud.pass_time(1.0)
        if len(cloud.mig.errors) > len(failed_at):
            failed_at.append(second)
    gaps = [later - earlier for earlier, later in itertools.pairwise(failed_at)]
    assert gaps == [60, 120, 200, 200], "doubles from 60 s up to the last gap"
    cloud.faults()
    cloud.pass_time(220.0)
    assert cloud.phases() == {"a": "running"}
    assert "lastAttempt" not in cloud.shown()["a"]


def test_quota_says_which_one_in_googles_form() -> None:
    cloud = Cloud()
    cloud.faults(Fault("quota", params={"limit": 8}))
    cloud.run("a")
    error = cloud.shown()["a"]["lastAttempt"]["errors"]["errors"][0]
    assert error["code"] == "QUOTA_EXCEEDED"
    assert error["message"] == (
        "Instance 'a' creation failed: Quota 'N2_CPUS' exceeded.  Limit: 8.0 in region us-central1."
    )
    assert error["errorDetails"][0]["quotaInfo"]["limit"] == 8.0


def test_target_size_is_the_number_of_members_that_do_not_leave_whatever_happens() -> None:
    cloud = Cloud(replace(SPEC, capacity=12), timings=replace(EXACT, boot=(10.0, 40.0), delete=(5.0, 20.0)))
    chance = cloud.world.random
    for step in range(200):
        names = list(cloud.mig.members)
        match chance.randrange(4):
            case 0:
                cloud.mig.create([f"n{step}-{number}" for number in range(chance.randrange(1, 6))])
            case 1 if names:
                cloud.delete(*chance.sample(names, min(len(names), 3)))
            case 2:
                cloud.groups.preempt(names[:1])
        cloud.pass_time(chance.random() * 5.0)
        staying = [member for member in cloud.mig.members.values() if member.target == "RUNNING"]
        assert cloud.mig.target_size == len(staying)
        assert set(cloud.shown()) == set(cloud.mig.members)
        assert len([vm for vm in cloud.groups.vms if vm.exists]) <= 12
    assert cloud.mig.target_size > 0
