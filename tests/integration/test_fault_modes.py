"""Every fault of the simulated Compute Engine, by name, with the whole provisioner.

The tests check the machines at the end, the answers to HF, and the number of changing calls.

The world's time is virtual. The state files, the cycles, the backend and the API are real. F1 to F24 are the numbers in
the list of faults that a MIG provisioner has to survive. ``tests/simulation/test_event_modes.py`` has a longer test of
F20 (faults of events).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.backends.mig import api
from provisioner.backends.pubsub_events import Worth
from provisioner.lab.cloud.compute.managed_instance_life import PROTECTED
from provisioner.lab.cloud.compute.settings import Duplicate, MigSpec, Switches
from provisioner.lab.cloud.world import Fault
from provisioner.model import Phase, Snapshot
from provisioner.planning.observe.trust import format_distrust
from tests.support.clouds.virtual_site import SPEC, Crash, VirtualSite, dying, limits_of, messages, succeeded

CREATES, DELETES = "createInstances", "deleteInstances"
ZONE = "us-central1-a"
COMPLETE, ERROR = "complete", "complete_with_error"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[VirtualSite]:
    with VirtualSite(tmp_path) as made:
        yield made


def names_of(answer: dict[str, Any], count: int = 3) -> list[str]:
    """Check that a request or return request is complete and that all its machines succeeded. Return their names."""
    names = succeeded(answer)
    assert (answer["status"], len(names)) == (COMPLETE, count), answer
    return names


def results(answer: dict[str, Any]) -> dict[str, str]:
    """Return the result of each machine of an answer."""
    return {machine["name"]: machine["result"] for machine in answer["machines"]}


def stays(site: VirtualSite, answer: dict[str, Any]) -> bool:
    """Return True if the site still gives HF exactly this answer. A law says that a terminal answer never changes."""
    return site.answer(answer["requestId"]) == answer


@dataclass(frozen=True)
class Case:
    """A case in which HF requests three machines while faults are in force."""

    name: str
    faults: tuple[Fault, ...]
    status: str = COMPLETE
    running: int = 3
    words: str = ""
    """Words that the message to HF must contain."""
    creates: Collection[int] = (1,)
    deletes: Collection[int] = (0,)
    """Possible numbers of deletes that reached the cloud a while after the terminal answer."""


def lost(method: str, status: int | None = None) -> Fault:
    return Fault("lost_response", f".*{method}", limit=1, params={"status": status} if status else {})


def refused(status: int) -> Fault:
    return Fault("http_error", f".*{CREATES}", limit=1, params={"status": status})


TOO_OFTEN = {
    "too often, at once": Fault(
        "http_error", f"hf-a/.*{CREATES}", limit=2, params={"status": 403, "reason": "resourceOperationRateExceeded"}
    ),
    "too often, as the operation tells": Fault(
        "op_error", "hf-a", limit=2, params={"status": 403, "code": "RESOURCE_OPERATION_RATE_EXCEEDED"}
    ),
}
"""Faults that Google reports if one resource gets too many operations, here the first group."""

NOT_READY = Fault("http_error", f"hf-a/.*{CREATES}", limit=1, params={"status": 400, "reason": "resourceNotReady"})


FALSE_START = Fault("false_start", params={"seconds": 10})
"""Each attempt makes another VM, and observations see some of these VMs."""

STOCK = "ZONE_RESOURCE_POOL_EXHAUSTED"
BLIND = "could not be seen"

REPEATED = range(1, 4)
"""Possible numbers of calls if one call is repeated: first for one machine as a trial, then for the machines that are
still missing."""

BACKED_OFF = range(3, 16)
"""Possible numbers of calls in ten minutes of a back-off that begins with 5 s and doubles, with one machine in each
call."""

CASES = [
    Case("F1 a stock-out that does not end", (Fault("stockout"),), ERROR, 0, STOCK, (2,), (2,)),
    Case("F1 a stock-out that ends", (Fault("stockout", limit=3, params={"code": "INSUFFICIENT_CAPACITY"}),)),
    Case("F1 a stock-out whose attempts show a VM", (FALSE_START,), ERROR, 0, STOCK, (2,), (2,)),
    Case("F2 a quota", (Fault("quota"),), ERROR, 0, "Quota 'N2_CPUS' exceeded", (2,), (2,)),
    Case("F3 an attempt that fails once", (Fault("attempt_error", limit=1),)),
    Case("F4 two calls over the rate", (Fault("throttled", f".*{CREATES}", limit=2),), creates=REPEATED),
    Case("F4 operations too often", (TOO_OFTEN["too often, as the operation tells"],), creates=REPEATED),
    Case("F4 ten calls a minute", (Fault("throttled", params={"per_minute": 10}),)),
    Case("F5 503 before it was applied", (refused(503),), creates=REPEATED),
    Case("F5 a resource that is not ready", (NOT_READY,), creates=REPEATED),
    Case("F5 503 after it was applied", (lost(CREATES, 503),)),
    Case("F5 an answer that is lost", (lost(CREATES),)),
    Case("F5 a service that is away", (Fault("unavailable", end=100),)),
    Case("F6 a connection that is reset", (Fault("reset", f".*{CREATES}", limit=1),), creates=REPEATED),
    Case(
        "F6 a call that comes to nothing for the caller, and is applied",
        (Fault("hang", f".*{CREATES}", limit=1, params={"seconds": 30}),),
        creates=REPEATED,
    ),
    Case("F6 observations that hang", (Fault("hang", limit=5, params={"seconds": 30}),)),
    Case("F7 an operation that is stuck and applied", (Fault("op_stuck", limit=1),)),
    Case("F7 an operation that is stuck", (Fault("op_stuck", limit=1, params={"applied": False}),), creates=REPEATED),
    Case("F7 an operation that fails", (Fault("op_error", limit=1),), creates=REPEATED),
    Case("F7 an unknown operation", (Fault("op_gone"),)),
    Case("F8 no permission", (Fault("denied", f".*{CREATES}"),), ERROR, 0, "forbidden", BACKED_OFF),
    Case("F10 a VM stuck PROVISIONING", (Fault("stuck_provisioning", limit=1),), creates=(2,), deletes=(1,)),
    Case("F14 both lists late", (Fault("list_lag", params={"seconds": 29}),)),
    Case("F14 pages that are empty and lead on", (Fault("empty_page", limit=2),)),
    Case("F15 a list that lacks a part for a while", (Fault("partial_list", end=300),)),
    Case("F16 a MIG that is not there for a minute", (Fault("mig_gone", end=60),)),
    Case("F16 a MIG that is not there", (Fault("mig_gone"),), ERROR, 0, BLIND, (0,)),
    Case(
        "F17 a MIG that takes two",
        (Fault("size_limit", params={"limit": 2}),),
        ERROR,
        2,
        "less than or equal to 2",
        BACKED_OFF,
    ),
    Case("F18 an address that comes late", (Fault("no_ip", params={"seconds": 30}),)),
    Case(
        "F18 an address that does not come",
        (Fault("no_ip", limit=1, params={"seconds": 9e9}),),
        creates=(2,),
        deletes=(1,),
    ),
    Case("F21 a clock an hour ahead", (Fault("clock_skew"),)),
    Case("F23 unknown words, for a minute", (Fault("unknown_words", end=60),)),
    Case("F23 unknown words", (Fault("unknown_words"),), ERROR, 0, "SOME_NEW_STATUS", (2,), (2,)),
    Case("F24 a MIG whose members come in pages", (Fault("paginated"),)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_request_of_three(site: VirtualSite, case: Case) -> None:
    site.faults(*case.faults)
    answer = site.asked(3)
    site.run(120)
    outcome = (
        answer["status"],
        len(succeeded(answer)),
        case.words if case.words in messages(answer) else messages(answer),
    )
    assert outcome == (case.status, case.running, case.words)
    assert site.phases() == dict.fromkeys(succeeded(answer), "running")
    calls = site.mutations()
    assert calls.keys() <= {CREATES, DELETES}
    assert calls.get(CREATES, 0) in case.creates
    assert calls.get(DELETES, 0) in case.deletes


# --- F4: the budget ---------------------------------------------------------------------------------------------------


def test_f4_what_is_over_the_rate_waits_and_nothing_is_taken_for_gone(site: VirtualSite) -> None:
    answer = site.asked(3)
    site.faults(Fault("throttled"))
    site.run(300)
    assert not site.in_sight()
    assert stays(site, answer)
    assert site.phases() == dict.fromkeys(names_of(answer), "running")
    assert (site.lost(), site.mutations()) == ({}, {CREATES: 1})


LATER = {**TOO_OFTEN, "not ready": NOT_READY}


@pytest.mark.parametrize("fault", LATER.values(), ids=LATER)
def test_f4_what_a_group_takes_a_little_later_is_not_asked_of_another(tmp_path: Path, fault: Fault) -> None:
    with VirtualSite(tmp_path, SPEC, replace(SPEC, name="hf-b", zone="us-central1-b")) as site:
        site.faults(fault)
        names = names_of(site.asked(3))
        assert [name[-6:] for name in names] == ["000000", "000001", "000002"], "no slot was given up"
        assert {machine["pool"] for machine in site.cloud.state()["machines"]} == {"hf-a"}


# --- F9: names that are taken -----------------------------------------------------------------------------------------


def test_f9_a_name_of_a_vm_outside_is_given_up_and_the_vm_left_alone(site: VirtualSite) -> None:
    site.faults(Fault("name_taken", ".*-000000"))
    answer = site.asked(3)
    site.run(400)
    names = names_of(answer)
    assert [name[-6:] for name in names] == ["000001", "000002", "000003"]
    taken = names[0][:-6] + "000000"
    assert site.phases() == dict.fromkeys([*names, taken], "running")
    assert site.mutations() == {CREATES: 2, DELETES: 1}


@pytest.mark.parametrize("duplicate", Duplicate)
def test_f9_a_name_that_the_mig_has_is_not_made_twice(tmp_path: Path, duplicate: Duplicate) -> None:
    """Expect one machine, although the call that creates it is repeated. Google applies the first call, but the process
    ends before the response. By the time of the second call, Google has forgotten the request id that both calls
    have."""
    switches = Switches(duplicate_name=duplicate, request_id_seconds=0.0)
    with VirtualSite(tmp_path, switches=switches) as site:
        id_ = site.request(3)
        with dying(site.backends["hf-a"], "create", applied=True), pytest.raises(Crash):
            site.cycle()
        # The lists are late, so that the loop asks again for what is there.
        site.faults(Fault("list_lag", end=20.0, params={"seconds": 100}))
        site.restart()
        site.until(lambda: site.ended(id_))
        site.run(120)
        assert site.phases() == dict.fromkeys(names_of(site.answer(id_)), "running")
        assert site.mutations() == {CREATES: 2}, "it did ask again"


# --- F10: what does not go --------------------------------------------------------------------------------------------


def test_f10_a_vm_that_does_not_stop_is_reported_as_stuck_and_deleted_further(site: VirtualSite) -> None:
    names = names_of(site.asked(3))
    site.faults(Fault("stuck_stopping", names[0]))
    back = site.return_machines(names)
    site.until(lambda: site.ended(back))
    assert site.answer(back)["status"] == ERROR
    assert results(site.answer(back)) == dict.fromkeys(names, "succeed") | {names[0]: "fail"}
    assert site.phases() == {names[0]: "stopping"}
    assert site.mutations() == {CREATES: 1, DELETES: 1}, "what the group deletes already is not asked for again"


def test_f10_a_vm_that_is_protected_against_deletion_is_reported_as_stuck_in_googles_words(site: VirtualSite) -> None:
    names = names_of(site.asked(3))
    site.faults(Fault("protected", names[0]))
    back = site.return_machines(names)
    site.until(lambda: site.ended(back))
    answer = site.answer(back)
    assert (answer["status"], site.phases()) == (ERROR, {names[0]: "running"})
    assert PROTECTED["message"] in answer["message"]
    assert [PROTECTED["message"] in machine["message"] for machine in answer["machines"]] == [True, False, False]
    assert site.reconciler.memory is not None
    (slot,) = [slot for _, slot in site.reconciler.memory.slots if not slot.deletion.is_gone]
    assert slot.deletion.is_stuck
    site.faults()
    site.until(lambda: not site.phases())
    assert stays(site, answer)
    assert site.mutations() == {CREATES: 1, DELETES: 1}, "what the group deletes already is not asked for again"


def test_f10_a_vm_that_others_delete_and_that_does_not_stop_is_reported(site: VirtualSite) -> None:
    site.faults(Fault("deleted", limit=1, params={"seconds": 60}), Fault("stuck_stopping"))
    names = names_of(site.asked(3))
    site.run(300)
    (stopping,) = [name for name in names if site.phases()[name] == "stopping"]
    assert site.lost() == {stopping: 0}


# --- F11 to F13, F16, F19: machines that end --------------------------------------------------------------------------


def test_f11_f12_a_storm_of_preemptions(site: VirtualSite) -> None:
    site.faults(Fault("preemption", rate=0.2, params={"seconds": 60}), Fault("repairs"))
    answer = site.asked(50)
    names = set(names_of(answer, 50))
    site.until(lambda: "stopping" in site.phases().values())
    struck = {name for name, phase in site.phases().items() if phase == "stopping"}
    assert 5 <= len(struck) <= 15
    site.run(20)
    assert site.lost().keys() == struck
    assert all(0 < seconds <= 30 for seconds in site.lost().values()), "they have still a while to go"
    site.run(400)
    assert site.lost() == dict.fromkeys(struck, 0)
    assert site.phases() == dict.fromkeys(names - struck, "running"), (
        "their leftovers are deleted, and nothing comes back"
    )
    assert stays(site, answer)
    assert site.mutations() == {CREATES: 1, DELETES: 1}
    assert site.cloud.groups.mig("p", f"zones/{ZONE}", "hf-a").target_size == 50 - len(struck)


def test_f12_a_repair_without_stock_is_ended_by_a_delete(site: VirtualSite) -> None:
    site.faults(Fault("preemption", limit=1, params={"seconds": 300}), Fault("repairs"), Fault("stockout", start=200))
    answer = site.asked(3)
    site.run(600)
    assert stays(site, answer)
    assert len(site.lost()) == 1
    assert site.phases() == dict.fromkeys(set(names_of(answer)) - site.lost().keys(), "running")
    assert site.mutations() == {CREATES: 1, DELETES: 1}


@pytest.mark.parametrize(
    "mode",
    ["deleted", "recreated"],
)
def test_f13_f19_what_others_do_to_a_machine_is_a_loss(site: VirtualSite, mode: str) -> None:
    site.faults(Fault(mode, limit=1, params={"seconds": 60}))
    answer = site.asked(3)
    site.run(400)
    assert stays(site, answer)
    (lost,) = site.lost()
    assert site.phases() == dict.fromkeys(set(names_of(answer)) - {lost}, "running")
    assert site.mutations() == {CREATES: 1, DELETES: 1}


def test_f13_a_machine_that_was_taken_out_of_its_group_goes_on_and_its_return_says_so(site: VirtualSite) -> None:
    site.faults(Fault("abandoned", limit=1, params={"seconds": 60}))
    answer = site.asked(3)
    site.run(400)
    names = names_of(answer)
    assert stays(site, answer)
    assert (site.lost(), site.phases()) == ({}, dict.fromkeys(names, "running"))
    back = site.return_machines(names)
    site.until(lambda: site.ended(back))
    assert site.answer(back)["status"] == ERROR
    [left] = site.phases()
    messages_by_name = {one["name"]: one["message"] for one in site.answer(back)["machines"]}
    assert [name for name, text in messages_by_name.items() if text] == [left]


def made_again(site: VirtualSite, name: str, how: str) -> None:
    """Replace the machine between two observations. Both observations show a running machine with this name."""
    group, url = site.cloud.groups.mig("p", f"zones/{ZONE}", "hf-a"), f"zones/{ZONE}/instances/{name}"
    if how == "by the group":
        group.recreate([url])
    else:
        group.delete([url], skip_invalid=False)
        site.unseen(20)
        group.create([name])
    site.unseen(40)
    assert site.phases()[name] == "running"


@pytest.mark.parametrize(
    ("how", "keeps_id"),
    [("by the group", True), ("by the group", False), ("by hand", False)],
    ids=["with its id", "with another id", "by hand"],
)
def test_f19_a_machine_made_again_between_two_observations_is_lost(tmp_path: Path, how: str, keeps_id: bool) -> None:
    with VirtualSite(tmp_path, switches=Switches(recreate_keeps_id=keeps_id)) as site:
        answer = site.asked(3)
        names = names_of(answer)
        made_again(site, names[0], how)
        site.cycle()
        assert site.lost() == {names[0]: 0}
        site.run(120)
        assert stays(site, answer)
        assert site.phases() == dict.fromkeys(names[1:], "running"), "HF knows another one by this name"
        assert site.mutations() == {CREATES: 1, DELETES: 1}


def test_f19_what_a_late_list_says_of_the_machine_before_is_not_said_of_the_next(site: VirtualSite) -> None:
    answer = site.asked(1)
    (name,) = names_of(answer, 1)
    site.unseen(60)
    made_again(site, name, "by hand")
    site.faults(Fault("list_lag", ".*instances.list", params={"seconds": 80}))
    observation = site.observe("hf-a")
    assert isinstance(observation, Snapshot)
    machine = observation.machines[name]
    assert (machine.phase, machine.ip, machine.launched) == (Phase.PENDING, "", 0)
    site.run(300)
    assert stays(site, answer)
    assert (site.phases(), site.lost()) == ({}, {name: 0})
    assert site.mutations() == {CREATES: 1, DELETES: 1}


@pytest.mark.parametrize("mode", ["preemption", "abandoned"])
def test_f13_f19_a_machine_that_ends_before_the_request_does_is_replaced(site: VirtualSite, mode: str) -> None:
    site.faults(Fault(mode, ".*-000000", params={"seconds": 5}), Fault("no_ip", ".*-000001", params={"seconds": 100}))
    answer = site.asked(3)
    site.run(300)
    names = names_of(answer)
    assert [name[-6:] for name in names] == ["000001", "000002", "000003"]
    others = {names[0][:-6] + "000000"} if mode == "abandoned" else set()
    assert site.phases() == dict.fromkeys({*names} | others, "running")
    assert site.mutations() == {CREATES: 2} | ({} if others else {DELETES: 1})
    assert site.lost() == {}


@pytest.mark.slow
def test_f13_vms_of_others_whose_names_have_our_shape_are_left_alone(site: VirtualSite) -> None:
    strange = "hf-abcdefghij-000001"
    site.cloud.groups.vms.insert(SPEC, ZONE, strange)
    names = names_of(site.asked(3))
    back = site.return_machines([strange, *names])
    site.until(lambda: site.ended(back))
    expected = {strange: "fail"} | dict.fromkeys(names, "succeed")
    assert (site.answer(back)["status"], results(site.answer(back))) == (ERROR, expected), "it runs on, in no group"
    site.run(400)
    assert site.phases() == {strange: "running"}
    assert site.mutations() == {CREATES: 1, DELETES: 1}


def test_f16_members_that_others_resize_away_are_lost_and_nothing_is_made_in_their_place(site: VirtualSite) -> None:
    answer = site.asked(3)
    site.faults(Fault("resized", limit=1, params={"size": 1}))
    site.run(300)
    assert stays(site, answer)
    assert len(site.lost()) == 2
    assert site.phases() == dict.fromkeys(set(names_of(answer)) - site.lost().keys(), "running")
    assert site.mutations() == {CREATES: 1}


@pytest.mark.slow
def test_f16_members_that_others_resize_in_are_not_ours(site: VirtualSite) -> None:
    answer = site.asked(3)
    site.faults(Fault("resized", limit=1, params={"size": 5}))
    site.run(400)
    assert stays(site, answer)
    names = names_of(answer)
    strange = set(site.phases()) - set(names)
    assert site.phases() == dict.fromkeys([*names, *strange], "running")
    assert (len(strange), site.lost()) == (2, {})
    back = site.return_machines(names)
    site.until(lambda: site.ended(back))
    assert results(site.answer(back)) == dict.fromkeys(names, "succeed")
    assert site.phases() == dict.fromkeys(strange, "running")
    assert site.mutations() == {CREATES: 1, DELETES: 1}


def test_f18_an_address_that_another_machine_had_is_no_trace_of_it(site: VirtualSite) -> None:
    first = site.asked(1)
    back = site.return_machines(names_of(first, 1))
    site.until(lambda: site.ended(back))
    second = site.asked(1)
    site.run(300)
    addresses = [answer["machines"][0]["privateIpAddress"] for answer in (first, second)]
    assert addresses[0] == addresses[1]
    assert stays(site, second)
    assert site.phases() == dict.fromkeys(names_of(second, 1), "running")
    assert (site.lost(), site.mutations()) == ({}, {CREATES: 2, DELETES: 1})


# --- F14 to F16: what cannot be seen ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault("moved_page", ".*instances.list", limit=1), id="an instance missed between two pages"),
        pytest.param(
            Fault("moved_page", ".*listManagedInstances", limit=3), id="a member missed in observations 20 s apart"
        ),
        pytest.param(Fault("moved_page", params={"items": -1}), id="the same one on two pages"),
        pytest.param(Fault("token_expired", end=300), id="tokens that expire"),
    ],
)
def test_f14_pages_that_do_not_fit_together_lose_no_machine(
    site: VirtualSite, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "PAGE", 2)
    site.faults(Fault("paginated"))
    answer = site.asked(5)
    site.faults(Fault("paginated"), fault)
    site.run(300)
    site.faults(Fault("paginated"))
    site.run(60)
    assert site.in_sight()
    assert stays(site, answer)
    assert site.phases() == dict.fromkeys(names_of(answer, 5), "running")
    assert (site.lost(), site.mutations()) == ({}, {CREATES: 1})


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault("partial_list"), id="F15 a list lacks a part"),
        pytest.param(Fault("mig_gone"), id="F16 the MIG is not there"),
        pytest.param(Fault("unavailable"), id="F5 the service is away"),
        pytest.param(Fault("reset"), id="F6 no connection"),
    ],
)
def test_an_incomplete_observation_causes_no_action(site: VirtualSite, fault: Fault) -> None:
    names = names_of(site.asked(3))
    site.faults(fault)
    back = site.return_machines(names[:1])
    site.run(400)
    assert not site.in_sight()
    assert not site.ended(back)
    assert site.phases() == dict.fromkeys(names, "running")
    assert (site.lost(), site.mutations()) == ({}, {CREATES: 1})
    site.faults()
    site.until(lambda: site.ended(back))
    assert names_of(site.answer(back), 1) == names[:1]
    assert site.phases() == dict.fromkeys(names[1:], "running")
    assert (site.lost(), site.mutations()) == ({}, {CREATES: 1, DELETES: 1})


@pytest.mark.parametrize("deleted", [True, False], ids=["it was deleted", "its name in the configuration is wrong"])
def test_f16_a_mig_that_is_missing_at_a_start_loses_no_machine_until_it_exists(
    site: VirtualSite, deleted: bool
) -> None:
    """The restarted loop has never seen the machines. So it cannot know if they are gone, or if the configuration names
    the wrong group."""
    names = names_of(site.asked(3))
    if deleted:
        site.cloud.groups.reset()
    site.faults(Fault("mig_gone"))
    site.restart()
    answer = site.asked(1)
    assert (answer["status"], BLIND in messages(answer)) == (ERROR, True)
    assert not site.in_sight()
    assert (site.lost(), site.mutations()) == ({}, {CREATES: 1})
    site.faults()
    site.run(60)
    assert site.lost().keys() == (set(names) if deleted else set())
    assert site.phases() == ({} if deleted else dict.fromkeys(names, "running"))


def test_f16_a_pool_that_is_given_another_mig_loses_no_machine(tmp_path: Path) -> None:
    """Let the pool name another MIG that exists. The new MIG's list is complete, but lacks the machines of the old
    MIG."""
    with VirtualSite(tmp_path, SPEC, replace(SPEC, name="hf-b"), limits=limits_of(["hf-a"])) as site:
        names = names_of(site.asked(3))
        more = site.request(1)
        site.groups["hf-a"] = "hf-b"
        site.restart()
        plan = site.reconciler.preview({"hf-a": site.observe("hf-a")})
        assert plan is not None
        assert plan.creates == ()
        site.run(120)
        words = "pools.hf-a is now group hf-b in us-central1-a of project p, but has machines in group hf-a in"
        for distrusted in (plan.distrusted, site.reports[-1].distrusted):
            assert words in format_distrust("hf-a", distrusted["hf-a"], 0)
        assert (site.lost(), site.mutations()) == ({}, {CREATES: 1})
        site.groups["hf-a"] = "hf-a"
        site.restart()
        site.until(lambda: site.ended(more))
        names += names_of(site.answer(more), 1)
        back = site.return_machines(names)
        site.until(lambda: site.ended(back))
        assert names_of(site.answer(back), 4) == sorted(names)
        assert site.phases() == {}
        site.groups["hf-a"] = "hf-b"
        site.restart()
        again = names_of(site.asked(2), 2)
        machines = site.cloud.state()["machines"]
        assert {machine["name"]: machine["pool"] for machine in machines} == dict.fromkeys(again, "hf-b"), (
            "an empty pool may move"
        )
        assert site.mutations() == {CREATES: 3, DELETES: 1}


def test_f14_a_lost_memory_is_not_made_again_from_a_list_that_lacks_what_runs(site: VirtualSite) -> None:
    """If the loop rebuilt memory from an incomplete list, it would report the machines that the list lacks as lost, and
    delete them later."""
    answer = site.asked(3)
    (Path(site.hf.path) / "memory.json").unlink()
    site.restart()
    site.faults(Fault("list_lag", ".*listManagedInstances", end=site.now() + 60, params={"seconds": 100}))
    site.run(50)
    assert not site.in_sight()
    site.run(400)
    assert stays(site, answer)
    assert site.phases() == dict.fromkeys(names_of(answer), "running")
    assert (site.lost(), site.mutations()) == ({}, {CREATES: 1})


# --- F20: events ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "events", "notices", "creates"),
    [
        pytest.param(None, 13, 1, 1, id="all of them"),
        pytest.param(Fault("event_unfinished"), 7, 1, 1, id="the first without the last"),
        pytest.param(refused(503), 16, 1, 3, id="of a call that was refused, without an operation"),
    ],
)
def test_f20_whatever_becomes_of_events_the_same_is_done(
    site: VirtualSite, fault: Fault | None, events: int, notices: int, creates: int
) -> None:
    worths = site.listen()
    preemption = Fault("preemption", ".*-000001", params={"seconds": 60})
    site.faults(preemption, *([fault] if fault else []))
    answer = site.asked(3)
    site.run(400)
    (lost,) = site.lost()
    assert lost.endswith("-000001")
    assert stays(site, answer)
    assert site.phases() == dict.fromkeys(set(names_of(answer)) - {lost}, "running")
    assert site.mutations() == {CREATES: creates, DELETES: 1}
    assert (worths.total(), worths[Worth.NOTICE]) == (events, notices)


# --- F22: the process ends anywhere -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "applied", "creates"),
    [
        pytest.param(None, True, 1, id="after the call was applied"),
        pytest.param(None, False, 1, id="before the call"),
        pytest.param(lost(CREATES), False, 1, id="before a call whose answer is lost"),
        pytest.param(refused(503), True, 2, id="after the call was refused"),
        pytest.param(refused(503), False, 3, id="before a call that is refused: then one machine probes"),
    ],
)
def test_f22_a_process_that_ends_around_a_create_makes_nothing_twice(
    site: VirtualSite, fault: Fault | None, applied: bool, creates: int
) -> None:
    site.faults(*([fault] if fault else []))
    id_ = site.request(3)
    with dying(site.backends["hf-a"], "create", applied=applied), pytest.raises(Crash):
        site.cycle()
    site.restart()
    site.until(lambda: site.ended(id_))
    site.run(120)
    names = names_of(site.answer(id_))
    assert site.phases() == dict.fromkeys(names, "running")
    assert [name[-6:] for name in names] == ["000000", "000001", "000002"], "no slot was opened in vain"
    assert site.mutations() == {CREATES: creates}


@pytest.mark.parametrize("applied", [True, False], ids=["after the call was applied", "before the call"])
def test_f22_a_process_that_ends_around_a_delete_deletes_what_was_meant(site: VirtualSite, applied: bool) -> None:
    names = names_of(site.asked(3))
    back = site.return_machines(names[:2])
    with dying(site.backends["hf-a"], "delete", applied=applied), pytest.raises(Crash):
        site.cycle()
    site.restart()
    site.until(lambda: site.ended(back))
    assert names_of(site.answer(back), 2) == names[:2]
    assert site.phases() == {names[2]: "running"}
    assert site.mutations() == {CREATES: 1, DELETES: 1}


def test_every_fault_of_the_list_is_here() -> None:
    words = " ".join([*(case.name for case in CASES), *globals()]).replace("_", " ")
    assert {int(number) for number in re.findall(r"\b[fF](\d+)\b", words)} == set(range(1, 25))


# --- undocumented behaviours ------------------------------------------------------------------------------------------


def test_the_main_job_with_undocumented_behaviours_flipped(tmp_path: Path, switches: Switches) -> None:
    """Play a crash with late lists, a stock-out, and a return of machines that are still being made. Lose machines in
    every way."""
    with VirtualSite(tmp_path, replace(SPEC, termination_action="DELETE")) as site:
        id_ = site.request(6)
        with dying(site.backends["hf-a"], "create", applied=True), pytest.raises(Crash):
            site.cycle()
        site.faults(Fault("list_lag", end=20.0, params={"seconds": 100}), Fault("stockout", ".*-00000[01]"))
        site.restart()
        site.until(lambda: site.ended(id_))
        names = succeeded(site.answer(id_))
        assert [name[-1] for name in names] == list("234567"), "two were given up and replaced"
        site.faults(*(Fault(mode, limit=1, params={"seconds": 30}) for mode in ("deleted", "stopped", "recreated")))
        site.cloud.preempt(names[:1])
        second = site.request(3)
        site.until(lambda: site.ended(second))
        site.run(300)
        left = site.return_machines([names[1]])
        third = site.request(2)
        site.run(10)  # they are being made
        early = site.return_machines([machine["name"] for machine in site.answer(third)["machines"]])
        site.until(lambda: all(site.ended(one) for one in (left, early, third)))
        site.run(300)
        lost = site.lost().keys()
        assert names[0] in lost
        kept = (set(names) | set(succeeded(site.answer(second)))) - lost - {names[1]}
        assert site.phases() == dict.fromkeys(kept, "running")
        names_of(site.answer(second))
        group = site.cloud.groups.mig("p", f"zones/{ZONE}", "hf-a")
        assert group.target_size == len(kept) == len(group.members)
        # For six, twice what was given up, for three, what was given back while it was made, and what was lost of all.
        deletes = 5 if switches.dead_member_stays else 4
        assert site.mutations() == {CREATES: 6, DELETES: deletes}


# --- what Google's own defaults do ------------------------------------------------------------------------------------


def test_a_group_that_evens_out_its_zones_takes_machines_from_hf_and_none_is_leaked(tmp_path: Path) -> None:
    with VirtualSite(tmp_path, MigSpec(project="p", name="hf-a", region="us-central1")) as site:
        id_ = site.request(9)
        site.until(lambda: site.ended(id_))
        names = names_of(site.answer(id_), 9)
        group = site.cloud.groups.mig("p", "regions/us-central1", "hf-a")
        of_one_zone = [name for name in names if group.members[name].zone == "us-central1-a"]
        back = site.return_machines(of_one_zone)
        site.until(lambda: site.ended(back))
        site.run(900)
        lost = site.lost().keys()
        assert len(lost) == 2, "of 0, 3 and 3 it has made 2, 2 and 2"
        kept = set(names) - set(of_one_zone) - lost
        assert {name for name, phase in site.phases().items() if phase == "running"} >= kept
        assert not site.phases().keys() & lost
        assert stays(site, site.answer(id_))


# --- what only an operator can change ---------------------------------------------------------------------------------


def test_an_instance_whose_network_has_ipv6_alone_fails_with_that_word(site: VirtualSite) -> None:
    site.faults(Fault("no_address"))
    answer = site.asked(2)
    assert answer["status"] == ERROR
    assert "has only an IPv6 address: set the pool's ipv6" in answer["message"]


def test_an_instance_that_stays_in_a_state_fails_with_its_name(site: VirtualSite) -> None:
    site.faults(Fault("stuck_provisioning", params={"status": "STAGING"}))
    answer = site.asked(1)
    assert "STAGING" in messages(answer)


DENIALS = {
    "SERVICE_ACCOUNT_ACCESS_DENIED": "The user does not have access to service account 'grid@p'",
    "VM_EXTERNAL_IP_ACCESS_POLICY_CONSTRAINT": "Constraint constraints/compute.vmExternalIpAccess violated",
    "BILLING_NOT_ENABLED": "billing disabled",
    "POLICY_VIOLATION": "Constraint constraints/compute.requireShieldedVm violated",
}


@pytest.mark.parametrize("code", DENIALS)
def test_an_attempt_that_only_an_operator_can_help_ends_at_once_and_is_no_lack_of_capacity(
    site: VirtualSite, code: str
) -> None:
    site.faults(Fault("attempt_error", params={"code": code, "message": DENIALS[code]}))
    began_at = site.now()
    answer = site.asked(2)
    assert (answer["status"], site.now() - began_at < 200) == (ERROR, True)
    assert "denied: " in answer["message"]
    assert "Error Code" not in answer["message"]
