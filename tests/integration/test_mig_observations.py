"""Observations of the MIG backend on the simulated Compute API: reasons of missing machines, ends, and failures."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.backends import BackendError
from provisioner.backends.mig import api
from provisioner.backends.mig.api import ComputeTimes
from provisioner.backends.mig.backend import MigBackend
from provisioner.backends.mig.settings import MigPool
from provisioner.backends.mig.shared_lists import Projects
from provisioner.lab.cloud.compute.settings import MigSpec, Switches
from provisioner.lab.cloud.world import Fault
from provisioner.model import (
    Create,
    Delete,
    DeleteReason,
    ErrorClass,
    LossCause,
    Machine,
    Phase,
)
from provisioner.schema.setting_types import Site
from tests.support.clouds.compute_cloud import ComputeCloud
from tests.support.clouds.mig_bench import (
    PROJECT,
    REGIONAL,
    REQUEST,
    TIMINGS,
    ZONAL,
    Bench,
    OddServer,
    classes,
    creates,
    failures,
    name,
    phases,
    pool,
)
from tests.support.clouds.specs import advised
from tests.support.waiting import until

PAGED = advised(project=PROJECT, name="hf-p", zone="us-central1-a", list_results="PAGINATED")


@pytest.fixture
def zonal() -> Iterator[Bench]:
    with Bench(ZONAL) as bench:
        yield bench


@pytest.fixture(params=[ZONAL, REGIONAL], ids=["zonal", "regional"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with Bench(request.param) as made:
        yield made


# --- why a machine does not run -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error", "word"),
    [
        (Fault("stockout"), ErrorClass.STOCKOUT, "ZONE_RESOURCE_POOL_EXHAUSTED"),
        (Fault("quota"), ErrorClass.QUOTA, "QUOTA_EXCEEDED"),
        (Fault("attempt_error"), ErrorClass.OTHER, "INTERNAL_ERROR"),
    ],
)
def test_a_machine_that_cannot_be_made_says_why_and_can_be_given_up(
    zonal: Bench, fault: Fault, error: ErrorClass, word: str
) -> None:
    zonal.cloud.set_faults(fault)
    zonal.observe()
    zonal.create(1)

    def refused() -> Machine | None:
        machine = zonal.machine(name(1))
        return machine if machine and machine.failure else None

    machine = until(refused, 30, what="a failed attempt")
    assert machine is not None
    assert machine.failure is not None
    assert (machine.phase, machine.failure.error) == (Phase.PENDING, error)
    assert word in machine.failure.text
    zonal.delete(machine)
    zonal.empty()


@pytest.mark.usefixtures("switches")
def test_running_without_an_address_is_not_running_yet(zonal: Bench) -> None:
    zonal.cloud.set_faults(Fault("no_ip", params={"seconds": 4.0}))
    zonal.create(1)
    until(lambda: "running" in zonal.cloud.state().values(), 30, what="a running instance")
    machine = zonal.machine(name(1))
    assert machine is not None
    assert machine.phase is Phase.PENDING
    zonal.running(1)


# --- calls ------------------------------------------------------------------------------------------------------------


def test_pools_of_one_zone_read_it_once() -> None:
    specs = [advised(project=PROJECT, name=f"hf-{letter}", zone="us-central1-a") for letter in "abc"]
    with ComputeCloud(specs, speed=2.0) as cloud:
        projects = Projects(Site("demo", "hf"))
        settings = [
            MigPool(name=spec.name, project=PROJECT, zone=spec.zone, group=spec.name, endpoint=cloud.url)
            for spec in specs
        ]
        backends = [MigBackend(pool, projects) for pool in settings]
        for number, backend in enumerate(backends):
            backend.create([Create(name(number), backend.pool, "t", REQUEST)], lambda: True)
        until(lambda: list(cloud.state().values()) == ["running"] * 3, 30)
        snapshots = [backend.observe(1.0 + number, {}) for number, backend in enumerate(backends)]
        assert [list(one.machines) for one in snapshots] == [[name(0)], [name(1)], [name(2)]]
        assert [one.began_at for one in snapshots] == [1.0] * 3, "a snapshot is as old as the oldest list in it"
        paths = Counter(path.rpartition("/")[2] for _, path in cloud.requests)
        assert (paths["instances"], paths["instanceGroupManagers"], paths["listManagedInstances"]) == (1, 1, 3)
        for backend in backends:
            backend.close()


def test_a_snapshot_is_as_old_as_the_oldest_of_the_lists_that_it_shares() -> None:
    first = advised(project=PROJECT, name="hf-1", region="us-central1", zones=("us-central1-a",))
    same_groups = advised(project=PROJECT, name="hf-2", region="us-central1", zones=("us-central1-b",))
    same_instances = advised(project=PROJECT, name="hf-3", zone="us-central1-a")
    specs = (first, same_groups, same_instances)
    with ComputeCloud(specs) as cloud:
        projects = Projects(Site("demo", "hf"))
        backends = [MigBackend(pool(cloud.url, spec, name=spec.name, observe_seconds=30.0), projects) for spec in specs]
        assert [backend.observe(1.0 + number, {}).began_at for number, backend in enumerate(backends)] == [1.0] * 3
        lists = Counter(path.rpartition("/")[2] for _, path in cloud.requests)
        assert (lists["instanceGroupManagers"], lists["instances"]) == (2, 2)
        for backend in backends:
            backend.close()


def test_after_too_many_calls_nothing_is_sent_until_the_window_is_over(zonal: Bench) -> None:
    zonal.restarted(ComputeTimes(window=3.0))
    zonal.observe()
    zonal.cloud.set_faults(Fault("throttled", ".*createInstances", limit=1))
    assert failures(zonal.create(1, 2)) == [ErrorClass.THROTTLED] * 2
    asked = len(zonal.cloud.requests)
    outcomes = zonal.create(1, 2)
    assert failures(outcomes) == [ErrorClass.THROTTLED] * 2
    with pytest.raises(BackendError, match="Compute accepts no more calls"):
        zonal.observe()
    assert len(zonal.cloud.requests) == asked
    until(lambda: not failures(zonal.create(1, 2)), 30, what="the next window")


def test_the_end_of_the_loop_leaves_pages_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the process waits for the threads that read the zones of a region. So these threads must stop reading
    pages."""
    with Bench(REGIONAL) as bench:
        bench.create(*range(1, 31))
        bench.running(30)
        monkeypatch.setattr(api, "PAGE", 1)
        bench.cloud.set_faults(Fault("hang", ".*instances.list", params={"seconds": 1.0}))
        before = bench.calls("instances")
        with ThreadPoolExecutor(1) as thread:
            observation = thread.submit(bench.observe)
            until(lambda: bench.calls("instances") > before, 30, what="the first pages")
            bench.backend.close()
            assert isinstance(observation.exception(), BackendError)
        assert bench.calls("instances") - before <= 2 * len(bench.spec.all_zones)


