"""The MIG backend against the simulated Compute API over HTTP, whose answers are checked against Google's schema."""

from __future__ import annotations

import logging
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.backends import BackendError
from provisioner.backends.compute_reads import USUAL_TIMES, ComputeTimes
from provisioner.backends.mig import MigBackend
from provisioner.model import (
    Create,
    Delete,
    DeleteReason,
    ErrorClass,
    LossCause,
    Machine,
    Outcome,
    Phase,
    Snapshot,
    machine_name,
)
from provisioner.settings import MigPool
from provisioner.simulator.compute_settings import Duplicate, MigSpec, Switches
from provisioner.simulator.world import Fault
from tests.compute_cloud import QUICK, ComputeCloud
from tests.waiting import until

PROJECT = "demo-project"
ZONAL = MigSpec(project=PROJECT, name="hf-a", zone="us-central1-a", size_limit=3000)
REGIONAL = MigSpec(project=PROJECT, name="hf-r", region="us-central1", size_limit=3000)
TIMINGS = replace(QUICK, notice=3.0)
REQUEST = "abcde01234"
CREATES = "createInstances"
DELETES = "deleteInstances"


def pool(endpoint: str, spec: MigSpec = ZONAL, **more: Any) -> MigPool:
    place = {"zone": spec.zone} if spec.zone else {"region": spec.region}
    return MigPool(name="m", project=spec.project, group=spec.name, endpoint=endpoint, **place, **more)


class Bench:
    """A backend on a simulated group, with loop time that a test moves."""

    def __init__(self, spec: MigSpec, **cloud: Any) -> None:
        self.spec = spec
        self.cloud = ComputeCloud([spec], speed=2.0, timings=TIMINGS, **cloud)
        self.now = 1000.0
        self.backends: list[MigBackend] = []

    def __enter__(self) -> Bench:
        self.cloud.__enter__()
        self.backend = self.restarted()
        return self

    def __exit__(self, *error: Any) -> None:
        for backend in self.backends:
            backend.close()
        self.cloud.__exit__(*error)

    def restarted(self, times: ComputeTimes = USUAL_TIMES, **more: Any) -> MigBackend:
        """A backend that knows nothing: the loop was restarted."""
        self.backend = MigBackend(pool(self.cloud.url, self.spec), prefix="hf", times=times, **more)
        self.backends.append(self.backend)
        return self.backend

    def look(self, strangers: Sequence[str] = ()) -> Snapshot:
        self.now += 10.0
        return self.backend.observe(self.now, strangers)

    def machine(self, name: str) -> Machine | None:
        return self.look().machines.get(name)

    def create(self, *numbers: int, template: str = "t") -> list[Outcome]:
        return self.backend.create(creates(*numbers, template=template), lambda: True)

    def delete(self, *machines: Machine) -> list[Outcome]:
        deletes = [Delete(one.name, "m", DeleteReason.RETURNED, one.fingerprint.uid) for one in machines]
        return self.backend.delete(deletes, lambda: True)

    def running(self, count: int) -> Snapshot:
        """The look at which so many machines run."""
        found: list[Snapshot] = []

        def all_run() -> bool:
            found.append(self.look())
            return phases(found[-1]) == [Phase.RUNNING] * count

        until(all_run, 20, every=0.05, what=f"{count} running machines")
        return found[-1]

    def empty(self) -> None:
        until(lambda: not self.look().machines and not self.cloud.state(), 20, every=0.05, what="an empty group")

    def calls(self, method: str) -> int:
        """How many requests the API got whose path ends so."""
        return sum(path.endswith(method) for _, path in self.cloud.requests)

    def calls_of(self, act: Callable[[], Any]) -> list[str]:
        """The ends of the paths that ``act`` asks for."""
        before = len(self.cloud.requests)
        act()
        return [path.rpartition("/")[2] for _, path in self.cloud.requests[before:]]


def name(number: int) -> str:
    return machine_name("hf", REQUEST, number)


def creates(*numbers: int, template: str = "t") -> list[Create]:
    return [Create(name(number), "m", template, REQUEST) for number in numbers]


def phases(snapshot: Snapshot) -> list[Phase]:
    return [machine.phase for machine in snapshot.machines.values()]


