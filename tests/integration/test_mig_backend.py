"""The MIG backend against the simulated Compute API. Each machine is made once, and only the intended machines are
deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest

from provisioner.backends import BackendError
from provisioner.backends.dns import Resolver
from provisioner.backends.mig import backend as migs
from provisioner.backends.mig import undecided_creates
from provisioner.backends.mig.api import ComputeTimes
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.shared_lists import Projects
from provisioner.lab.cloud.compute.settings import Duplicate, Switches
from provisioner.lab.cloud.world import Fault
from provisioner.loop.batch_threads import Batch, ThreadedActors
from provisioner.model import (
    Delete,
    DeleteReason,
    ErrorClass,
    Failure,
    Outcome,
    Phase,
)
from provisioner.schema.setting_types import Site
from tests.support.clouds.mig_bench import (
    CREATES,
    DELETES,
    PROJECT,
    REGIONAL,
    TIMINGS,
    ZONAL,
    Bench,
    classes,
    creates,
    failures,
    name,
    phases,
    pool,
)
from tests.support.clouds.specs import advised
from tests.support.waiting import until


@pytest.fixture
def zonal() -> Iterator[Bench]:
    with Bench(ZONAL) as bench:
        yield bench


@pytest.fixture(params=[ZONAL, REGIONAL], ids=["zonal", "regional"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with Bench(request.param) as made:
        yield made


# --- the life of a machine ----------------------------------------------------------------------------------------


def test_some_deletes_begin_however_long_their_list_took(zonal: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the list before the deletes took all the time of the call, some deletes must be sent. Otherwise a group
    whose list is always slow would never shrink."""
    monkeypatch.setattr(migs, "CHUNK", 1)
    zonal.create(*range(migs.WORKERS + 2))
    machines = zonal.running(migs.WORKERS + 2).machines.values()
    deletes = [Delete(one.name, "m", DeleteReason.RETURNED, one.fingerprint.uid) for one in machines]
    in_time = iter([True])
    assert len(zonal.backend.delete(deletes, lambda: next(in_time, False))) == migs.WORKERS
    assert zonal.calls(DELETES) == migs.WORKERS
    assert zonal.backend.delete(deletes, lambda: False) == []


def test_creates_are_sent_however_often_machines_are_returned_and_however_long_their_list_takes(zonal: Bench) -> None:
    """Before deletes, the backend lists the members. Here each such list takes the whole time of a cycle, so no create
    may be sent after it. A later cycle must send the creates."""
    zonal.create(1, 2, 3)
    machines = zonal.running(3).machines.values()
    actors = ThreadedActors({"m": zonal.backend}, lambda: None)
    sent: set[str] = set()
    for one in machines:
        returned = Delete(one.name, "m", DeleteReason.RETURNED, one.fingerprint.uid)
        batch, lists = Batch("m", (returned,), tuple(creates(4))), zonal.calls("listManagedInstances")
        actors.submit(batch, lambda lists=lists: zonal.calls("listManagedInstances") == lists)
        assert actors.settle(30)
        sent |= {outcome.action.name for results in actors.collect() for outcome in results.outcomes}
    assert sent >= {name(1), name(3), name(4)}


def test_the_end_of_the_loop_does_not_wait_for_a_look(zonal: Bench) -> None:
    backend = MigBackend(pool(zonal.cloud.url, observe_seconds=30), Projects(Site("demo", "hf")))
    backend.observe(1.0, {})
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(backend.observe, 1.0, ())
        backend.close()
        assert isinstance(waiting.exception(30), BackendError)


def test_a_machine_runs_once_its_name_resolves_where_that_is_required(zonal: Bench) -> None:
    resolvable: set[str] = set()
    zonal.backend = MigBackend(pool(zonal.cloud.url, require_dns=True), Projects(Site("demo", "hf")))
    zonal.backends.append(zonal.backend)
    zonal.backend._observer._resolver = Resolver(lookup=resolvable.__contains__, clock=lambda: float("inf"))
    zonal.create(1)
    until(lambda: "running" in zonal.cloud.state().values(), 30, what="a running instance")
    waiting = zonal.observe()
    assert phases(waiting) == [Phase.PENDING]
    assert zonal.observe().machines is waiting.machines
    resolvable.add(name(1))
    machine = zonal.running(1).machines[name(1)]
    assert machine.failure is None


