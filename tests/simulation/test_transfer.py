"""Copies of a whole state from files into a Kubernetes API and back. Some copies are interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.lab.cloud.world import World
from provisioner.model import HoldKind, Memory, Moment
from provisioner.state.directory import StateDir
from provisioner.state.errors import Condition, LockTimeout, StateExists, StateMissing
from provisioner.state.kube.objects import leases
from provisioner.state.kube.script_state import KubeScriptState
from provisioner.state.kube.state import KubeState
from provisioner.state.kube.transfer import copy_state
from tests.simulation.lost_files import three_requests
from tests.simulation.simulation import PROVISIONER, Simulation
from tests.support.kube_state_server import Call, MemoryApiServer, ObjectServer, Refusal


class Killed(BaseException):
    """Exception that stands for the end of a killed process."""


@pytest.fixture
def sim() -> Iterator[Simulation]:
    """Yield a simulation on files with open and ended requests, a return, a hold and lost machines."""
    made = three_requests()
    made.set_hold(HoldKind.PAUSE, "mig-a")
    names = sorted(made.machines())
    made.return_machines(names[:1])
    made.cycle()
    made.hf.note_shown({"wide": 7})
    yield made
    made.close()


class Api:
    """An API server, which keeps the copied state in memory."""

    def __init__(self) -> None:
        self.server = ObjectServer("hf", World().wall)

    def state(self, kill_after: int = -1) -> KubeState:
        """Return the state for another process. ``kill_after``: the number of changes after which the process is
        killed; -1 for never."""
        api, left = MemoryApiServer(self.server), [kill_after]

        def count(call: Call) -> None:
            if call.method != "GET":
                if not left[0]:
                    raise Killed
                left[0] -= 1

        api.before = count
        return KubeState(api, PROVISIONER)

    def scripts(self) -> KubeScriptState:
        return KubeScriptState(MemoryApiServer(self.server), PROVISIONER)


def content(memory: Memory) -> Memory:
    """Return a memory without the epoch and the time of its last write."""
    return replace(memory, epoch=0, written=Moment())


def assert_same(ours: StateDir | KubeState, theirs: StateDir | KubeState) -> None:
    """Assert that both states have the same content."""
    assert content(ours.memory.read()) == content(theirs.memory.read())
    assert ours.intent.read().requests == theirs.intent.read().requests
    assert ours.intent.read().returns == theirs.intent.read().returns
    assert ours.terminal_answers.answers() == theirs.terminal_answers.answers()
    assert ours.terminal_answers.ids() == theirs.terminal_answers.ids()
    assert ours.status.read_all() == theirs.status.read_all()
    assert {**ours.status.read_lost()} == {**theirs.status.read_lost()}
    assert ours.holds.read() == theirs.holds.read()


def test_a_state_moves_to_the_server_and_back(sim: Simulation, tmp_path: Path) -> None:
    api, files = Api(), StateDir(sim.store.directory)
    copied = copy_state(files, api.state())
    assert copied == (len(sim.requests), 1, len(files.terminal_answers.ids()))
    assert copied.answers > 0
    assert_same(files, api.state())
    ids = [*files.intent.read().requests, *files.intent.read().returns]
    assert api.scripts().poll(ids).answers == files.poll(ids).answers
    assert api.scripts().note_shown({"wide": 5})[0] == {"wide": 7}
    assert copy_state(api.state(), StateDir(tmp_path)) == copied
    assert_same(StateDir(tmp_path), files)
    assert StateDir(tmp_path).note_shown({"wide": 5})[0] == {"wide": 7}
    assert StateDir(tmp_path).memory.condition() is Condition.FINE
    assert StateDir(tmp_path).memory.read().epoch > api.state().memory.read().epoch > files.memory.read().epoch


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_interrupted_copy_is_finished_by_the_next(sim: Simulation, *, is_lost: bool) -> None:
    """``is_lost``: True if the source has no memory, so that the copy has none either."""
    if is_lost:
        sim.lose(["memory"], restarted=False)
    files = StateDir(sim.store.directory)
    for kill_after in range(100):
        api = Api()
        try:
            copy_state(files, api.state(kill_after))
        except Killed:
            with suppress(StateMissing):  # no file was written
                assert api.state().intent.read().requests.keys() <= files.intent.read().requests.keys()
                is_empty = not api.state().intent.read().requests
                condition = Condition.MISSING if is_lost else Condition.FINE
                assert is_empty or api.state().memory.condition() is condition, (
                    "else a loop would take it for a new one"
                )
            with suppress(Refusal):  # the killed process's Lease would run out
                api.server.answer("DELETE", f"{leases('hf')}/{PROVISIONER}.loop")
            copy_state(files, api.state())
            if is_lost:
                assert api.state().memory.condition() is Condition.MISSING
                assert api.state().intent.read().requests == files.intent.read().requests
                assert api.state().status.read_all() == files.status.read_all()
            else:
                assert_same(files, api.state())
        else:
            assert kill_after > 10
            return
    raise AssertionError("the copy takes more than 100 changes")


def test_another_state_is_not_overwritten(sim: Simulation, tmp_path: Path) -> None:
    api, files = Api(), StateDir(sim.store.directory)
    copy_state(files, api.state())
    sim.cycle()
    sim.request("pods", 1)
    sim.cycle()
    with pytest.raises(StateExists, match="has another state already"):
        copy_state(files, api.state())
    with pytest.raises(StateExists, match="has another state already"):
        copy_state(api.state(), files)


def test_requests_are_copied_although_no_loop_has_run(tmp_path: Path) -> None:
    files, api = StateDir(tmp_path), Api()
    files.intent.create(PROVISIONER)
    id_ = files.record_request(PROVISIONER, "pods", 2, created_wall=1.0, rc_account="").id
    assert copy_state(files, api.state()) == copy_state(files, api.state()) == (1, 0, 0)
    assert api.state().intent.read().requests[id_].count == 2


def test_a_lost_namespace_is_restored_on_the_host_of_its_loop(sim: Simulation, tmp_path: Path) -> None:
    """The host's note of a generation shows that there was a memory, but the namespace has no object any more."""
    files, api, local = StateDir(sim.store.directory), Api(), str(tmp_path)
    loop = KubeState(MemoryApiServer(api.server), PROVISIONER, local)
    for epoch in range(1, 6):
        loop.memory.write(Memory(PROVISIONER, epoch))
    empty = ObjectServer("hf", World().wall)
    assert KubeState(MemoryApiServer(empty), PROVISIONER, local).memory.condition() is Condition.MISSING
    copy_state(files, KubeState(MemoryApiServer(empty), PROVISIONER, local))
    restored = KubeState(MemoryApiServer(empty), PROVISIONER, local)
    assert restored.memory.condition() is Condition.FINE
    assert_same(files, restored)


