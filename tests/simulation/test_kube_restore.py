"""etcd is restored from an older snapshot while a loop runs. The brake must latch, and no machine may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from provisioner.model import BrakeReason
from provisioner.state.kube.objects import REQUESTS, STATES, item
from provisioner.state.kube.state import KubeState
from tests.simulation.simulation import LIMITS, PROVISIONER, Simulation
from tests.simulation.stores import KubeStore
from tests.support.kube_state_server import MemoryApiServer, ObjectServer


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with closing(Simulation(store=KubeStore)) as sim:
        sim.request("pods", 2)
        sim.run(300.0, 15)
        sim.poll_all()
        sim.cycle()
        yield sim


def server_of(sim: Simulation) -> ObjectServer:
    assert isinstance(sim.store, KubeStore)
    return sim.store.server


def brake(sim: Simulation) -> BrakeReason | None:
    memory = sim.memory()
    assert memory is not None
    return memory.brake.reason if memory.brake else None


@pytest.mark.parametrize("bump", [0, 1_000_000])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_request_that_a_restore_loses_keeps_its_machines(sim: Simulation, bump: int, restarted: bool) -> None:
    server = server_of(sim)
    old = server.snapshot()
    sim.request("pods", 2)
    sim.run(300.0, 15)
    sim.poll_all()
    sim.cycle()
    machines = set(sim.machines())
    assert len(machines) == 4
    lost = list(sim.requests)[-1]
    server.restore(old, bump=bump)
    sim.judge.note_lost_files(["intent", "memory", "status"])
    if restarted and not bump:
        sim.cycle()
        sim.restart()
    for _ in range(20):
        sim.advance(60.0)
        sim.list_hosts()
        sim.cycle()
    assert brake(sim) is not None
    assert set(sim.machines()) == machines
    sim.recover()
    sim.cycle()
    assert brake(sim) is None
    sim.cycle()
    assert server.answer("GET", item("hf", STATES, PROVISIONER))["status"]["brake"] == ""
    assert server.answer("GET", item("hf", REQUESTS, lost))["spec"]["count"] == 2
    sim.poll_all()
    assert set(sim.machines()) == machines
    sim.settle()


def test_a_return_that_a_restore_loses_is_not_given_up_while_an_operator_recovers(sim: Simulation) -> None:
    """If a restore loses a return request of machines that are gone, the loop must not give up the return request. HF
    would otherwise keep these machines, because a machine that HF has returned is not reported as lost."""
    server = server_of(sim)
    old = server.snapshot()
    sim.return_all()
    sim.run(300.0, 15)
    assert sim.machines() == {}
    server.restore(old)
    sim.judge.note_lost_files(["intent", "memory", "status"])
    sim.cycle()
    assert brake(sim) is BrakeReason.INTENT_OLDER
    sim.poll_all()
    assert [*sim.returns.values()] == [None], "the return is not answered yet"
    sim.settle()
    assert sim.judge.hosts() == set()


@pytest.mark.parametrize("lists", [True, False])
def test_a_restore_while_no_loop_runs_costs_hf_no_machine(sim: Simulation, lists: bool) -> None:
    """If etcd is restored while no loop runs, HF must keep all of its machines. The next loop starts on another host,
    whose disk has no note of a newer generation. So no note can show that the restored state is old."""
    server = server_of(sim)
    old = server.snapshot()
    sim.request("pods", 3)
    sim.run(600.0, 15)
    sim.poll_all()
    sim.cycle()
    machines = set(sim.machines())
    assert len(machines) == 5
    server.restore(old)
    sim.judge.note_lost_files(["intent", "memory", "status"])
    sim.judge.wiped = True
    sim.hf = sim.store.hf = KubeState(MemoryApiServer(server), PROVISIONER)
    if lists:
        sim.list_hosts()
    sim.restart()
    for _ in range(60):
        sim.advance(60.0)
        if lists:
            sim.list_hosts()
        sim.cycle()
    assert set(sim.machines()) == machines
    assert brake(sim) is (None if lists else BrakeReason.MEMORY_OLDER), "a machine that HF lists is no orphan"


def test_a_restore_of_requests_that_have_left_memory_ends_in_brakes_to_release(sim: Simulation) -> None:
    """If the restored requests have already left memory, their answers contradict memory. The loop must then latch
    brakes that an operator sees and can release."""
    server = server_of(sim)
    old = server.snapshot()
    sim.return_all()
    sim.run(300.0, 15)
    sim.poll_all()
    sim.run(LIMITS.retention_seconds + 1200.0, 60)
    memory = sim.memory()
    assert memory is not None
    assert not memory.requests
    server.restore(old)
    sim.judge.note_lost_files(["intent", "memory", "status"])
    for _ in range(3):
        sim.advance(60.0)
        sim.cycle()
    reasons = [brake(sim)]
    for _ in range(2):
        sim.recover()
        sim.run(60.0, 15)
        reasons.append(brake(sim))
    assert reasons == [BrakeReason.INTENT_OLDER, BrakeReason.MEMORY_OLDER, None]
    sim.settle()
