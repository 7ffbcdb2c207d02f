"""Pods that are made otherwise than they were asked for, and machines that lose what marks them as ours."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from provisioner.backends.gke.pods import OWN_LABELS
from provisioner.model import ErrorClass, Failure
from tests.simulation.story import Story
from tests.support.clouds.direct import Mishap

SEEDS = 300
PARTS = 30
"""The seeds are played in so many tests, of which all but the first are slow."""

LOST = Failure(ErrorClass.TIMEOUT, "no response")


@pytest.fixture
def stories() -> Iterator[list[Story]]:
    told: list[Story] = []
    yield told
    for story in told:
        story.close()


REASONS = (
    *("changes pods that are asked for", "without our identity", LOST.text),
    *("maxNumber of", "No pool had room", "did not run within"),
)
"""Allowed reasons of a failure: the policy, a lost call, or a cap that other machines use up."""


def altered(chance: random.Random) -> dict[str, object]:
    """Draw what a policy changes: labels are removed or replaced, or the restart policy is another."""
    labels = chance.sample(sorted(OWN_LABELS), chance.randint(1, len(OWN_LABELS)))
    if chance.random() < 0.2:
        return {"labels": {}, "spec": {"restartPolicy": "Always"}}
    return {} if chance.random() < 0.2 else {"labels": {one: chance.choice([None, "another"]) for one in labels}}


def play(story: Story, chance: random.Random) -> None:
    """HF asks, policies come and go, labels are taken from machines that run, calls get lost, the loop dies."""
    for _ in range(14):
        match chance.randrange(8):
            case 0 | 1:
                story.request(chance.choice(["wide", "pods", "vms"]), chance.randint(1, 4))
            case 2:
                story.alter(altered(chance))
            case 3:
                story.alter(None)
            case 4:
                there = sorted(story.machines())
                for name in chance.sample(there, min(len(there), chance.randint(1, 4))):
                    story.unlabel(name, chance.sample(sorted(OWN_LABELS), chance.randint(1, len(OWN_LABELS))))
            case 5:
                lost = [Mishap(LOST, chance.choice([None, 0.0, 20.0])) for _ in range(3)]
                story.lines[chance.choice(["alpha", "gamma"])].mishaps.extend(lost)
            case 6:
                story.restart()
            case 7:
                hosts = sorted(story.judge.hosts())
                story.give_back(chance.sample(hosts, min(len(hosts), 2)))
        story.run(chance.choice([5.0, 40.0, 150.0]), 5)
        story.poll_all()


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_no_machine_is_made_unseen_and_each_request_ends_with_the_clusters_doing(
    part: int, stories: list[Story]
) -> None:
    for seed in range(part, SEEDS, PARTS):
        stories.append(story := Story(seed))
        chance = random.Random(seed)
        play(story, chance)
        story.run(4000.0, 120)
        story.poll_all()
        unended = [id_ for id_, wanted in story.requests.items() if wanted.told is None]
        assert not unended, f"seed {seed}: {unended} have not ended"
        memory = story.memory()
        assert memory is not None
        known = {slot.name for _, slot in memory.slots if not slot.deletion.gone}
        assert story.machines().keys() <= known, f"seed {seed}: {story.machines().keys() - known} run unseen"
        answers = [json.loads(wanted.told or "{}") for wanted in story.requests.values()]
        failed = [one["message"] for entry in answers for one in entry["machines"] if one["result"] == "fail"]
        strange = [text for text in failed if not any(reason in text for reason in REASONS)]
        assert not strange, f"seed {seed}: {strange}"
        story.alter(None)
        story.return_all()
        story.run(2400.0, 60)
        left = {name for name in story.machines() if name not in story.strayed}
        assert not left, f"seed {seed}: {sorted(left)} are left after HF gave back all"