def test_the_calls_of_a_look(bench: Bench) -> None:
    """Expect that members are listed only in the first observation and while the group changes or may change because of
    a call."""
    shared = ["instanceGroupManagers"] + ["instances"] * len(bench.spec.all_zones)
    assert sorted(bench.calls_of(bench.observe)) == sorted([*shared, "listManagedInstances"])
    assert sorted(bench.calls_of(bench.observe)) == shared
    bench.create(1, 2, 3)
    assert sorted(bench.calls_of(bench.observe)) == sorted([*shared, "listManagedInstances"])
    bench.running(3)
    until(lambda: sorted(bench.calls_of(bench.observe)) == shared, 30, what="an observation at a quiet group")


def test_more_machines_than_fit_in_a_call_or_a_page() -> None:
    spec = advised(project=PROJECT, name="hf-a", zone="us-central1-a", size_limit=3000, list_results="PAGINATED")
    with Bench(spec) as bench:
        bench.observe()
        outcomes = bench.create(*range(1001))
        assert len(outcomes) == 1001
        assert failures(outcomes) == []
        assert bench.calls(CREATES) == 2
        snapshot = bench.running(1001)
        assert len({machine.ip for machine in snapshot.machines.values()}) == 1001
        bench.restarted()
        observation = bench.calls_of(bench.observe)
        assert (observation.count("listManagedInstances"), observation.count("instances")) == (3, 3)
        assert failures(bench.delete(*snapshot.machines.values())) == []
        assert bench.calls(DELETES) == 2
        bench.empty()


# --- creating: once, whatever happens -----------------------------------------------------------------------------


@pytest.mark.usefixtures("switches")
def test_machines_that_are_there_are_not_asked_for_again(zonal: Bench) -> None:
    zonal.create(1, 2)
    zonal.observe()
    assert classes(zonal.create(1, 2, 3)) == {name(number): None for number in (1, 2, 3)}
    zonal.running(3)
    assert zonal.calls_of(lambda: zonal.create(1, 2, 3)) == []


def test_a_create_repeated_after_a_crash_is_the_same_request(bench: Bench) -> None:
    bench.create(1, 2, 3)
    bench.restarted()
    assert failures(bench.create(3, 1, 2)) == []
    assert bench.calls(CREATES) == 2
    assert bench.operations(CREATES) == 1, "Compute took the second call for the first"
    assert len(bench.running(3).machines) == 3


@pytest.mark.parametrize("duplicate", Duplicate)
def test_a_name_that_is_taken_asks_for_another_look(duplicate: Duplicate) -> None:
    """The group may refuse all names of a call because it has some of them. The creates of these names count as done.
    The other names are sent again in the next cycle."""
    with Bench(ZONAL, switches=Switches(duplicate_name=duplicate)) as bench:
        bench.create(1, 2)
        bench.restarted()
        new = None if duplicate is Duplicate.IGNORE else ErrorClass.UNAVAILABLE
        assert classes(bench.create(1, 2, 3)) == {name(1): None, name(2): None, name(3): new}
        bench.observe()
        assert failures(bench.create(1, 2, 3)) == []
        bench.running(3)


@pytest.mark.parametrize("duplicate", [Duplicate.OPERATION_ERROR, Duplicate.HTTP_CONFLICT])
def test_a_look_that_comes_late_does_not_keep_a_taken_name_out(duplicate: Duplicate) -> None:
    """Expect that names which the group refused are sent with another request id. For the same id, Compute would repeat
    its refusal."""
    with Bench(ZONAL, switches=Switches(duplicate_name=duplicate)) as bench:
        bench.create(1)
        bench.restarted()
        bench.cloud.set_faults(Fault("list_lag", ".*listManagedInstances", params={"seconds": 100}))
        assert classes(bench.create(1, 2)) == {name(1): ErrorClass.UNAVAILABLE, name(2): ErrorClass.UNAVAILABLE}
        bench.cloud.set_faults()
        assert classes(bench.create(1, 2)) == {name(1): None, name(2): ErrorClass.UNAVAILABLE}
        assert failures(bench.create(2)) == []
        bench.running(2)


