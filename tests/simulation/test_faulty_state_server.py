"""The state in the Kubernetes API, with faults at any call.

The process dies, responses are lost, and calls are refused. A loop is cut off, and another takes over. etcd gets an old
snapshot. No machine may be doubled or leaked, and no terminal answer may change. A failure names its seed.
``STATE_SEED=N pytest -k faulty_state_server`` plays that seed again.
"""

from __future__ import annotations

import os
import random
import tempfile
from contextlib import closing, suppress
from typing import Any

import pytest

from provisioner.loop.cycle_report import SupersededError
from provisioner.model import ErrorClass, Failure, HoldKind
from provisioner.state.errors import StateError
from provisioner.state.kube.state import KubeState
from provisioner.state.protocols import State
from tests.simulation.simulation import EXPECTED, PROVISIONER, Simulation, crash
from tests.simulation.stores import RAM, Burn, KubeStore
from tests.support.clouds.direct import Mishap
from tests.support.kube_state_server import Call, MemoryApiServer

FIRST = int(os.environ.get("STATE_SEED", "0"))
BATCH = 10
SEEDS = [pytest.param(first, marks=[pytest.mark.slow] * (first > 0)) for first in range(0, 200, BATCH)]
STEPS = 60
MISHAPS = [
    *[Mishap(Failure(error, "on purpose")) for error in (ErrorClass.QUOTA, ErrorClass.STOCKOUT, ErrorClass.OTHER)],
    *[Mishap(Failure(ErrorClass.TIMEOUT, "no answer"), after) for after in (None, 0.0, 7.0)],
]