# --- ends ---------------------------------------------------------------------------------------------------------


def spot(**more: Any) -> MigSpec:
    return advised(project=PROJECT, name="hf-a", zone="us-central1-a", provisioning_model="SPOT", **more)


@pytest.mark.usefixtures("switches")
def test_a_preempted_machine_gives_notice_and_leaves_leftovers_that_are_deleted() -> None:
    with Bench(spot(termination_action="DELETE")) as bench:
        bench.create(1, 2)
        bench.running(2)
        bench.cloud.do(lambda: bench.cloud.groups.preempt([name(1)]))
        stopping = bench.machine(name(1))
        assert stopping is not None
        assert (stopping.phase, stopping.cause) == (Phase.STOPPING, LossCause.PREEMPTED)
        assert stopping.notice is not None
        assert stopping.notice.ends_at == bench.now + 30.0
        if Switches().dead_member_stays:
            gone = until(lambda: _if_gone(bench.machine(name(1))), 30, what="the end")
            assert gone is not None
            assert gone.cause is LossCause.PREEMPTED
            bench.delete(gone)
        until(lambda: list(bench.observe().machines) == [name(2)], 30, what="its leftovers to go")
        assert phases(bench.observe()) == [Phase.RUNNING]


def _if_gone(machine: Machine | None) -> Machine | None:
    return machine if machine and machine.phase is Phase.GONE else None