def test_names_of_which_an_unknown_one_is_taken_stay_open() -> None:
    with Bench(ZONAL, switches=Switches(duplicate_name=Duplicate.HTTP_CONFLICT)) as bench:
        bench.create(1)
        bench.restarted()
        bench.cloud.set_faults(Fault("unavailable", ".*istManagedInstances"))
        assert classes(bench.create(1, 2)) == {name(1): ErrorClass.UNAVAILABLE, name(2): ErrorClass.UNAVAILABLE}


@pytest.mark.usefixtures("switches")
def test_a_response_that_is_lost_makes_no_second_machine(zonal: Bench) -> None:
    zonal.cloud.set_faults(Fault("lost_response", "hf-a", limit=1))
    assert failures(zonal.create(1, 2)) == [ErrorClass.UNAVAILABLE] * 2
    assert failures(zonal.create(1, 2)) == []
    assert zonal.operations(CREATES) == 1
    zonal.running(2)


@pytest.mark.usefixtures("switches")
def test_an_operation_that_failed_is_not_the_response_to_the_next_try(zonal: Bench) -> None:
    zonal.cloud.set_faults(Fault("op_error", "hf-a", limit=1))
    assert failures(zonal.create(1, 2)) == [ErrorClass.UNAVAILABLE] * 2
    assert zonal.observe().machines == {}
    assert failures(zonal.create(1, 2)) == []
    zonal.running(2)


def test_operations_that_cannot_be_read_hold_up_a_look_once_and_not_each(zonal: Bench) -> None:
    zonal.restarted(ComputeTimes(admission=0.1, call=3.0))
    zonal.cloud.set_faults(Fault("op_stuck"))
    for number in (1, 2, 3):
        assert failures(zonal.create(number)) == []
    zonal.cloud.set_faults(Fault("hang", ".*Operations.get", params={"seconds": 30}))
    before = len(zonal.cloud.requests)
    zonal.observe()
    assert sum("/operations/" in path for _, path in zonal.cloud.requests[before:]) == 1


def test_operations_that_cannot_be_read_do_not_use_up_the_calls_of_observations(zonal: Bench) -> None:
    """If the account lacks the permission to read operations, every read of an operation fails. The backend must then
    try only a few of them in each observation."""
    zonal.restarted(ComputeTimes(admission=0.05))
    zonal.cloud.set_faults(Fault("op_gone"))
    for number in range(1, 31):
        assert failures(zonal.create(number)) == []
    assert zonal.calls_of(zonal.observe).count("instances") == 1
    observations = [sum(one.startswith("operation-") for one in zonal.calls_of(zonal.observe)) for _ in range(3)]
    assert max(observations) <= undecided_creates.MOST
    zonal.running(30)
    zonal.observe()
    assert not any(one.startswith("operation-") for one in zonal.calls_of(zonal.observe)), (
        "all were accepted, as is seen"
    )


def test_a_create_that_is_refused_late_shows_machines_that_are_gone(zonal: Bench) -> None:
    zonal.restarted(ComputeTimes(admission=0.1))
    zonal.cloud.do(lambda: setattr(zonal.cloud.groups.operations, "timings", replace(TIMINGS, operation=(4.0, 4.0))))
    zonal.cloud.set_faults(Fault("op_error", "hf-a", params={"code": "QUOTA_EXCEEDED", "message": "none left"}))
    assert failures(zonal.create(1, 2)) == []
    until(lambda: phases(zonal.observe()) == [Phase.GONE] * 2, 30, what="the refusal")
    snapshot = zonal.observe()
    machine = snapshot.machines[name(1)]
    assert machine.failure == Failure(ErrorClass.QUOTA, "QUOTA_EXCEEDED: none left")
    assert zonal.observe().machines is snapshot.machines
    assert failures(zonal.delete(*snapshot.machines.values())) == []
    assert zonal.observe().machines == {}


