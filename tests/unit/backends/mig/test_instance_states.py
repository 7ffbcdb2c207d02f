"""Machines from Compute's two lists: decision tables over member and instance entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provisioner.backends.mig.api import INSTANCE_FIELDS, MEMBER_FIELDS
from provisioner.backends.mig.compute_fields import (
    Instance,
    Member,
    count_members,
    is_settled,
    read_instance,
    read_member,
    spec,
)
from provisioner.backends.mig.instance_states import machine
from provisioner.backends.mig.live_check import custom_size
from provisioner.lab.cloud.compute.mask import compile_fields, select
from provisioner.model import ErrorClass, Fingerprint, LossCause, Machine, Notice, Phase

NAME = "hf-abcde01234-000007"
URL = f"http://127.0.0.1:1/compute/v1/projects/p/zones/us-central1-b/instances/{NAME}"
STOCKOUT = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "The zone does not have enough resources."}
BEGAN = 1000.0


def member(**changes: Any) -> dict[str, Any]:
    """Return a member that runs, as in listManagedInstances."""
    entry = {"name": NAME, "instance": URL, "id": "77", "instanceStatus": "RUNNING", "currentAction": "NONE"}
    return {key: value for key, value in (entry | changes).items() if value is not None}


def instance(**changes: Any) -> dict[str, Any]:
    """Return an instance that runs, as in instances.list."""
    entry = {
        "name": NAME,
        "id": "77",
        "status": "RUNNING",
        "creationTimestamp": "2023-09-16T03:42:31.325-07:00",
        "lastStartTimestamp": "2023-09-16T03:42:40.000-07:00",
        "networkInterfaces": [{"networkIP": "10.0.0.7"}],
        "scheduling": {"provisioningModel": "STANDARD"},
    }
    return {key: value for key, value in (entry | changes).items() if value is not None}


SPOT = {"provisioningModel": "SPOT"}
NO_VM: dict[str, Any] = {"id": None, "instanceStatus": None}


def seen(member_entry: dict[str, Any], instance_entry: dict[str, Any] | None, before: Machine | None = None) -> Machine:
    vm = read_instance(instance_entry or {})
    return machine(read_member(member_entry, ""), vm, before, BEGAN)


GROUP_CREATES = member(currentAction="CREATING", **NO_VM)
SPOT_STOPS, SPOT_STOPPED = (instance(status=status, scheduling=SPOT) for status in ("STOPPING", "TERMINATED"))
OLD_SPOT_STOPPED = instance(status="TERMINATED", scheduling={"preemptible": True})
PENDING, STOPPING, GONE = Phase.PENDING, Phase.STOPPING, Phase.GONE
UNKNOWN, PREEMPTED, DELETED = LossCause.UNKNOWN, LossCause.PREEMPTED, LossCause.DELETED

RULES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, Phase, LossCause | None]] = {
    "RUNNING with an IP and no action runs": (member(), instance(), Phase.RUNNING, None),
    "an instance that no list shows yet has no IP: pending": (member(), None, PENDING, None),
    "RUNNING without IP is pending": (member(), instance(networkInterfaces=[{}]), PENDING, None),
    "a health check is still to pass": (member(currentAction="VERIFYING"), instance(), PENDING, None),
    "REFRESHING: an action": (member(currentAction="REFRESHING"), instance(), PENDING, None),
    "no VM yet: the group is creating it": (GROUP_CREATES, None, PENDING, None),
    "the member list is late": (GROUP_CREATES, instance(), PENDING, None),
    "STAGING is pending": (
        member(instanceStatus="STAGING", currentAction="CREATING"), instance(status="STAGING"), PENDING, None,
    ),
    "the instance list is late": (member(), instance(status="STAGING"), PENDING, None),
    "the lists show different incarnations: not running": (member(), instance(id="78"), PENDING, None),
    "DELETING is stopping": (member(currentAction="DELETING"), instance(), STOPPING, DELETED),
    "a Spot instance being deleted was not preempted": (
        member(currentAction="DELETING", instanceStatus="TERMINATED"), SPOT_STOPPED, STOPPING, DELETED,
    ),
    "RECREATING: what comes back is another machine": (member(currentAction="RECREATING"), instance(), GONE, UNKNOWN),
    "a preempted Spot instance under repair": (
        member(currentAction="RECREATING", instanceStatus="STOPPING"), SPOT_STOPS, GONE, PREEMPTED,
    ),
    "RESTARTING ends it": (member(currentAction="RESTARTING"), instance(), STOPPING, UNKNOWN),
    "ABANDONING: it goes on": (member(currentAction="ABANDONING"), instance(), Phase.RUNNING, None),
    "a Spot instance that stops by itself is preempted": (
        member(instanceStatus="STOPPING"), SPOT_STOPS, STOPPING, PREEMPTED,
    ),
    "the rest of an old preemptible instance": (
        member(instanceStatus="TERMINATED"), OLD_SPOT_STOPPED, GONE, PREEMPTED,
    ),
    "a stopped standard instance": (
        member(instanceStatus="TERMINATED"), instance(status="TERMINATED"), GONE, UNKNOWN,
    ),
    "the member list shows the end late": (member(), instance(status="TERMINATED"), GONE, UNKNOWN),
    "the instance list shows the end late": (member(instanceStatus="STOPPED"), instance(), GONE, UNKNOWN),
    "a suspended instance has no use": (member(instanceStatus="SUSPENDED"), None, GONE, UNKNOWN),
    "a graceful stop has begun": (member(instanceStatus="PENDING_STOP"), None, STOPPING, UNKNOWN),
    "no instance, and the group does nothing about it": (member(**NO_VM), None, GONE, DELETED),
    "the instance list shows an instance too long": (member(**NO_VM), instance(), GONE, DELETED),
    "an instance outside the group has the name": (GROUP_CREATES, instance(id="99"), PENDING, None),
    "an unknown action": (member(currentAction="SOME_NEW_ACTION"), instance(), PENDING, None),
    "an unknown status": (member(instanceStatus="SOME_NEW_STATUS"), instance(), PENDING, None),
    "an instance that is deprovisioned stops": (member(), instance(status="DEPROVISIONING"), STOPPING, UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize(("member_entry", "instance_entry", "phase", "cause"), RULES.values(), ids=RULES)
def test_phase_and_cause(
    member_entry: dict[str, Any], instance_entry: dict[str, Any] | None, phase: Phase, cause: LossCause | None
) -> None:
    made = seen(member_entry, instance_entry)
    assert (made.phase, made.cause) == (phase, cause)


def test_a_running_machine_has_all_that_hf_needs() -> None:
    network = {"networkIP": "10.0.0.7", "accessConfigs": [{"natIP": "203.0.113.9"}]}
    made = seen(member(), instance(networkInterfaces=[network]))
    assert made == Machine(
        name=NAME,
        phase=Phase.RUNNING,
        fingerprint=Fingerprint("77", "2023-09-16T03:42:31.325-07:00", "2023-09-16T03:42:40.000-07:00", "10.0.0.7"),
        ip="10.0.0.7",
        public_ip="203.0.113.9",
        launched=1694860951,
    )


def test_the_same_entries_give_the_same_object() -> None:
    first = seen(member(), instance())
    assert seen(member(), instance(), first) is first
    assert seen(member(), instance(status="STOPPING"), first) is not first


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"id": "78"}, id="another id"),
        pytest.param({"creationTimestamp": "2023-09-16T04:00:00.000-07:00"}, id="made again"),
        pytest.param({"lastStartTimestamp": "2023-09-16T04:00:00.000-07:00"}, id="started again"),
        pytest.param({"networkInterfaces": [{"networkIP": "10.0.0.8"}]}, id="another IP"),
    ],
)
def test_a_machine_recreated_under_the_same_name_differs(changes: dict[str, Any]) -> None:
    first = seen(member(), instance())
    again = seen(member(id=changes.get("id", "77")), instance(**changes))
    assert again.phase is Phase.RUNNING
    assert first.fingerprint.differs(again.fingerprint)


def test_booting_is_never_taken_for_a_recreation() -> None:
    """While an instance boots, its id, times and IP appear one after the other. A start may be tried twice, which
    changes the start time, so the start time counts only while the instance runs."""
    creating = member(currentAction="CREATING", **NO_VM)
    starting = member(currentAction="CREATING", instanceStatus="STAGING")
    stages = [
        seen(creating, None),
        seen(creating, instance(status="PROVISIONING", networkInterfaces=None, lastStartTimestamp=None)),
        seen(starting, instance(status="STAGING", lastStartTimestamp="2023-09-16T03:42:35.000-07:00")),
        seen(member(), instance()),
        seen(member(), None),
    ]
    for early, earlier in enumerate(stages):
        for later in stages[early:]:
            assert not earlier.fingerprint.differs(later.fingerprint)


FAILED_ATTEMPT = {"errors": {"errors": [STOCKOUT]}}


@pytest.mark.parametrize(
    ("status", "reported"),
    [(None, True), ("PROVISIONING", True), ("STAGING", True), ("RUNNING", False), ("TERMINATED", False)],
)
def test_the_last_attempt_counts_only_until_the_instance_is_up(status: str | None, reported: bool) -> None:
    made = seen(member(currentAction="CREATING", instanceStatus=status, id=None, lastAttempt=FAILED_ATTEMPT), None)
    assert (made.failure is not None and made.failure.error is ErrorClass.STOCKOUT) is reported


@pytest.mark.parametrize(("action", "hinders"), [("DELETING", True), ("NONE", False), ("ABANDONING", False)])
def test_the_last_attempt_to_delete_a_member_says_why_it_does_not_go(action: str, hinders: bool) -> None:
    made = seen(member(currentAction=action, lastAttempt=FAILED_ATTEMPT), instance())
    assert (made.hindrance is not None and made.hindrance.error is ErrorClass.STOCKOUT) is hinders


def test_the_last_attempt_gives_code_and_words() -> None:
    made = seen(member(currentAction="CREATING", lastAttempt=FAILED_ATTEMPT, **NO_VM), None)
    assert made.failure is not None
    assert made.failure.text == "ZONE_RESOURCE_POOL_EXHAUSTED: The zone does not have enough resources."


@pytest.mark.parametrize(
    "details", [[], [{"help": {}}], [{"quotaInfo": {"limit": 8.0}}], [None, "words"], "words", None]
)
def test_details_of_an_error_change_nothing(details: Any) -> None:
    attempt = {"errors": {"errors": [STOCKOUT | {"errorDetails": details}]}}
    made = seen(member(currentAction="CREATING", lastAttempt=attempt, **NO_VM), None)
    assert made == seen(member(currentAction="CREATING", lastAttempt=FAILED_ATTEMPT, **NO_VM), None)


def test_the_list_of_members_is_asked_for_what_errors_say_and_not_for_their_details() -> None:
    attempt = {"errors": {"errors": [STOCKOUT | {"location": "x", "errorDetails": [{"help": {}}]}]}}
    entry = member(currentAction="CREATING", **NO_VM)
    response = {"managedInstances": [entry | {"version": {}, "lastAttempt": attempt}]}
    shown = select(response, compile_fields(MEMBER_FIELDS))
    assert shown == {"managedInstances": [entry | {"lastAttempt": FAILED_ATTEMPT}]}


@pytest.mark.parametrize(
    ("code", "no_room"),
    [("ZONE_RESOURCE_POOL_EXHAUSTED", True), ("QUOTA_EXCEEDED", True), ("INTERNAL_ERROR", False), (None, False)],
)
def test_a_machine_lacks_room_while_its_zone_or_quota_is_used_up(code: str | None, no_room: bool) -> None:
    attempt = {"errors": {"errors": [{"code": code, "message": "No."}]}} if code else {}
    assert seen(member(currentAction="CREATING", lastAttempt=attempt, **NO_VM), None).spills_at_once is no_room


def test_a_reason_with_a_class_of_its_own_outlives_one_without() -> None:
    def trying(code: str) -> dict[str, Any]:
        attempt = {"errors": {"errors": [{"code": code, "message": "No."}]}}
        return member(currentAction="CREATING", lastAttempt=attempt, **NO_VM)

    first = seen(trying("ZONE_RESOURCE_POOL_EXHAUSTED"), None)
    assert seen(trying("INTERNAL_ERROR"), None, first) is first
    quota = seen(trying("QUOTA_EXCEEDED"), None, first)
    assert quota.failure is not None
    assert quota.failure.error is ErrorClass.QUOTA
    assert seen(member(currentAction="CREATING", **NO_VM), None, first).failure is None, "the next attempt goes on"


@pytest.mark.parametrize(
    ("member_entry", "word"),
    [
        (member(currentAction="SOME_NEW_ACTION"), "SOME_NEW_ACTION"),
        (member(instanceStatus="SOME_NEW_STATUS"), "SOME_NEW_STATUS"),
        (member(instanceStatus="REPAIRING"), "REPAIRING"),
    ],
)
def test_what_is_not_understood_is_said(member_entry: dict[str, Any], word: str) -> None:
    made = seen(member_entry, instance())
    assert made.failure is not None
    assert word in made.failure.text


def test_a_waiting_machine_has_no_failure() -> None:
    assert seen(member(currentAction="CREATING", **NO_VM), None).failure is None


def test_the_notice_of_a_preemption_does_not_move() -> None:
    stopping = (member(instanceStatus="STOPPING"), instance(status="STOPPING", scheduling=SPOT))
    first = seen(*stopping)
    assert first.notice == Notice(LossCause.PREEMPTED, BEGAN + 30.0)
    later = machine(read_member(stopping[0], ""), read_instance(stopping[1]), first, BEGAN + 10.0)
    assert later is first


def test_whatever_stops_gives_notice_until_it_has_stopped() -> None:
    """A notice says that a machine is about to end. An instance that is stopping or being deleted must have a notice,
    because it may hang for a while before it has stopped. A stopped instance must have none."""
    stopped = seen(member(instanceStatus="STOPPING"), instance(status="STOPPING"))
    assert stopped.notice == Notice(LossCause.UNKNOWN, BEGAN + 120.0)
    assert seen(member(currentAction="DELETING"), instance()).notice == Notice(LossCause.DELETED, BEGAN + 120.0)
    assert seen(member(instanceStatus="TERMINATED"), instance(status="TERMINATED", scheduling=SPOT)).notice is None


def test_a_known_cause_stays_when_the_last_entry_says_less() -> None:
    first = seen(member(instanceStatus="STOPPING"), instance(status="STOPPING", scheduling=SPOT))
    assert seen(member(**NO_VM), None, first).cause is LossCause.PREEMPTED
    assert seen(member(**NO_VM), None, None).cause is LossCause.DELETED


def test_reading_a_member() -> None:
    assert read_member(member(), "") == Member(NAME, "77", "us-central1-b", "RUNNING", "NONE", None)


def test_a_member_is_named_by_its_instance_when_it_has_no_name() -> None:
    assert read_member(member(name=None), "").name == NAME


def test_the_address_of_a_member() -> None:
    parsed = read_member(member(), "")
    assert parsed.url == f"zones/us-central1-b/instances/{NAME}"
    assert read_member(member(instance=None), "us-east1-b").url == f"zones/us-east1-b/instances/{NAME}"
    assert replace(parsed, zone="").url == NAME, "a queued member has no address: it is known by name alone"


def test_reading_an_instance_that_shows_almost_nothing() -> None:
    assert read_instance({"name": NAME}) == Instance()
    assert (Instance().is_spot, Instance().grace, Instance().expires) == (False, 30.0, None)


def test_a_group_counts_members_whatever_they_do() -> None:
    assert count_members({"currentActions": {"none": 3, "creating": 2, "someNewAction": 1}}) == 6
    assert count_members({}) == 0


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (
            {"instanceTemplate": "https://x/compute/v1/projects/p/global/instanceTemplates/t1"},
            "p/global/instanceTemplates/t1",
        ),
        (
            {
                "instanceTemplate": "https://x/compute/v1/projects/p/global/instanceTemplates/t1",
                "versions": [
                    {"instanceTemplate": "https://x/compute/v1/projects/p/global/instanceTemplates/t1"},
                    {"instanceTemplate": "https://x/compute/v1/projects/p/global/instanceTemplates/t2"},
                ],
            },
            "p/global/instanceTemplates/t1,p/global/instanceTemplates/t2",
        ),
        ({}, ""),
    ],
)
def test_the_spec_changes_with_the_template(group: dict[str, Any], expected: str) -> None:
    assert spec(group) == expected


@pytest.mark.parametrize(
    ("machine_type", "size"),
    [
        ("custom-4-8192", (4, 8192)),
        ("n2-custom-6-65536-ext", (6, 65536)),
        ("e2-custom-micro-2048", None),
        ("n2-standard-4", None),
    ],
)
def test_a_custom_machine_type_says_how_big_it_is(machine_type: str, size: tuple[int, int] | None) -> None:
    assert custom_size(machine_type) == size


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ({"currentActions": {"none": 3, "creating": 0}, "targetSize": 3}, True),
        ({"currentActions": {"none": 3}, "targetSize": 4}, False),
        ({"currentActions": {"none": 3, "deleting": 1}, "targetSize": 3}, False),
        ({"currentActions": {"none": 2}, "targetSize": 2}, False),
    ],
    ids=["as many as are known", "it wants more", "it still deletes one", "it has fewer than are known"],
)
def test_a_group_is_settled_when_it_has_and_wants_what_is_known(group: dict[str, Any], expected: bool) -> None:
    assert is_settled(group, 3) is expected


@pytest.mark.parametrize("created", ["", "yesterday"])
def test_a_time_that_cannot_be_read_is_none(created: str) -> None:
    assert seen(member(), instance(creationTimestamp=created)).launched == 0


# --- addresses, known ends, and waiting -------------------------------------------------------------------------------

V6 = {"ipv6Address": "fd20::7"}
OUTSIDE = {"ipv6AccessConfigs": [{"externalIpv6": "2600:1900::7"}]}


@pytest.mark.parametrize(
    ("network", "ip", "message"),
    [
        pytest.param({"networkIP": "10.0.0.7", **V6}, "10.0.0.7", "", id="both: the IPv4 one"),
        pytest.param(V6, "fd20::7", "its subnet IPv4", id="an inner IPv6 one alone"),
        pytest.param(OUTSIDE, "2600:1900::7", "its subnet IPv4", id="an outer IPv6 one alone"),
        pytest.param({}, "", "has no address", id="none"),
    ],
)
def test_an_ipv6_address_is_used_where_that_is_all_there_is_and_the_pool_allows_it(
    network: dict[str, Any], ip: str, message: str
) -> None:
    entry = instance(networkInterfaces=[network])
    allowed = machine(read_member(member(), ""), read_instance(entry, ipv6=True), None, BEGAN)
    assert (allowed.ip, allowed.phase is Phase.RUNNING) == (ip, bool(ip))
    usual = seen(member(), entry)
    assert usual.ip == network.get("networkIP", "")
    assert message in (usual.failure.text if usual.failure else "")
    assert (usual.failure is None) is (usual.phase is Phase.RUNNING)
    if usual.failure:
        assert usual.failure.error.needs_operator is bool(ip), "only settings give an instance with IPv6 alone IPv4"


def test_an_instance_that_waits_for_its_health_check_says_so() -> None:
    verifying = seen(member(currentAction="VERIFYING"), instance())
    assert verifying.failure is not None
    assert "health check" in verifying.failure.text


@pytest.mark.parametrize(
    ("entry", "state"),
    [
        pytest.param(member(instanceStatus="STAGING", currentAction="CREATING"), "CREATING/STAGING", id="it boots"),
        pytest.param(GROUP_CREATES, "CREATING", id="there is no instance"),
        pytest.param(member(), "", id="it runs"),
        pytest.param(member(currentAction="DELETING"), "", id="it goes"),
    ],
)
def test_what_compute_does_with_a_machine_that_does_not_run_yet(entry: dict[str, Any], state: str) -> None:
    assert seen(entry, instance() if state == "" else None).state == state


STARTED, ENDS = "2023-09-16T10:00:00Z", 1694862000.0
"""Epoch seconds of the instance's start, and of eleven o'clock."""
TERMINATION = {"terminationTimestamp": "2023-09-16T11:00:00Z"}


@pytest.mark.parametrize(
    ("member_more", "instance_more", "expires"),
    [
        pytest.param({}, {}, None, id="without a limit"),
        pytest.param({}, {"resourceStatus": {"scheduling": TERMINATION}}, ENDS, id="the instance's own status"),
        pytest.param({"scheduling": TERMINATION}, {}, ENDS, id="its managed instance"),
        pytest.param({}, {"scheduling": {"terminationTime": "2023-09-16T11:00:00Z"}}, ENDS, id="a time that was asked"),
        pytest.param({}, {"scheduling": {"maxRunDuration": {"seconds": "3600"}}}, ENDS, id="a longest run"),
        pytest.param(
            {"scheduling": TERMINATION},
            {"scheduling": {"maxRunDuration": {"seconds": "60"}}, "resourceStatus": {"scheduling": TERMINATION}},
            ENDS,
            id="its status knows better than its longest run",
        ),
    ],
)
def test_an_end_that_is_known_beforehand(
    member_more: dict[str, Any], instance_more: dict[str, Any], expires: float | None
) -> None:
    made = seen(member(**member_more), instance(lastStartTimestamp=STARTED, **instance_more))
    assert (made.phase, made.expires_at) == (Phase.RUNNING, expires)


@pytest.mark.parametrize(("notice", "grace"), [({"preemptionNoticeDuration": {"seconds": "120"}}, 120.0), ({}, 30.0)])
def test_the_notice_of_a_preemption_is_the_instances_own(notice: dict[str, Any], grace: float) -> None:
    stopped = seen(member(instanceStatus="STOPPING"), instance(status="STOPPING", scheduling=SPOT | notice))
    assert stopped.notice == Notice(LossCause.PREEMPTED, BEGAN + grace)


def test_the_lists_are_asked_for_all_that_is_read() -> None:
    network = {"networkIP": "10.0.0.7", **V6, **OUTSIDE}
    limits = {"terminationTime": "x", "maxRunDuration": {"seconds": "1"}, "preemptionNoticeDuration": {"seconds": "2"}}
    entry = instance(networkInterfaces=[network], scheduling=SPOT | limits, resourceStatus={"scheduling": TERMINATION})
    assert select({"items": [entry]}, compile_fields(INSTANCE_FIELDS)) == {"items": [entry]}
    managed = {"managedInstances": [member(scheduling=TERMINATION)]}
    assert select(managed, compile_fields(MEMBER_FIELDS)) == managed
