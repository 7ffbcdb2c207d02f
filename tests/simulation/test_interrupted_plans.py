"""Interrupted plans: the loop dies after some of a plan's actions, and is started again. All wanted machines must then
run (law: recorded before acted).

Each plan is interrupted after each possible number of actions, in a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from provisioner.lab.virtual.run import Provisioner, Stage
from provisioner.lab.virtual.scenario import Scenario
from provisioner.lab.virtual.scenario_file import scenarios
from provisioner.lab.virtual.state import VirtualState
from provisioner.loop.batch_threads import Batch
from provisioner.loop.cycle_report import SupersededError
from provisioner.model import Create
from tests.simulation.stores import VirtualKubeState
from tests.simulation.watched import Watched

SCENARIOS: Mapping[str, dict[str, Any]] = {
    "step": {
        "about": "More are wanted than may be tried at once.",
        "pools": {"a": {"boot_seconds": 30, "initial_window": 5}},
        "demand": [{"machines": 40}],
    },
    "drop": {
        "about": "Nothing is wanted any more while a part still boots.",
        "pools": {"a": {"boot_seconds": 40, "boot_p95_seconds": 120, "machines_per_call": 3}},
        "demand": [{"machines": 20, "for_minutes": 2}],
        "hostfactory": {"batch": 6},
    },
    "faults": {
        "about": "Machines fail, die and are deleted, answers are lost, lists lag, and the first pool has little room.",
        "pools": {
            "a": {"boot_seconds": 20, "capacity": 3, "lost_answers": 0.3},
            "b": {"boot_seconds": 30, "boot_failures": 0.3, "appears_seconds": 5, "lag_seconds": 10, "watched": False},
        },
        "demand": [{"machines": 8}, {"machines": 4, "at_minutes": 6, "for_minutes": 6}],
        "events": [{"at_minutes": 4, "do": "kill", "share": 0.4}, {"at_minutes": 10, "do": "remove", "share": 0.4}],
    },
}
"""Scenarios of half an hour each."""

KUBE = "Kubernetes"

UNCOUNTED = 20.0
"""Seconds of a machine that usage may miss or add: a minute while it waits for room, and between two observations."""

RESTARTS_AFTER = 1.0
"""Seconds for which no loop runs."""


class Interrupted(Provisioner):
    """A provisioner whose loop dies once: in a chosen plan, after a chosen number of its actions."""

    def __init__(self, stage: Stage, store: str, plan: int, done: int) -> None:
        self._plan, self._left = plan, done
        self._planned_at = -1.0
        self.sizes: list[int] = []
        """The number of actions of each plan."""
        state: Any = VirtualKubeState(stage.world) if store == KUBE else VirtualState(stage.world.seed)
        self._reopen: Callable[[], None] = state.open if store == KUBE else lambda: None
        super().__init__(stage, state)
        self._submit, self.loop.actors.submit = self.loop.actors.submit, self._carry_out

    def _carry_out(self, batch: Batch, may_start: Callable[[], bool]) -> None:
        """Carry out one pool's part of a plan."""
        if self._world.now != self._planned_at:
            self._planned_at = self._world.now
            self.sizes.append(0)
        self.sizes[-1] += len(batch.deletes) + len(batch.creates)
        if len(self.sizes) - 1 == self._plan:
            self._die_in(batch)
        else:
            self._submit(batch, may_start)

    def _die_in(self, batch: Batch) -> None:
        """Carry out the first actions of the batch, until the plan has completed the chosen number. Then end the loop
        as if a newer loop had taken over."""
        backend, actions = self.loop.backends[batch.pool], (*batch.deletes, *batch.creates)
        for action in actions[: self._left]:
            _ = backend.create([action], bool) if isinstance(action, Create) else backend.delete([action], bool)
        self._left -= len(actions)
        if self._left <= 0:
            self._world.after(RESTARTS_AFTER, partial(self._restart, self._reopen))
            raise SupersededError


def reported(name: str) -> Scenario:
    """Return the scenario of this name. It lasts half an hour, unless it sets another length."""
    return scenarios({name: {"hours": 0.5, **SCENARIOS[name]}}, "tests")[name]


def plans(scenario: Scenario, store: str) -> list[int]:
    """Play the scenario without an interruption. Return the number of actions of each plan."""
    runs: list[Interrupted] = []

    def begin(stage: Stage) -> Interrupted:
        runs.append(Interrupted(stage, store, plan=-1, done=0))
        return runs[0]

    run = Watched(scenario, 1, begin)
    assert_sound(run)
    return runs[0].sizes


def prefixes(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the interruptions to play. Each is the number of a plan, and the number of its actions that the loop
    completes before it dies. Each plan occurs with each possible number of actions."""
    return [(plan, done) for plan, size in enumerate(sizes) for done in range(size + 1)]


def assert_sound(run: Watched) -> None:
    """Check that no law was broken, that all wanted machines run, and that no other machines exist."""
    assert not run.broken, run.broken
    assert not run.brake()
    assert not run.missing(), f"{run.missing()} are missing"
    assert not run.left(), f"{sorted(run.left())} are left"
    assert not run.calls_at_last()
    assert run.miscounted() < UNCOUNTED


def play_interrupted(name: str, store: str, most: int) -> None:
    """Play a scenario once for each of its ``prefixes``. If there are more than ``most``, play evenly spaced ones."""
    scenario = reported(name)
    sizes = plans(scenario, store)
    every = prefixes(sizes)
    for plan, done in every[:: -(-len(every) // most)]:
        print(f"{name}: dies after {done} of {sizes[plan]} actions of plan {plan}")
        assert_sound(Watched(scenario, 1, partial(Interrupted, store=store, plan=plan, done=done)))


@pytest.mark.parametrize(
    ("store", "most"),
    [
        ("files", 12),
        pytest.param("files", 10**6, id="files-any", marks=pytest.mark.slow),
        (KUBE, 4),
        pytest.param(KUBE, 24, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", SCENARIOS)
def test_wanted_machines_run_after_a_prefix(name: str, store: str, most: int) -> None:
    play_interrupted(name, store, most)