@pytest.mark.usefixtures("switches")
def test_a_machine_made_again_by_the_group_is_another() -> None:
    with Bench(spot(default_action_on_failure="REPAIR")) as bench:
        bench.create(1)
        first = bench.running(1).machines[name(1)]
        bench.cloud.do(lambda: bench.cloud.groups.preempt([name(1)]))
        until(lambda: bench.cloud.state().get(name(1)) != "running", 30, what="the preemption")
        until(lambda: bench.cloud.state().get(name(1)) == "running", 30, what="the repair")
        again = bench.running(1).machines[name(1)]
        assert first.fingerprint.differs(again.fingerprint)
        assert (first.fingerprint.uid == again.fingerprint.uid) is Switches().recreate_keeps_id


@pytest.mark.usefixtures("switches")
def test_an_instance_deleted_by_others_is_gone_until_it_leaves_the_group(zonal: Bench) -> None:
    zonal.create(1)
    zonal.running(1)
    groups = zonal.cloud.groups
    zonal.cloud.do(lambda: groups.delete_vm(groups.vm(PROJECT, "us-central1-a", name(1))))
    if Switches().dead_member_stays:
        gone = until(lambda: _if_gone(zonal.machine(name(1))), 30, what="the end")
        assert gone is not None
        zonal.delete(gone)
    zonal.empty()


# --- a failed observation is not an empty observation -----------------------------------------------------------------

LOST_OBSERVATIONS = [
    (Fault("partial_list", ".*instances.list"), ErrorClass.UNAVAILABLE),
    (Fault("partial_list", ".*instances.list", params={"kept": 0}), ErrorClass.UNAVAILABLE),
    (Fault("throttled", ".*instances.list"), ErrorClass.THROTTLED),
    (Fault("partial_list", ".*instanceGroupManagers.list"), ErrorClass.UNAVAILABLE),
    (Fault("unavailable", ".*listManagedInstances"), ErrorClass.UNAVAILABLE),
    (Fault("http_error", ".*instances.list", params={"status": 403}), ErrorClass.DENIED),
    (Fault("reset", ".*listManagedInstances"), ErrorClass.UNAVAILABLE),
    (Fault("mig_gone"), ErrorClass.NOT_FOUND),
    (Fault("empty_page", ".*instances.list"), ErrorClass.OTHER),
]


@pytest.mark.parametrize(
    ("fault", "error"),
    LOST_OBSERVATIONS,
    ids=[" ".join([fault.mode, fault.target, *map(str, fault.params.values())]) for fault, _ in LOST_OBSERVATIONS],
)
def test_a_look_that_is_not_complete_fails(zonal: Bench, fault: Fault, error: ErrorClass) -> None:
    zonal.restarted(ComputeTimes(window=0.5))
    zonal.create(1, 2)
    before = zonal.running(2)
    zonal.cloud.set_faults(fault)
    with pytest.raises(BackendError) as raised:
        zonal.observe()
    assert raised.value.failure.error is error
    zonal.cloud.set_faults()
    until(lambda: _machines_or_none(zonal) is before.machines, 30, what="the next complete observation")


def _machines_or_none(bench: Bench) -> object:
    try:
        return bench.observe().machines
    except BackendError:
        return None


def test_a_page_in_the_middle_that_fails_fails_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "PAGE", 2)
    with Bench(ZONAL) as bench:
        bench.create(*range(5))
        bench.running(5)
        bench.cloud.set_faults(Fault("token_expired", ".*instances.list"))
        with pytest.raises(BackendError) as raised:
            bench.observe()
        assert raised.value.failure.error is ErrorClass.INVALID
        bench.cloud.set_faults(Fault("empty_page", ".*instances.list", after=1, limit=1))
        assert len(bench.observe().machines) == 5


