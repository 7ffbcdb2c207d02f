"""Machines that HF has and that do not run. A container ends, crashes again and again, or is not ready for a while."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.simulation.simulation import Simulation

SEEDS = 300
PARTS = 30
"""The number of tests that share the seeds. All but the first test are slow."""

ENDED, CRASHING, UNREADY = "ended", "crashing", "unready"


@pytest.fixture
def sims() -> Iterator[list[Simulation]]:
    reported: list[Simulation] = []
    yield reported
    for sim in reported:
        sim.close()


def _states(how: str, chance: random.Random) -> Mapping[str, Any]:
    """Return the fields of the worker container's status that show this fault."""
    ended = {
        "terminated": {"exitCode": chance.choice([0, 1, 137]), "reason": chance.choice(["Completed", "OOMKilled"])}
    }
    if how == ENDED:
        return {"state": ended}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    return {"state": waiting, "lastState": ended, "restartCount": 14} if how == CRASHING else {}


class Trouble:
    """Breaks the containers of pods, and fixes them."""

    def __init__(self, sim: Simulation, chance: random.Random) -> None:
        self._sim, self._chance = sim, chance
        self.broken: dict[str, str] = {}

    def strike(self, name: str) -> None:
        """Break the worker container of a running pod in a random way. A sidecar beside it runs on."""
        how = self._chance.choice([ENDED, CRASHING, UNREADY])
        for pod in self._running(name):
            worker, *_ = pod.document["status"]["containerStatuses"]
            sidecar = {**worker, "name": "mesh-proxy"}
            self._show(pod, "False", [{**worker, "ready": False, **_states(how, self._chance)}, sidecar])
            self.broken[name] = how
            self._sim.judge.disturbed.add(name)

    def fix(self) -> None:
        """Make pods ready again, except the pods whose container has ended or crashes again and again."""
        for name in [name for name, how in self.broken.items() if how == UNREADY]:
            del self.broken[name]
            for pod in self._running(name):
                self._show(pod, "True", [{**one, "ready": True} for one in pod.document["status"]["containerStatuses"]])

    def _running(self, name: str) -> list[Any]:
        return self._sim.cluster.pods.select(
            "", lambda pod: pod.name == name and pod.document["status"].get("phase") == "Running"
        )

    def _show(self, pod: Any, ready: str, statuses: list[Any]) -> None:
        status = pod.document["status"]
        conditions = [
            {**one, "status": ready} if one["type"] in ("Ready", "ContainersReady") else one
            for one in status["conditions"]
        ]
        changed = {**pod.document, "status": {**status, "containerStatuses": statuses, "conditions": conditions}}
        self._sim.cluster.update(pod, changed, status_only=True)


def play(sim: Simulation, trouble: Trouble, chance: random.Random) -> None:
    """Let HF request and return machines, containers break and recover, and the loop die."""
    for _ in range(14):
        match chance.randrange(6):
            case 0 | 1:
                sim.request(chance.choice(["wide", "pods"]), chance.randint(1, 4))
            case 2:
                pods = sorted(name for name, one in sim.machines().items() if one.pool != "beta" and one.running)
                for name in chance.sample(pods, min(len(pods), chance.randint(1, 3))):
                    trouble.strike(name)
            case 3:
                trouble.fix()
            case 4:
                sim.restart()
            case 5:
                hosts = sorted(sim.judge.hosts())
                sim.return_machines(chance.sample(hosts, min(len(hosts), 2)))
        sim.run(chance.choice([5.0, 40.0, 400.0]), 8)
        sim.list_hosts()
        sim.poll_all()


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_hf_keeps_no_machine_that_does_not_run(part: int, sims: list[Simulation]) -> None:
    for seed in range(part, SEEDS, PARTS):
        sims.append(sim := Simulation(seed))
        chance = random.Random(seed)
        trouble = Trouble(sim, chance)
        play(sim, trouble, chance)
        trouble.fix()
        for _ in range(20):
            sim.run(300.0, 10)
            sim.list_hosts()
            sim.poll_all()
        unended = [id_ for id_, wanted in sim.requests.items() if wanted.reported is None]
        assert not unended, f"seed {seed}: {unended} have not ended"
        memory = sim.memory()
        assert memory is not None
        there = sim.machines()
        known = {slot.name for _, slot in memory.slots if not slot.deletion.is_gone}
        assert there.keys() <= known, f"seed {seed}: {there.keys() - known} run unseen"
        idle = {name for name in sim.judge.hosts() if name not in there or not there[name].running}
        pools = [there[name].pool for name in idle if name in there]
        few = {name for name in idle if name not in there or pools.count(there[name].pool) < 2}
        assert not few, f"seed {seed}: HF has {sorted(few)}, which do not run: {trouble.broken}"
        ended = {name for name in idle if trouble.broken.get(name) == ENDED}
        assert not ended, f"seed {seed}: HF has {sorted(ended)}, which have ended"