def classes(outcomes: Sequence[Outcome]) -> dict[str, ErrorClass | None]:
    return {outcome.action.name: outcome.failure.error if outcome.failure else None for outcome in outcomes}


def failures(outcomes: Sequence[Outcome]) -> list[ErrorClass]:
    return [outcome.failure.error for outcome in outcomes if outcome.failure]


@pytest.fixture
def zonal() -> Iterator[Bench]:
    with Bench(ZONAL) as bench:
        yield bench


@pytest.fixture(params=[ZONAL, REGIONAL], ids=["zonal", "regional"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with Bench(request.param) as made:
        yield made


# --- the life of a machine ----------------------------------------------------------------------------------------


def test_a_machine_is_created_seen_and_deleted(bench: Bench) -> None:
    assert bench.look().machines == {}
    assert classes(bench.create(1, 2, 3)) == {name(number): None for number in (1, 2, 3)}
    snapshot = bench.running(3)
    for machine in snapshot.machines.values():
        assert machine.ip.startswith("10.128.")
        assert machine.launched > 1_600_000_000
        print_ = machine.fingerprint
        assert all((print_.uid, print_.created, print_.started, print_.ip == machine.ip))
    assert snapshot.spec == f"{PROJECT}/global/instanceTemplates/{bench.spec.name}-template"
    assert failures(bench.delete(*snapshot.machines.values())) == []
    bench.empty()


def test_a_look_at_what_did_not_change_is_the_same_object(bench: Bench) -> None:
    bench.create(1, 2)
    first = bench.running(2)
    second = bench.look()
    assert second.machines is first.machines
    assert second.began > first.began


def test_the_calls_of_a_look(bench: Bench) -> None:
    bench.look()
    assert bench.calls_of(bench.look) == [bench.spec.name, "listManagedInstances"]
    bench.create(1, 2, 3)
    bench.running(3)
    zones = len(bench.spec.all_zones)
    assert sorted(bench.calls_of(bench.look)) == sorted(
        [bench.spec.name, "listManagedInstances"] + ["instances"] * zones
    )


@pytest.mark.parametrize("list_results", ["PAGELESS", "PAGINATED"])
def test_more_machines_than_fit_in_a_call_or_a_page(list_results: str) -> None:
    spec = MigSpec(project=PROJECT, name="hf-a", zone="us-central1-a", size_limit=3000, list_results=list_results)
    with Bench(spec) as bench:
        bench.look()
        outcomes = bench.create(*range(1001))
        assert len(outcomes) == 1001
        assert failures(outcomes) == []
        assert bench.calls(CREATES) == 2
        snapshot = bench.running(1001)
        assert len({machine.ip for machine in snapshot.machines.values()}) == 1001
        pages = 3 if list_results == "PAGINATED" else 1
        look = bench.calls_of(bench.look)
        assert (look.count("listManagedInstances"), look.count("instances")) == (pages, 3)
        assert failures(bench.delete(*snapshot.machines.values())) == []
        assert bench.calls(DELETES) == 2
        bench.empty()


# --- creating: once, whatever happens -----------------------------------------------------------------------------


def test_machines_that_are_there_are_not_asked_for_again(zonal: Bench) -> None:
    zonal.create(1, 2)
    zonal.look()
    assert classes(zonal.create(1, 2, 3)) == {name(number): None for number in (1, 2, 3)}
    zonal.running(3)
    assert zonal.calls_of(lambda: zonal.create(1, 2, 3)) == []


def test_a_create_repeated_after_a_crash_is_the_same_request(bench: Bench) -> None:
    bench.create(1, 2, 3)
    bench.restarted()
    assert failures(bench.create(3, 1, 2)) == []
    assert bench.calls(CREATES) == 2
    assert len(bench.running(3).machines) == 3


@pytest.mark.parametrize("duplicate", Duplicate)
def test_a_name_that_is_taken_asks_for_another_look(duplicate: Duplicate) -> None:
    """The group refuses all names of the call: those it has are done, the others are asked for in the next cycle."""
    with Bench(ZONAL, switches=Switches(duplicate_name=duplicate)) as bench:
        bench.create(1, 2)
        bench.restarted()
        new = None if duplicate is Duplicate.IGNORE else ErrorClass.UNAVAILABLE
        assert classes(bench.create(1, 2, 3)) == {name(1): None, name(2): None, name(3): new}
        bench.look()
        assert failures(bench.create(1, 2, 3)) == []
        bench.running(3)


def test_a_look_that_comes_late_does_not_keep_a_taken_name_out() -> None:
    """The same names again, after the group refused them: another request id, or Compute would repeat its refusal."""
    with Bench(ZONAL) as bench:
        bench.create(1)
        bench.restarted()
        bench.cloud.set_faults(Fault("list_lag", ".*listManagedInstances", params={"seconds": 100}))
        assert classes(bench.create(1, 2)) == {name(1): ErrorClass.UNAVAILABLE, name(2): ErrorClass.UNAVAILABLE}
        bench.cloud.set_faults()
        assert classes(bench.create(1, 2)) == {name(1): None, name(2): ErrorClass.UNAVAILABLE}
        assert failures(bench.create(2)) == []
        bench.running(2)


def test_an_answer_that_is_lost_makes_no_second_machine(zonal: Bench) -> None:
    zonal.cloud.set_faults(Fault("lost_response", "hf-a", limit=1))
    assert failures(zonal.create(1, 2)) == [ErrorClass.UNAVAILABLE] * 2
    assert failures(zonal.create(1, 2)) == []
    zonal.running(2)
    assert len(zonal.cloud.state()) == 2


def test_an_operation_that_failed_is_not_the_answer_to_the_next_try(zonal: Bench) -> None:
    zonal.cloud.set_faults(Fault("op_error", "hf-a", limit=1))
    assert failures(zonal.create(1, 2)) == [ErrorClass.UNAVAILABLE] * 2
    assert zonal.look().machines == {}
    assert failures(zonal.create(1, 2)) == []
    zonal.running(2)


@pytest.mark.parametrize("mode", ["op_stuck", "op_gone"])
def test_a_result_that_does_not_come_leaves_it_open(zonal: Bench, mode: str) -> None:
    zonal.restarted(ComputeTimes(admission=0.5))
    zonal.cloud.set_faults(Fault(mode))
    assert failures(zonal.create(1, 2)) == [ErrorClass.TIMEOUT] * 2
    assert zonal.calls("wait") < 10
    zonal.running(2)


def test_a_server_that_hangs_leaves_it_open(zonal: Bench) -> None:
    zonal.restarted(ComputeTimes(call=0.5))
    zonal.cloud.set_faults(Fault("hang", params={"seconds": 5}))
    assert failures(zonal.create(1, 2)) == [ErrorClass.TIMEOUT] * 2
    with pytest.raises(BackendError) as raised:
        zonal.look()
    assert raised.value.failure.error is ErrorClass.TIMEOUT


def test_nothing_is_sent_when_the_time_is_over(zonal: Bench) -> None:
    zonal.create(1)
    snapshot = zonal.running(1)
    asked = len(zonal.cloud.requests)
    assert zonal.backend.create(creates(2, 3), lambda: False) == []
    deletes = [Delete(one, "m", DeleteReason.RETURNED) for one in snapshot.machines]
    assert zonal.backend.delete(deletes, lambda: False) == []
    assert len(zonal.cloud.requests) == asked


REFUSALS = [
    (Fault("throttled", ".*createInstances"), ErrorClass.THROTTLED, "rateLimitExceeded"),
    (Fault("unavailable", ".*createInstances"), ErrorClass.UNAVAILABLE, ""),
    (Fault("reset", ".*createInstances"), ErrorClass.UNAVAILABLE, ""),
    (Fault("denied", "hf-a"), ErrorClass.DENIED, ""),
    (Fault("invalid", "hf-a"), ErrorClass.INVALID, ""),
    (Fault("precondition", "hf-a"), ErrorClass.INVALID, "Set replacementMethod to RECREATE"),
    (Fault("mig_gone", "hf-a"), ErrorClass.NOT_FOUND, "hf-a"),
    (
        Fault("op_error", "hf-a", params={"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "none left"}),
        ErrorClass.STOCKOUT,
        "ZONE_RESOURCE_POOL_EXHAUSTED: none left",
    ),
]


@pytest.mark.parametrize(("fault", "error", "words"), REFUSALS, ids=[fault.mode for fault, _, _ in REFUSALS])
def test_a_refused_create_has_class_and_words(zonal: Bench, fault: Fault, error: ErrorClass, words: str) -> None:
    zonal.cloud.set_faults(fault)
    outcomes = zonal.create(1, 2)
    assert failures(outcomes) == [error] * 2
    assert all(outcome.failure and words in outcome.failure.text for outcome in outcomes)


def test_a_refused_template_does_not_keep_another_waiting(zonal: Bench) -> None:
    """Calls are made by template: the first refusal that would repeat itself stops only its own."""
    zonal.cloud.set_faults(Fault("denied", ".*createInstances", limit=1))
    outcomes = zonal.backend.create([*creates(1, 2, template="a"), *creates(3, template="b")], lambda: True)
    assert sorted(classes(outcomes).values(), key=str) == sorted(
        [ErrorClass.DENIED] * len(failures(outcomes)) + [None] * (3 - len(failures(outcomes))), key=str
    )
    assert 1 <= len(failures(outcomes)) <= 2
    assert zonal.calls(CREATES) == 2


# --- why a machine does not run -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error", "word"),
    [
        (Fault("stockout"), ErrorClass.STOCKOUT, "ZONE_RESOURCE_POOL_EXHAUSTED"),
        (Fault("stockout", params={"code": "INSUFFICIENT_CAPACITY"}), ErrorClass.STOCKOUT, "INSUFFICIENT_CAPACITY"),
        (Fault("quota"), ErrorClass.QUOTA, "QUOTA_EXCEEDED"),
        (Fault("ip_exhausted"), ErrorClass.QUOTA, "IP_SPACE_EXHAUSTED"),
        (Fault("attempt_error"), ErrorClass.OTHER, "INTERNAL_ERROR"),
    ],
)
def test_a_machine_that_cannot_be_made_says_why_and_can_be_given_up(
    bench: Bench, fault: Fault, error: ErrorClass, word: str
) -> None:
    bench.cloud.set_faults(fault)
    bench.look()
    bench.create(1)

    def refused() -> Machine | None:
        machine = bench.machine(name(1))
        return machine if machine and machine.failure else None

    machine = until(refused, 10, what="a failed attempt")
    assert machine is not None
    assert machine.failure is not None
    assert (machine.phase, machine.failure.error) == (Phase.PENDING, error)
    assert word in machine.failure.text
    bench.delete(machine)
    bench.empty()


def test_running_without_an_address_is_not_running_yet(zonal: Bench) -> None:
    zonal.cloud.set_faults(Fault("no_ip", params={"seconds": 4.0}))
    zonal.create(1)
    until(lambda: "running" in zonal.cloud.state().values(), 10, what="a running instance")
    machine = zonal.machine(name(1))
    assert machine is not None
    assert machine.phase is Phase.PENDING
    zonal.running(1)


# --- ends ---------------------------------------------------------------------------------------------------------


def spot(**more: Any) -> MigSpec:
    return MigSpec(project=PROJECT, name="hf-a", zone="us-central1-a", provisioning_model="SPOT", **more)


@pytest.mark.parametrize("left", ["STOP", "DELETE"])
def test_a_preempted_machine_gives_notice_and_leaves_remains_that_are_deleted(left: str) -> None:
    with Bench(spot(termination_action=left)) as bench:
        bench.create(1, 2)
        bench.running(2)
        bench.cloud.do(lambda: bench.cloud.groups.preempt([name(1)]))
        stopping = bench.machine(name(1))
        assert stopping is not None
        assert (stopping.phase, stopping.cause) == (Phase.STOPPING, LossCause.PREEMPTED)
        assert stopping.notice is not None
        assert stopping.notice.ends == bench.now + 30.0
        gone = until(lambda: _if_gone(bench.machine(name(1))), 10, what="the end")
        assert gone is not None
        assert gone.cause is LossCause.PREEMPTED
        bench.delete(gone)
        until(lambda: list(bench.look().machines) == [name(2)], 10, what="its remains to go")
        assert phases(bench.look()) == [Phase.RUNNING]


def _if_gone(machine: Machine | None) -> Machine | None:
    return machine if machine and machine.phase is Phase.GONE else None


@pytest.mark.parametrize("keeps_id", [True, False])
def test_a_machine_made_again_by_the_group_is_another(keeps_id: bool) -> None:
    spec = spot(default_action_on_failure="REPAIR")
    with Bench(spec, switches=Switches(recreate_keeps_id=keeps_id)) as bench:
        bench.create(1)
        first = bench.running(1).machines[name(1)]
        bench.cloud.do(lambda: bench.cloud.groups.preempt([name(1)]))
        until(lambda: bench.cloud.state().get(name(1)) != "running", 10, what="the preemption")
        until(lambda: bench.cloud.state().get(name(1)) == "running", 10, what="the repair")
        again = bench.running(1).machines[name(1)]
        assert first.fingerprint.differs(again.fingerprint)
        assert (first.fingerprint.uid == again.fingerprint.uid) is keeps_id


def test_an_instance_deleted_by_others_is_gone_until_it_leaves_the_group(zonal: Bench) -> None:
    zonal.create(1)
    zonal.running(1)
    groups = zonal.cloud.groups
    zonal.cloud.do(lambda: groups.delete_vm(groups.vm(PROJECT, "us-central1-a", name(1))))
    gone = until(lambda: _if_gone(zonal.machine(name(1))), 10, what="the end")
    assert gone is not None
    zonal.delete(gone)
    zonal.empty()


# --- deleting only what is meant ----------------------------------------------------------------------------------


def test_another_instance_under_the_name_is_not_deleted(bench: Bench) -> None:
    bench.create(1)
    bench.running(1)
    outcomes = bench.backend.delete([Delete(name(1), "m", DeleteReason.LOST, "12345")], lambda: True)
    assert classes(outcomes) == {name(1): None}, "the instance that was meant is not there"
    assert bench.calls(DELETES) == 0
    assert phases(bench.look()) == [Phase.RUNNING]


def test_a_delete_looks_first_and_asks_only_for_what_is_there(bench: Bench) -> None:
    bench.create(1, 2)
    snapshot = bench.running(2)
    deletes = [Delete(name(9), "m", DeleteReason.RETURNED, "12345"), Delete(name(8), "m", DeleteReason.RETURNED)]
    asked = bench.calls_of(lambda: bench.backend.delete(deletes, lambda: True))
    assert asked == ["listManagedInstances"]
    asked = bench.calls_of(lambda: bench.delete(*snapshot.machines.values()))
    assert asked == ["listManagedInstances", DELETES]
    until(lambda: all(phase is Phase.STOPPING for phase in phases(bench.look())), 5, what="all stop")
    outcomes: list[Outcome] = []
    asked = bench.calls_of(lambda: outcomes.extend(bench.delete(*snapshot.machines.values())))
    assert asked == ["listManagedInstances"], "what the group deletes already is not asked for again"
    assert classes(outcomes) == {name(1): None, name(2): None}


def test_a_delete_that_cannot_look_fails_and_sends_nothing(bench: Bench) -> None:
    bench.create(1)
    machine = bench.running(1).machines[name(1)]
    bench.cloud.set_faults(Fault("unavailable", ".*istManagedInstances"))
    assert failures(bench.delete(machine)) == [ErrorClass.UNAVAILABLE]
    assert bench.calls(DELETES) == 0


def test_a_machine_never_seen_can_be_deleted(bench: Bench) -> None:
    bench.look()
    bench.create(1)
    outcomes = bench.backend.delete([Delete(name(1), "m", DeleteReason.WITHDRAWN)], lambda: True)
    assert failures(outcomes) == []
    until(lambda: not bench.cloud.state(), 20, what="an empty group")


def test_a_delete_sent_again_after_another_look_is_another_request(zonal: Bench) -> None:
    zonal.create(1)
    machine = zonal.running(1).machines[name(1)]
    zonal.cloud.set_faults(Fault("op_error", "hf-a", limit=1))
    assert failures(zonal.delete(machine)) == [], "the operation fails after the group has taken the call"
    until(lambda: zonal.cloud.do(lambda: not zonal.cloud.groups.operations.pending(ZONAL.path)), 5)
    assert phases(zonal.look()) == [Phase.RUNNING]
    zonal.delete(machine)
    zonal.empty()


def test_members_that_are_not_ours_are_left_alone(zonal: Bench) -> None:
    group = zonal.cloud.groups.mig(PROJECT, "zones/us-central1-a", "hf-a")
    zonal.cloud.do(lambda: group.resize(2))
    until(lambda: len(zonal.cloud.state()) == 2, 10, what="two members with the group's own names")
    theirs = sorted(zonal.cloud.state())
    zonal.create(1)
    zonal.running(1)
    snapshot = zonal.look([theirs[0], "no-such-vm", name(1)])
    assert snapshot.foreign == {theirs[0]}
    deletes = [Delete(other, "m", DeleteReason.RETURNED) for other in (*theirs, "no-such-vm")]
    assert failures(zonal.backend.delete(deletes, lambda: True)) == []
    assert zonal.calls(DELETES) == 0
    zonal.restarted(adopt_prefixes=("hf-a-",))
    assert failures(zonal.backend.delete(deletes, lambda: True)) == []
    until(lambda: list(zonal.cloud.state()) == [name(1)], 10, what="the adopted members to go")


def test_a_member_taken_out_of_the_group_is_absent_and_said(zonal: Bench, caplog: pytest.LogCaptureFixture) -> None:
    zonal.create(1, 2)
    zonal.running(2)
    group = zonal.cloud.groups.mig(PROJECT, "zones/us-central1-a", "hf-a")
    zonal.cloud.do(lambda: group.abandon([f"zones/us-central1-a/instances/{name(1)}"]))
    with caplog.at_level(logging.WARNING, "provisioner"):
        until(lambda: list(zonal.look().machines) == [name(2)], 10, what="its absence")
    assert zonal.cloud.state()[name(1)] == "running", "its instance runs on and is no longer ours to touch"
    problems = [getattr(record, "problem", "") for record in caplog.records]
    assert any(name(1) in problem for problem in problems)


# --- a failed look is not an empty look ---------------------------------------------------------------------------

LOST_LOOKS = [
    (Fault("partial_list", ".*instances.list"), ErrorClass.UNAVAILABLE),
    (Fault("partial_list", ".*instances.list", params={"kept": 0}), ErrorClass.UNAVAILABLE),
    (Fault("throttled"), ErrorClass.THROTTLED),
    (Fault("throttled", ".*instances.list"), ErrorClass.THROTTLED),
    (Fault("unavailable", ".*listManagedInstances"), ErrorClass.UNAVAILABLE),
    (Fault("http_error", ".*instances.list", params={"status": 500}), ErrorClass.UNAVAILABLE),
    (Fault("http_error", ".*instances.list", params={"status": 403}), ErrorClass.DENIED),
    (Fault("reset", ".*listManagedInstances"), ErrorClass.UNAVAILABLE),
    (Fault("mig_gone"), ErrorClass.NOT_FOUND),
    (Fault("empty_page", ".*instances.list"), ErrorClass.OTHER),
]


@pytest.mark.parametrize(
    ("fault", "error"), LOST_LOOKS, ids=[f"{fault.mode} {fault.target}" for fault, _ in LOST_LOOKS]
)
def test_a_look_that_is_not_complete_fails(zonal: Bench, fault: Fault, error: ErrorClass) -> None:
    zonal.create(1, 2)
    before = zonal.running(2)
    zonal.cloud.set_faults(fault)
    with pytest.raises(BackendError) as raised:
        zonal.look()
    assert raised.value.failure.error is error
    zonal.cloud.set_faults()
    assert zonal.look().machines is before.machines


def test_a_page_in_the_middle_that_fails_fails_the_look() -> None:
    with Bench(ZONAL) as bench:
        bench.look()
        bench.create(*range(600))
        bench.running(600)
        bench.cloud.set_faults(Fault("token_expired", ".*instances.list"))
        with pytest.raises(BackendError) as raised:
            bench.look()
        assert raised.value.failure.error is ErrorClass.INVALID
        bench.cloud.set_faults(Fault("empty_page", ".*instances.list", after=1, limit=1))
        assert len(bench.look().machines) == 600


def test_one_zone_that_cannot_be_reached_fails_the_look() -> None:
    with Bench(REGIONAL) as bench:
        bench.create(1, 2, 3)
        bench.running(3)
        bench.cloud.set_faults(Fault("partial_list", "us-central1-b"))
        with pytest.raises(BackendError):
            bench.look()


def test_a_group_that_seems_to_have_lost_everything_fails_the_look(zonal: Bench) -> None:
    zonal.create(1, 2)
    zonal.running(2)
    zonal.cloud.set_faults(Fault("list_lag", ".*listManagedInstances", params={"seconds": 100}))
    with pytest.raises(BackendError, match="the group counts 2"):
        zonal.look()


@pytest.mark.parametrize(
    "body",
    [
        b"<html>sign in</html>",
        b"[]",
        b"{}",
        b'{"kind": "compute#instanceGroupManager", "versions": 3}',
        b'{"kind": "compute#instanceGroupManager", "curr',
    ],
)
def test_an_answer_of_another_shape_fails_the_look(body: bytes) -> None:
    with OddServer(body) as address:
        backend = MigBackend(pool(address), prefix="hf")
        with pytest.raises(BackendError) as raised:
            backend.observe(1.0, ())
        assert raised.value.failure.error in (ErrorClass.UNAVAILABLE, ErrorClass.OTHER)
        assert len(failures(backend.create(creates(1), lambda: True))) == 1
        backend.close()


@pytest.mark.parametrize("body", [b"<html>sign in</html>", b"[]", b'{"managedInstances": [3]}'])
def test_an_answer_of_another_shape_fails_a_delete(body: bytes) -> None:
    with OddServer(body) as address:
        backend = MigBackend(pool(address), prefix="hf")
        assert len(failures(backend.delete([Delete(name(1), "m", DeleteReason.RETURNED)], lambda: True))) == 1
        backend.close()


class OddServer:
    """Answers every request with 200 and the same body."""

    def __init__(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
        answer = head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body

        class Answer(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while self.rfile.readline().strip():
                    pass
                self.wfile.write(answer)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_nobody_at_the_address() -> None:
    with OddServer(b"") as address:
        pass
    backend = MigBackend(pool(address), prefix="hf")
    with pytest.raises(BackendError) as raised:
        backend.observe(1.0, ())
    assert raised.value.failure.error is ErrorClass.UNAVAILABLE
    assert failures(backend.create(creates(1), lambda: True)) == [ErrorClass.UNAVAILABLE]
    backend.close()


@pytest.mark.parametrize("content", [None, "not JSON", "{}", '{"type": "service_account"}'])
def test_a_bad_key_file_makes_the_pool_unobservable_and_nothing_worse(tmp_path: Path, content: str | None) -> None:
    key = tmp_path / "key.json"
    if content is not None:
        key.write_text(content)
    backend = MigBackend(pool("https://127.0.0.1:9", credentials=key), prefix="hf")
    with pytest.raises(BackendError) as raised:
        backend.observe(1.0, ())
    assert raised.value.failure.error is ErrorClass.DENIED
    assert "key.json" in raised.value.failure.text
    assert failures(backend.create(creates(1), lambda: True)) == [ErrorClass.DENIED]
    backend.close()


# --- the group's own settings -------------------------------------------------------------------------------------


def test_settings_that_will_go_wrong_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    spec = MigSpec(project=PROJECT, name="hf-a", zone="us-central1-a", update_type="PROACTIVE")
    with Bench(spec) as bench, caplog.at_level(logging.WARNING, "provisioner"):
        bench.look()
        bench.look()
        assert [getattr(record, "problem", "")[:25] for record in caplog.records] == ["updatePolicy is PROACTIVE"]
        assert failures(bench.create(1)) == [ErrorClass.INVALID]


def test_an_endpoint_with_or_without_path_is_the_same() -> None:
    with ComputeCloud([ZONAL]) as cloud:
        for endpoint in (cloud.host, cloud.host + "/", cloud.url, cloud.url.rstrip("/")):
            backend = MigBackend(pool(endpoint), prefix="hf")
            assert backend.observe(1.0, ()).machines == {}
            backend.close()