REFUSALS = [
    (Fault("throttled", ".*createInstances"), ErrorClass.THROTTLED, "rateLimitExceeded"),
    (Fault("unavailable", ".*createInstances"), ErrorClass.UNAVAILABLE, ""),
    (Fault("precondition", "hf-a"), ErrorClass.INVALID, "Set replacementMethod to RECREATE"),
    (Fault("mig_gone", "hf-a"), ErrorClass.NOT_FOUND, "hf-a"),
    (
        Fault("http_error", ".*createInstances", params={"status": 400, "reason": "resourceNotReady"}),
        ErrorClass.UNAVAILABLE,
        "resourceNotReady",
    ),
    (
        Fault("op_error", "hf-a", params={"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "none left"}),
        ErrorClass.STOCKOUT,
        "ZONE_RESOURCE_POOL_EXHAUSTED: none left",
    ),
]


@pytest.mark.parametrize(
    ("fault", "error", "words"), REFUSALS, ids=[words or fault.mode for fault, _, words in REFUSALS]
)
def test_a_refused_create_has_class_and_words(zonal: Bench, fault: Fault, error: ErrorClass, words: str) -> None:
    zonal.cloud.set_faults(fault)
    outcomes = zonal.create(1, 2)
    assert failures(outcomes) == [error] * 2
    assert all(outcome.failure and words in outcome.failure.text for outcome in outcomes)


NO_ROOM = (
    f"The zone 'projects/{PROJECT}/zones/{ZONAL.zone}' does not have enough resources available to fulfill the request."
    "  Try a different zone, or try again later."
)
DETAILS = [
    {"help": {"links": [{"description": "Troubleshooting documentation", "url": "https://example.com/"}]}},
    {"localizedMessage": {"locale": "en-US", "message": "A VM instance is currently unavailable."}},
    {"errorInfo": {"domain": "compute.googleapis.com", "reason": "resource_availability", "metadatas": {"a": ""}}},
]


def test_a_stock_out_is_reported_by_its_plain_message_whatever_details_it_has(zonal: Bench) -> None:
    plain = Failure(ErrorClass.STOCKOUT, f"ZONE_RESOURCE_POOL_EXHAUSTED: {NO_ROOM}")
    refusal = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": NO_ROOM, "details": DETAILS}
    zonal.cloud.set_faults(Fault("op_error", "hf-a", params=refusal, limit=1), Fault("stockout", name(2)))
    assert [outcome.failure for outcome in zonal.create(1)] == [plain]
    zonal.create(2)
    until(lambda: zonal.observe().machines[name(2)].failure == plain, 30, what="the reason of the attempt")


@pytest.mark.parametrize(
    ("reason", "seen"),
    [
        pytest.param("rateLimitExceeded", False, id="the calls of the project"),
        pytest.param("resourceOperationRateExceeded", True, id="the operations on one resource"),
    ],
)
def test_observations_pause_only_while_the_project_may_make_no_calls(zonal: Bench, reason: str, seen: bool) -> None:
    zonal.create(1)
    zonal.running(1)
    fault = Fault("http_error", ".*createInstances", params={"status": 403, "reason": reason})
    zonal.cloud.set_faults(fault)
    assert failures(zonal.create(2)) == [ErrorClass.THROTTLED]
    with nullcontext() if seen else pytest.raises(BackendError, match="accepts no more calls of this project"):
        assert len(zonal.observe().machines) == 1


# --- deleting only what is meant ----------------------------------------------------------------------------------


def test_a_delete_lists_first_and_deletes_only_existing_instances(bench: Bench) -> None:
    bench.create(1, 2)
    snapshot = bench.running(2)
    deletes = [Delete(name(9), "m", DeleteReason.RETURNED, "12345"), Delete(name(8), "m", DeleteReason.RETURNED)]
    asked = bench.calls_of(lambda: bench.backend.delete(deletes, lambda: True))
    assert asked == ["listManagedInstances"]
    asked = bench.calls_of(lambda: bench.delete(*snapshot.machines.values()))
    assert asked == ["listManagedInstances", DELETES]
    until(lambda: all(phase is Phase.STOPPING for phase in phases(bench.observe())), 30, what="all stop")
    outcomes: list[Outcome] = []
    asked = bench.calls_of(lambda: outcomes.extend(bench.delete(*snapshot.machines.values())))
    assert asked == ["listManagedInstances"], "what the group deletes already is not asked for again"
    assert classes(outcomes) == {name(1): None, name(2): None}


def test_a_member_that_left_meanwhile_does_not_spoil_the_call(bench: Bench) -> None:
    """A member may leave after an observation and before its delete is sent. The other members of the same call must
    still be deleted."""
    bench.create(1)
    bench.running(1)
    urls = [f"zones/{zone}/instances/{name(number)}" for number in (1, 9) for zone in bench.spec.all_zones]
    assert "error" not in bench.backend._project.api.delete(bench.backend._settings, urls)
    bench.empty()


@pytest.mark.usefixtures("switches")
def test_a_delete_sent_again_after_another_look_is_another_request(zonal: Bench) -> None:
    zonal.create(1)
    machine = zonal.running(1).machines[name(1)]
    zonal.cloud.set_faults(Fault("op_error", "hf-a", limit=1))
    assert failures(zonal.delete(machine)) == [], "the operation fails after the group has taken the call"
    until(lambda: zonal.cloud.do(lambda: not zonal.cloud.groups.operations.pending(ZONAL.path)), 30)
    assert phases(zonal.observe()) == [Phase.RUNNING]
    zonal.delete(machine)
    zonal.empty()


@pytest.mark.parametrize("bench", [ZONAL, REGIONAL], ids=["zonal", "regional"], indirect=True)
def test_an_adopted_instance_that_left_its_group_is_not_gone_and_left_alone(bench: Bench) -> None:
    backend = bench.restarted(adopt_prefixes=("g", "sym-"))
    zone = bench.spec.all_zones[0]
    bench.cloud.do(lambda: bench.cloud.groups.vms.insert(bench.spec, zone, "sym-1"))
    until(lambda: bench.observe(["sym-1", "sym-2"]).name_collisions == {"sym-1"}, 30)
    assert bench.observe(["sym-1"]).foreign == frozenset()
    deletes = [Delete("sym-1", "m", DeleteReason.RETURNED, is_adopted=True)]
    assert failures(backend.delete(deletes, lambda: True)) == []
    assert list(bench.cloud.state()) == ["sym-1"]
    assert sum(call == "instances" for call in bench.calls_of(bench.observe)) <= len(bench.spec.all_zones)


@pytest.mark.usefixtures("switches")
def test_a_member_taken_out_of_the_group_is_absent_and_said(zonal: Bench, caplog: pytest.LogCaptureFixture) -> None:
    zonal.create(1, 2)
    zonal.running(2)
    group = zonal.cloud.groups.mig(PROJECT, "zones/us-central1-a", "hf-a")
    zonal.cloud.do(lambda: group.abandon([f"zones/us-central1-a/instances/{name(1)}"]))
    with caplog.at_level(logging.WARNING, "provisioner"):
        until(lambda: list(zonal.observe().machines) == [name(2)], 30, what="its absence")
    assert zonal.cloud.state()[name(1)] == "running", "its instance runs on"
    problems = [getattr(record, "problem", "") for record in caplog.records]
    assert any(name(1) in problem for problem in problems)


def test_a_member_taken_out_of_the_group_goes_on_and_its_delete_says_what_to_do(zonal: Bench) -> None:
    zonal.create(1)
    uid = zonal.running(1).machines[name(1)].fingerprint.uid
    group = zonal.cloud.groups.mig(PROJECT, "zones/us-central1-a", "hf-a")
    zonal.cloud.do(lambda: group.abandon([f"zones/us-central1-a/instances/{name(1)}"]))
    until(lambda: zonal.observe().machines == {}, 30, what="its absence")
    asked = zonal.backend.observe(zonal.now, {name(1): uid})
    assert (asked.machines[name(1)].phase, asked.machines[name(1)].is_strayed) == (Phase.RUNNING, True)
    assert zonal.backend.observe(zonal.now, {name(1): "7"}).name_collisions == {name(1)}, "another one of its name"
    zonal.backend.observe(zonal.now, {name(1): uid})
    (outcome,) = zonal.backend.delete([Delete(name(1), "m", DeleteReason.RETURNED, uid)], lambda: True)
    assert outcome.failure is not None
    assert outcome.failure.error is ErrorClass.DENIED
    assert f"gcloud compute instances delete {name(1)} --zone us-central1-a" in outcome.failure.text
    zonal.cloud.do(lambda: [zonal.cloud.groups.vms.delete(vm) for vm in zonal.cloud.groups.vms.named(name(1))])
    until(lambda: zonal.backend.observe(zonal.now, {name(1): uid}).machines == {}, 30, what="its end")