def test_lost_memory_stays_lost(sim: Simulation, tmp_path: Path) -> None:
    """Otherwise the next loop would count as the first one, latch no brake, and delete the machines as orphans."""
    sim.lose(["memory"], restarted=False)
    files, api = StateDir(sim.store.directory), Api()
    assert files.memory.condition() is Condition.MISSING
    copy_state(files, api.state())
    assert api.state().memory.condition() is Condition.MISSING
    copy_state(api.state(), StateDir(tmp_path))
    assert StateDir(tmp_path).memory.condition() is Condition.MISSING


def test_a_running_loop_is_not_disturbed(sim: Simulation) -> None:
    api, files = Api(), StateDir(sim.store.directory)
    assert StateDir(sim.store.directory).loop_lock.acquire(0)
    with pytest.raises(LockTimeout, match="a loop or a restore works on this state"):
        copy_state(files, api.state())


def test_an_old_copy_stays_one(sim: Simulation, tmp_path: Path) -> None:
    sim.keep_copies()
    sim.advance(10.0)
    sim.request("pods", 2)
    sim.cycle()
    sim.lose(["memory"], put_back=True, restarted=False)
    files, api = StateDir(sim.store.directory), Api()
    assert files.memory.condition() is Condition.OLDER
    copy_state(files, api.state())
    assert api.state().memory.condition() is Condition.OLDER
    copy_state(api.state(), StateDir(tmp_path))
    assert StateDir(tmp_path).memory.condition() is Condition.OLDER
