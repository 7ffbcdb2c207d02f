"""Pods that a policy of the cluster changes, and machines that lose our labels."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from provisioner.backends.gke.own_pods import OWN_LABELS
from provisioner.model import ErrorClass, Failure
from tests.simulation.simulation import Simulation
from tests.support.clouds.direct import Mishap

SEEDS = 300
PARTS = 30
"""The number of tests that share the seeds. All but the first test are slow."""

LOST = Failure(ErrorClass.TIMEOUT, "no response")


@pytest.fixture
def sims() -> Iterator[list[Simulation]]:
    reported: list[Simulation] = []
    yield reported
    for sim in reported:
        sim.close()


REASONS = (
    *("changes the pods that the provisioner creates", "without our identity", LOST.text),
    *("maxNumber of", "No pool had room", "did not run within"),
)
"""Allowed reasons of a failure: the policy, a lost call, or a cap that other machines use up."""


def altered(chance: random.Random) -> dict[str, object]:
    """Draw the changes that a policy makes to pods: it removes or replaces labels, or sets another restart policy."""
    labels = chance.sample(sorted(OWN_LABELS), chance.randint(1, len(OWN_LABELS)))
    if chance.random() < 0.2:
        return {"labels": {}, "spec": {"restartPolicy": "Always"}}
    return {} if chance.random() < 0.2 else {"labels": {one: chance.choice([None, "another"]) for one in labels}}


def play(sim: Simulation, chance: random.Random) -> None:
    """Let HF request machines while policies change, machines lose labels, calls are lost, and the loop dies, all at
    random."""
    for _ in range(14):
        match chance.randrange(8):
            case 0 | 1:
                sim.request(chance.choice(["wide", "pods", "vms"]), chance.randint(1, 4))
            case 2:
                sim.alter(altered(chance))
            case 3:
                sim.alter(None)
            case 4:
                there = sorted(sim.machines())
                for name in chance.sample(there, min(len(there), chance.randint(1, 4))):
                    sim.unlabel(name, chance.sample(sorted(OWN_LABELS), chance.randint(1, len(OWN_LABELS))))
            case 5:
                lost = [Mishap(LOST, chance.choice([None, 0.0, 20.0])) for _ in range(3)]
                sim.lines[chance.choice(["alpha", "gamma"])].mishaps.extend(lost)
            case 6:
                sim.restart()
            case 7:
                hosts = sorted(sim.judge.hosts())
                sim.return_machines(chance.sample(hosts, min(len(hosts), 2)))
        sim.run(chance.choice([5.0, 40.0, 150.0]), 5)
        sim.poll_all()


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_no_machine_is_made_unseen_and_each_request_ends_with_the_clusters_doing(
    part: int, sims: list[Simulation]
) -> None:
    for seed in range(part, SEEDS, PARTS):
        sims.append(sim := Simulation(seed))
        chance = random.Random(seed)
        play(sim, chance)
        sim.run(4000.0, 120)
        sim.poll_all()
        unended = [id_ for id_, wanted in sim.requests.items() if wanted.reported is None]
        assert not unended, f"seed {seed}: {unended} have not ended"
        memory = sim.memory()
        assert memory is not None
        known = {slot.name for _, slot in memory.slots if not slot.deletion.is_gone}
        assert sim.machines().keys() <= known, f"seed {seed}: {sim.machines().keys() - known} run unseen"
        answers = [json.loads(wanted.reported or "{}") for wanted in sim.requests.values()]
        failed = [one["message"] for entry in answers for one in entry["machines"] if one["result"] == "fail"]
        strange = [text for text in failed if not any(reason in text for reason in REASONS)]
        assert not strange, f"seed {seed}: {strange}"
        sim.alter(None)
        sim.return_all()
        sim.run(2400.0, 60)
        left = {name for name in sim.machines() if name not in sim.strayed}
        assert not left, f"seed {seed}: {sorted(left)} are left after HF returned all machines"
