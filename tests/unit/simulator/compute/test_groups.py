"""The model of MIGs: how members and their VMs are created and deleted, and what is refused, without any HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from provisioner.simulator.compute.operations import ApiError
from provisioner.simulator.compute.settings import Duplicate, MigSpec, Switches, Timings
from provisioner.simulator.world import Fault
from tests.support.clouds.mig_cloud import EXACT, SPEC, ZONE, Cloud


def test_an_operation_is_done_when_the_intent_is_accepted_long_before_the_vm_runs() -> None:
    cloud = Cloud()
    operation = cloud.mig.create(["a"])
    assert (operation.done, cloud.mig.target_size, cloud.shown()) == (False, 0, {})
    cloud.pass_time(1.1)
    assert operation.done
    assert cloud.mig.target_size == 1
    member = cloud.shown()["a"]
    assert (member["currentAction"], member["targetStatus"]) == ("CREATING", "RUNNING")
    assert "id" not in member
    assert "instanceStatus" not in member
    assert cloud.vm("a") is None
    assert not cloud.mig.stable


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
    assert cloud.mig.stable
    document = cloud.vm("a")
    assert document is not None
    assert document["networkInterfaces"][0]["networkIP"] == "10.128.0.2"
    assert document["lastStartTimestamp"] > document["creationTimestamp"]


def test_the_ip_is_shown_from_running_on_unless_the_switch_says_earlier() -> None:
    for early in (False, True):
        cloud = Cloud(switches=Switches(ip_before_running=early))
        cloud.mig.create(["a"])
        cloud.pass_time(3.0)
        document = cloud.vm("a")
        assert document is not None
        assert ("networkIP" in document["networkInterfaces"][0]) is early


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
        cloud.delete("a", "stranger", skip=False)
    assert refused.value.status == 400
    cloud.delete("a", "stranger", skip=True)
    cloud.pass_time(10.0)
    assert cloud.phases() == {}


@pytest.mark.parametrize(
    "url",
    [
        "not a url",
        f"zones/{ZONE}/a",
        "projects/p/zones/other-zone-a/instances/a",
        f"projects/q/zones/{ZONE}/instances/a",
    ],
)
def test_a_malformed_or_foreign_url_fails_a_delete_even_if_invalid_ones_are_skipped(url: str) -> None:
    cloud = Cloud()
    with pytest.raises(ApiError) as refused:
        cloud.mig.delete([url], skip_invalid=True)
    assert (refused.value.status, refused.value.reason) == (400, "invalid")


@pytest.mark.parametrize(
    ("names", "reason"),
    [([], "required"), (["UPPER"], "invalid"), (["a", "a"], "invalid"), ([f"n{i}" for i in range(1001)], "invalid")],
    ids=["no name", "a bad name", "the same name twice", "more than 1,000 names"],
)
def test_a_create_is_refused_at_once_for(names: Sequence[str], reason: str) -> None:
    with pytest.raises(ApiError) as refused:
        Cloud().mig.create(names)
    assert (refused.value.status, refused.value.reason) == (400, reason)


def test_a_mig_takes_no_more_than_its_limit() -> None:
    cloud = Cloud(replace(SPEC, size_limit=3))
    cloud.run("a", "b")
    with pytest.raises(ApiError, match="less than or equal to 3"):
        cloud.mig.create(["c", "d"])
    cloud.run("c")
    assert len(cloud.phases()) == 3


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
    failed_at = [2]  # after the operation's and the schedule's second
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


def test_a_stockout_can_let_some_through_first() -> None:
    cloud = Cloud()
    cloud.faults(Fault("stockout", after=3))
    cloud.run(*(f"n{number}" for number in range(5)))
    assert sorted(cloud.phases().values()) == ["pending", "pending", "running", "running", "running"]


def test_capacity_is_a_stockout_that_ends_when_a_vm_goes() -> None:
    cloud = Cloud(replace(SPEC, capacity=1))
    cloud.run("a", "b")
    assert cloud.phases() == {"a": "running", "b": "pending"}
    cloud.delete("a")
    cloud.pass_time(75.0)
    assert cloud.phases() == {"b": "running"}


def test_a_member_that_is_deleted_just_before_a_retry_gets_no_vm() -> None:
    for moment in range(50, 62):
        cloud = Cloud()
        cloud.faults(Fault("stockout"))
        cloud.mig.create(["a"])
        cloud.pass_time(moment)
        cloud.delete("a")
        cloud.faults()
        for _ in range(14):
            cloud.pass_time(1.0)
            assert list(cloud.groups.vms) == [] or moment == 61, (
                "at 61 s the retry comes before the delete takes effect"
            )
        cloud.pass_time(100.0)
        assert (cloud.phases(), list(cloud.groups.vms)) == ({}, [])


def test_a_stocked_out_member_can_be_deleted() -> None:
    cloud = Cloud()
    cloud.faults(Fault("stockout"))
    cloud.run("a")
    cloud.delete("a")
    cloud.pass_time(4.0)
    assert cloud.phases() == {}
    cloud.faults()
    cloud.pass_time(500.0)
    assert cloud.phases() == {}, "the retries ended with the member"


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


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault("ip_exhausted"), "IP_SPACE_EXHAUSTED"),
        (Fault("attempt_error", params={"code": "PERMISSIONS_ERROR"}), "PERMISSIONS_ERROR"),
    ],
    ids=lambda value: getattr(value, "mode", value),
)
def test_other_failed_attempts_have_their_code(fault: Fault, code: str) -> None:
    cloud = Cloud()
    cloud.faults(fault)
    cloud.run("a")
    assert cloud.mig.errors[0]["error"]["code"] == code
    assert cloud.mig.errors[0]["instanceActionDetails"]["action"] == "CREATING"


def test_a_name_that_a_vm_outside_holds_is_never_made() -> None:
    cloud = Cloud()
    cloud.run("a")
    cloud.mig.abandon([cloud.url("a")])
    cloud.pass_time(4.0)
    assert [(entry["name"], entry["pool"]) for entry in cloud.groups.state()] == [("a", "")]
    cloud.mig.create(["a"])
    cloud.pass_time(60.0)
    assert cloud.shown()["a"]["lastAttempt"]["errors"]["errors"][0]["code"] == "RESOURCE_ALREADY_EXISTS"


def test_abandoning_lowers_target_size_and_keeps_the_vm() -> None:
    cloud = Cloud()
    cloud.run("a")
    cloud.mig.abandon([cloud.url("a")])
    cloud.pass_time(4.0)
    assert (cloud.mig.target_size, cloud.shown()) == (0, {})
    assert cloud.vm("a") is not None


@pytest.mark.parametrize("behaviour", list(Duplicate))
def test_a_name_that_the_mig_has_already(behaviour: Duplicate) -> None:
    cloud = Cloud(switches=Switches(duplicate_name=behaviour))
    cloud.run("a")
    if behaviour is Duplicate.HTTP_CONFLICT:
        with pytest.raises(ApiError) as refused:
            cloud.mig.create(["a", "b"])
        assert (refused.value.status, refused.value.reason) == (409, "alreadyExists")
        return
    operation = cloud.mig.create(["a", "b"])
    cloud.pass_time(20.0)
    ignored = behaviour is Duplicate.IGNORE
    assert (operation.error is None) is ignored
    assert sorted(cloud.phases()) == (["a", "b"] if ignored else ["a"])
    assert cloud.mig.target_size == len(cloud.phases())


def test_create_is_refused_by_the_operation_where_updates_are_proactive_with_substitution() -> None:
    cloud = Cloud(replace(SPEC, update_type="PROACTIVE"))
    operation = cloud.mig.create(["a"])
    cloud.pass_time(20.0)
    assert operation.error is not None
    assert (operation.error.code, operation.error.status) == ("CONDITION_NOT_MET", 412)
    assert cloud.phases() == {}


def test_faults_of_operations_apply_nothing_or_never_end() -> None:
    cloud = Cloud()
    cloud.faults(
        Fault("op_error", target="compute.instanceGroupManagers.createInstances", params={"code": "BOOM"}, limit=1)
    )
    failed = cloud.mig.create(["a"])
    cloud.pass_time(20.0)
    assert failed.error is not None
    assert (failed.error.code, cloud.phases()) == ("BOOM", {})
    cloud.faults(Fault("op_stuck"))
    stuck = cloud.mig.create(["b"])
    cloud.pass_time(20.0)
    assert (stuck.done, cloud.phases()) == (False, {"b": "running"})
    cloud.faults(Fault("op_stuck", params={"applied": False}))
    cloud.mig.create(["c"])
    cloud.pass_time(20.0)
    assert cloud.phases() == {"b": "running"}
    cloud.faults(Fault("precondition"))
    cloud.delete("b")
    cloud.pass_time(20.0)
    assert cloud.phases() == {}, "a precondition is about creates only"


def test_deleting_a_member_twice_at_once_counts_once() -> None:
    cloud = Cloud()
    cloud.run("a", "b")
    cloud.delete("a")
    cloud.delete("a")
    cloud.pass_time(10.0)
    assert (cloud.mig.target_size, cloud.phases()) == (1, {"b": "running"})


def test_resize_grows_with_random_names_and_shrinks() -> None:
    cloud = Cloud()
    cloud.mig.resize(3)
    cloud.pass_time(13.0)
    assert len(cloud.phases()) == 3
    assert all(name.startswith("g-") and len(name) == 6 for name in cloud.phases())
    cloud.mig.resize(1)
    cloud.pass_time(10.0)
    assert (len(cloud.phases()), cloud.mig.target_size) == (1, 1)


def test_the_same_request_id_is_one_call_until_it_is_forgotten() -> None:
    cloud = Cloud(switches=Switches(request_id_seconds=100.0))
    first = cloud.mig.create(["a"], "one")
    assert cloud.groups.operations.repeated(SPEC.path, "one") is first
    assert cloud.groups.operations.repeated(SPEC.path, "two") is None
    assert cloud.groups.operations.repeated("another/target", "one") is None
    cloud.pass_time(101.0)
    assert cloud.groups.operations.repeated(SPEC.path, "one") is None


def test_ended_operations_are_forgotten() -> None:
    cloud = Cloud(timings=replace(EXACT, operation_retention=50.0))
    operation = cloud.mig.create(["a"])
    cloud.pass_time(10.0)
    assert cloud.groups.operations.get("p", SPEC.scope, operation.name) is operation
    cloud.pass_time(50.0)
    with pytest.raises(ApiError) as refused:
        cloud.groups.operations.get("p", SPEC.scope, operation.name)
    assert refused.value.status == 404


def test_throughput_is_capped() -> None:
    cloud = Cloud(timings=replace(EXACT, inserts_per_second=2.0))
    cloud.mig.create([f"n{number}" for number in range(20)])
    cloud.pass_time(2.0 + 4.9)
    begun = sum(1 for entry in cloud.groups.state() if entry["created"])
    assert begun == 10


def test_a_regional_mig_spreads_over_its_zones() -> None:
    spec = MigSpec(project="p", region="europe-west1", name="g")
    cloud = Cloud(spec)
    cloud.run("a", "b", "c")
    assert {vm.name: vm.zone for vm in cloud.groups.vms} == {
        "a": "europe-west1-a",
        "b": "europe-west1-b",
        "c": "europe-west1-c",
    }
    cloud.mig.delete(["projects/p/zones/europe-west1-b/instances/b"], skip_invalid=False)
    cloud.pass_time(10.0)
    assert sorted(cloud.phases()) == ["a", "c"]


def test_a_reset_empties_everything_and_nothing_of_the_old_world_comes_later() -> None:
    cloud = Cloud()
    cloud.run("a", "b")
    cloud.groups.preempt(["a"])
    cloud.mig.create(["c"])
    cloud.pass_time(1.5)
    cloud.mig.create(["d"])
    cloud.groups.reset()
    assert cloud.groups.state() == []
    cloud.pass_time(500.0)
    assert (cloud.groups.state(), cloud.mig.target_size, cloud.shown()) == ([], 0, {})
    assert list(cloud.groups.vms) == []


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


@pytest.mark.parametrize(
    ("document", "mistake"),
    [
        ({"bot": 3}, "bot: unknown timing"),
        ({"boot": -1}, "boot: expected seconds ≥ 0, got -1"),
        ({"boot": [1, 2, 3]}, "boot: expected seconds or"),
        ({"notice": "long"}, "notice: expected seconds ≥ 0, got 'long'"),
    ],
)
def test_timings_name_their_mistakes(document: dict[str, Any], mistake: str) -> None:
    with pytest.raises(ValueError, match=mistake):
        Timings.parse(document)


def test_timings_that_are_left_out_are_realistic() -> None:
    timings = Timings.parse({"boot": 4, "delete": [10, 20], "notice": 8})
    assert (timings.boot, timings.delete, timings.notice) == ((4.0, 4.0), (10.0, 20.0), 8.0)
    assert timings.retry_last == Timings().retry_last