def test_a_group_that_was_deleted_with_its_machines_is_empty(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """If complete lists lack the group and its instances, the group was deleted. A restarted backend cannot conclude
    this, because it has no earlier list to compare."""
    bench.create(1, 2)
    bench.running(2)
    groups = bench.cloud.groups
    bench.cloud.do(lambda: [groups.vms.delete(vm) for number in (1, 2) for vm in groups.vms.named(name(number))])
    bench.cloud.set_faults(Fault("mig_gone"))
    with caplog.at_level(logging.WARNING, "provisioner"):
        until(lambda: _machines_or_none(bench) == {}, 30, what="an empty group")
        assert bench.observe().machines == {}
    assert any("the group was deleted" in getattr(record, "problem", "") for record in caplog.records)
    assert set(classes(bench.create(3)).values()) == {ErrorClass.NOT_FOUND}
    bench.restarted()
    with pytest.raises(BackendError, match=r"correct pools\.m, or make the group: gcloud .* counts as lost"):
        bench.observe()
    bench.cloud.set_faults()
    until(lambda: bench.observe().problems == (), 30, what="the group again")


def test_a_group_whose_instances_show_again_was_not_deleted(bench: Bench) -> None:
    """In one observation, the group is not found and the list of instances is empty, so the group counts as deleted.
    The next observation sees the instances again, so it must fail and not count the group as deleted."""
    bench.create(1, 2, 3)
    before = bench.running(3)
    bench.cloud.set_faults(Fault("mig_gone"), Fault("list_lag", ".*instances.list", params={"seconds": 100}))
    assert bench.observe().machines == {}
    bench.cloud.set_faults(Fault("mig_gone"))
    with pytest.raises(BackendError) as raised:
        bench.observe()
    assert raised.value.failure.error is ErrorClass.NOT_FOUND
    bench.cloud.set_faults()
    assert bench.observe().machines == before.machines


def test_a_group_that_seems_to_have_lost_everything_fails_the_look(zonal: Bench) -> None:
    zonal.create(1, 2)
    zonal.running(2)
    zonal.cloud.set_faults(Fault("stockout"), Fault("list_lag", ".*listManagedInstances", params={"seconds": 100}))
    zonal.create(3)
    with pytest.raises(BackendError, match="0 members are listed, but the group counts 3"):
        zonal.observe()


def test_members_that_left_during_a_look_are_not_missed_in_it(zonal: Bench) -> None:
    zonal.create(1, 2)
    zonal.running(2)
    groups = zonal.cloud.groups
    urls = [f"zones/us-central1-a/instances/{name(number)}" for number in (1, 2)]
    zonal.restarted()
    zonal.cloud.set_faults(Fault("hang", ".*listManagedInstances", params={"seconds": 5.0}))
    zonal.cloud.do(lambda: setattr(groups.operations, "timings", replace(TIMINGS, operation=(2.0, 2.0))))
    zonal.cloud.do(lambda: groups.mig(PROJECT, ZONAL.scope, "hf-a").delete(urls, skip_invalid=False))
    assert zonal.observe().machines == {}


@pytest.mark.parametrize(
    ("spec", "page"), [(ZONAL, 500), (REGIONAL, 500), (PAGED, 2)], ids=["zonal", "regional", "a part of it"]
)
def test_a_list_that_lacks_members_that_run_fails_also_the_first_look(
    spec: MigSpec, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first observation after a restart has no earlier list to compare. It must fail nevertheless if the list lacks
    running members, because the group's own count is higher."""
    monkeypatch.setattr(api, "PAGE", page)
    with Bench(spec) as bench:
        bench.create(1, 2, 3)
        before = bench.running(3)
        bench.restarted()
        fault = "moved_page" if page < 3 else "list_lag"
        bench.cloud.set_faults(Fault(fault, ".*listManagedInstances", params={"seconds": 100}))
        for _ in range(2):
            with pytest.raises(BackendError, match="members are listed, but the group counts 3"):
                bench.observe()
        bench.cloud.set_faults()
        assert bench.observe().machines == before.machines


def test_members_that_are_being_made_may_be_listed_late(zonal: Bench) -> None:
    """The lists of a group may lag behind the creates that it has just accepted. So a list without these members is no
    failure, also for a restarted loop."""
    zonal.cloud.set_faults(Fault("stockout"), Fault("list_lag", ".*listManagedInstances", params={"seconds": 100}))
    zonal.create(1, 2)
    assert zonal.observe().machines == {}
    zonal.restarted()
    assert zonal.observe().machines == {}


@pytest.mark.parametrize(
    "body",
    [
        b"<html>sign in</html>",
        b"{}",
        b'{"kind": "compute#instanceGroupManager", "versions": 3}',
        b'{"kind": "compute#instanceGroupManager", "curr',
    ],
)
def test_a_response_of_another_shape_fails_the_look(body: bytes) -> None:
    with OddServer(body) as address:
        backend = MigBackend(pool(address), Projects(Site("demo", "hf")))
        with pytest.raises(BackendError) as raised:
            backend.observe(1.0, {})
        assert raised.value.failure.error in (ErrorClass.UNAVAILABLE, ErrorClass.OTHER)
        response = failures(backend.create(creates(1), lambda: True))
        assert response == [ErrorClass.UNAVAILABLE], "it may have been done"
        backend.close()


def test_a_list_that_names_places_which_it_could_not_reach_is_no_list() -> None:
    with OddServer(b'{"kind": "compute#instanceGroupManagerList", "unreachables": ["zones/us-central1-a"]}') as address:
        backend = MigBackend(pool(address), Projects(Site("demo", "hf")))
        with pytest.raises(BackendError, match="partial answer, unreachable"):
            backend.observe(1.0, {})
        backend.close()


@pytest.mark.parametrize("body", [b"[]", b'{"managedInstances": [3]}'])
def test_a_response_of_another_shape_fails_a_delete(body: bytes) -> None:
    with OddServer(body) as address:
        backend = MigBackend(pool(address), Projects(Site("demo", "hf")))
        assert len(failures(backend.delete([Delete(name(1), "m", DeleteReason.RETURNED)], lambda: True))) == 1
        backend.close()


def test_a_response_that_drips_ends_with_its_time_not_with_its_last_byte() -> None:
    with OddServer(b" " * 1000, pause=0.1) as address:
        backend = MigBackend(pool(address), Projects(Site("demo", "hf"), times=ComputeTimes(call=1.0)))
        with pytest.raises(BackendError) as raised:
            backend.observe(1.0, {})
        assert raised.value.failure.error is ErrorClass.TIMEOUT
        assert "instanceGroupManagers: no complete response within 1 s" in raised.value.failure.text
        backend.close()


def test_a_create_whose_response_drips_ends_with_its_time() -> None:
    """A create whose response comes byte by byte must end when the time of the call is over. Until then, its pool
    neither creates nor deletes anything."""
    with OddServer(b" " * 1000, pause=0.1) as address:
        backend = MigBackend(pool(address), Projects(Site("demo", "hf"), times=ComputeTimes(call=1.0)))
        assert failures(backend.create(creates(1), lambda: True)) == [ErrorClass.TIMEOUT]
        backend.close()


def test_observations_keep_their_connections(zonal: Bench) -> None:
    zonal.observe()
    pools = zonal.backend._project.api._session.get_adapter(zonal.cloud.url).poolmanager.pools
    (key,) = pools.keys()
    connections = pools[key]
    before = connections.num_requests
    for _ in range(5):
        zonal.observe()
    assert connections.num_requests >= before + 10
    assert connections.num_connections <= 2


def test_a_group_of_the_same_name_in_another_zone_of_the_region_is_none_of_ours() -> None:
    with Bench(REGIONAL) as bench:
        bench.create(1, 2, 3)
        before = bench.running(3).machines
        vms = bench.cloud.groups.vms
        ours = {name(number): vms.named(name(number))[0].zone for number in (1, 2, 3)}
        for zone in REGIONAL.all_zones:
            for one in [one for one, own in ours.items() if own != zone]:
                bench.cloud.do(lambda zone=zone, one=one: vms.insert(REGIONAL, zone, one))
        assert bench.observe().machines == before
        bench.restarted()
        assert bench.observe().machines == before


def test_a_member_outside_the_zones_that_the_group_names_is_seen() -> None:
    """A member must be seen even if its zone is no longer one of the zones of the group's distribution policy."""
    with Bench(REGIONAL) as bench:
        bench.create(1)
        before = bench.running(1).machines[name(1)]
        (own,) = {vm.zone for vm in bench.cloud.groups.vms.named(name(1))}
        group = bench.cloud.groups.mig(PROJECT, REGIONAL.scope, REGIONAL.name)
        others = tuple(zone for zone in REGIONAL.all_zones if zone != own)
        bench.cloud.do(lambda: setattr(group, "spec", replace(group.spec, zones=others)))
        bench.restarted()
        until(lambda: bench.machine(name(1)) == before, 30, what="its zone is listed, too")


def test_a_bad_key_file_makes_the_pool_unobservable_and_nothing_worse(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    backend = MigBackend(pool("https://127.0.0.1:9", credentials=key), Projects(Site("demo", "hf")))
    with pytest.raises(BackendError) as raised:
        backend.observe(1.0, {})
    assert raised.value.failure.error is ErrorClass.DENIED
    assert "key.json" in raised.value.failure.text
    assert failures(backend.create(creates(1), lambda: True)) == [ErrorClass.DENIED]
    backend.close()


# --- what others do to the group ---------------------------------------------------------------------------------


def test_members_that_are_taken_over_from_another_provider_are_no_problem(zonal: Bench) -> None:
    zonal.restarted(adopt_prefixes=("hf-a-",))
    group = zonal.cloud.groups.mig(PROJECT, "zones/us-central1-a", "hf-a")
    zonal.cloud.do(lambda: group.resize(2))
    until(lambda: len(zonal.cloud.state()) == 2, 30, what="two members with the group's own names")
    assert zonal.observe().problems == ()
    assert not any("not ours" in finding.text for finding in zonal.backend.check(10.0))


def test_our_own_deletes_are_no_losses(zonal: Bench, caplog: pytest.LogCaptureFixture) -> None:
    zonal.create(1, 2)
    snapshot = zonal.running(2)
    with caplog.at_level(logging.WARNING, "provisioner"):
        zonal.delete(*snapshot.machines.values())
        zonal.empty()
    assert caplog.records == []


# --- the group's own settings -------------------------------------------------------------------------------------


def test_settings_that_will_go_wrong_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    spec = advised(project=PROJECT, name="hf-a", zone="us-central1-a", update_type="PROACTIVE")
    with Bench(spec) as bench, caplog.at_level(logging.WARNING, "provisioner"):
        bench.observe()
        bench.backend._observer.expect_change()  # the members are listed again
        bench.observe()
        assert [getattr(record, "problem", "")[:26] for record in caplog.records] == ["PLACE: its updatePolicy is"]
        assert failures(bench.create(1)) == [ErrorClass.INVALID]


def test_an_endpoint_with_or_without_path_is_the_same() -> None:
    with ComputeCloud([ZONAL]) as cloud:
        for endpoint in (cloud.host, cloud.host + "/", cloud.url, cloud.url.rstrip("/")):
            backend = MigBackend(pool(endpoint), Projects(Site("demo", "hf")))
            assert backend.observe(1.0, {}).machines == {}
            backend.close()