class FaultyStore(KubeStore):
    """An API server whose responses to the loop fail by chance."""

    lists_always = True
    chance = random.Random()
    storm: tuple[int, ...] = ()
    """Statuses of the present storm; 0 for no answer."""
    share = 0.0
    """Share of the calls that fail."""
    is_cut_off = False
    """True while the loop cannot reach the server."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._local = tempfile.TemporaryDirectory(dir=RAM if os.path.isdir(RAM) else None, prefix="simulation-")
        self.local = self._local.name

    def close(self) -> None:
        self._local.cleanup()

    def open(self, burn: Burn) -> State:
        state: Any = super().open(burn)
        api: MemoryApiServer = state._api

        def before(call: Call) -> int | None:
            burn(f"before {call.method} {call.path}")
            return self._fault(call)

        def after(call: Call) -> int | None:
            burn(f"after {call.method} {call.path}")
            return 0 if self._fault(call) == 0 else None

        api.before, api.after = before, after
        return state  # type: ignore[no-any-return]

    def _fault(self, call: Call) -> int | None:
        if self.is_cut_off:
            return 0
        if self.storm and self.chance.random() < self.share:
            status = self.chance.choice(self.storm)
            if status != 409 or call.method in ("PUT", "PATCH"):
                return status
        return None


class FaultySimulation(Simulation):
    """A simulation on a ``FaultyStore``. A loop that ends with an error is started again, as a supervisor does."""

    store: FaultyStore
    expected = (
        *EXPECTED,
        "no usable response",
        "came before ours",
        "a test demands",
        "is unknown",
        "is rebuilt after a second observation",
    )

    def __init__(self, seed: int) -> None:
        super().__init__(seed, store=FaultyStore)
        self.store.chance = random.Random(seed)

    def cycle(self, **blind: Any) -> None:
        try:
            super().cycle(**blind)
        except (StateError, SupersededError):
            self.fuse.put_out()
            self.restart()

    def restart(self) -> None:
        calm = self.store.storm, self.store.is_cut_off
        self.calm()  # it would only wait
        super().restart()
        self.store.storm, self.store.is_cut_off = calm

    def calm(self) -> None:
        """End the faults of the server."""
        self.store.storm, self.store.is_cut_off = (), False

    def ghost_cycle(self) -> None:
        with suppress(StateError):
            super().ghost_cycle()

    def restore(self, snapshot: Any, *, bump: int, restarted: bool) -> None:
        """Bring etcd back from a snapshot. If ``restarted``, start the loop again afterwards. Otherwise the loop runs
        on without a restart."""
        self.judge.note_lost_files(["intent", "memory", "status"])
        self.judge.wiped = True  # all of the state is old, also the answers that HF has read
        self.ghosts = []
        self.store.server.restore(snapshot, bump=bump)
        self.hf = self.store.hf = KubeState(MemoryApiServer(self.store.server), PROVISIONER, self.store.local)
        if restarted:
            self.restart()


class Driver:
    """HF, the cloud and the server's operators, who act by chance."""

    def __init__(self, seed: int) -> None:
        self.sim = FaultySimulation(seed)
        self.chance = self.sim.store.chance
        self._snapshot: Any = None
        self._is_restored = seed % 5 != 0
        """True once etcd was brought back; in four of five runs it never is."""

    def play(self) -> None:
        sim, chance = self.sim, self.chance
        sim.request(chance.choice(["wide", "pods", "vms"]), chance.randrange(1, 7))
        sim.cycle()
        acts = [self.request, sim.poll_all, self.return_some, sim.list_hosts, self.disturb, self.storm, self.cut_off]
        acts += [self.die, self.die, self.hf_meanwhile, self.take_over, self.restore, self.mishap, self.work, self.work]
        acts += [sim.ghost_cycle, self.operator, self.slowly]
        for _ in range(STEPS):
            chance.choice(acts)()
            sim.cycle()
        sim.calm()
        sim.settle()

    def request(self) -> None:
        if len(self.sim.requests) < 5:
            self.sim.request(self.chance.choice(["wide", "pods", "vms"]), self.chance.randrange(1, 7))

    def return_some(self) -> None:
        hosts = sorted(self.sim.judge.hosts())
        if hosts:
            self.sim.return_machines(self.chance.sample(hosts, self.chance.randint(1, len(hosts))))

    def disturb(self) -> None:
        if names := sorted(self.sim.machines()):
            self.chance.choice([self.sim.vanish, self.sim.recreate, lambda name: self.sim.preempt([name])])(
                self.chance.choice(names)
            )

    def storm(self) -> None:
        store = self.sim.store
        store.storm = self.chance.choice([(), (409,), (429,), (503, 500), (0,), (0, 409, 429, 503)])
        store.share = self.chance.choice([0.1, 0.5, 1.0])
        for _ in range(3):
            self.sim.advance(10.0)
            self.sim.cycle()
        store.storm = store.storm if self.chance.random() < 0.2 else ()

    def cut_off(self) -> None:
        """Cut the loop off from its state in the middle of a cycle. The loop can still reach the cloud."""
        self.sim.fuse.light(self.chance.randint(1, 30), lambda _: setattr(self.sim.store, "is_cut_off", True))
        for _ in range(3):
            self.sim.cycle()
            self.sim.advance(20.0)
        self.sim.store.is_cut_off = False

    def die(self) -> None:
        self.sim.fuse.light(self.chance.randint(1, 60), crash)

    def hf_meanwhile(self) -> None:
        act = self.chance.choice([self.sim.poll_all, self.sim.list_hosts, self.sim.return_all])
        self.sim.fuse.light(self.chance.randint(1, 40), lambda _: act())

    def slowly(self) -> None:
        if ids := sorted(self.sim.requests):
            self.sim.poll(self.chance.choice(ids), self.sim.cycle)

    def take_over(self) -> None:
        self.sim.take_over()
        self.sim.ghost_cycle()

    def restore(self) -> None:
        if self._is_restored:
            return
        if self._snapshot is None:
            self._snapshot = self.sim.store.server.snapshot()
            return
        self.sim.restore(self._snapshot, bump=self.chance.choice([0, 1_000_000]), restarted=self.chance.random() < 0.5)
        self._is_restored = True

    def mishap(self) -> None:
        self.sim.lines[self.chance.choice(["alpha", "beta", "gamma"])].mishaps.append(self.chance.choice(MISHAPS))

    def work(self) -> None:
        self.sim.run(self.chance.choice([60.0, 300.0, 900.0]), 4)

    def operator(self) -> None:
        if self.chance.random() < 0.5:
            self.sim.set_hold(HoldKind.PAUSE, self.chance.choice(["alpha", "beta", "gamma"]))
        else:
            self.sim.release_holds()


def play(seed: int) -> str:
    """Play a run. Return the error that ended it; empty if there was none."""
    try:
        driver = Driver(seed)
        with closing(driver.sim):
            driver.play()
    except (AssertionError, StateError, SupersededError) as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


@pytest.mark.parametrize("first", SEEDS)
def test_no_fault_doubles_or_leaks_a_machine_or_changes_a_terminal_answer(first: int) -> None:
    found = {seed: broken for seed in ([FIRST] if FIRST else range(first, first + BATCH)) if (broken := play(seed))}
    assert not found, f"STATE_SEED={min(found)} plays the first again: {found}"
