"""An old copy of intent.json is put back without its lock file after nearly all else was lost: what tells that it is
old, and that where nothing does no machine of HostFactory's is touched before a person has looked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pytest

from provisioner.model import BrakeReason
from tests.simulation.site import Site, three_requests
from tests.simulation.story import LIMITS

LOST, OLDER, INTENT = BrakeReason.MEMORY_LOST, BrakeReason.MEMORY_OLDER, BrakeReason.INTENT_OLDER


@dataclass
class Copied(Site):
    """The copy is of intent.json."""

    hosts: set[str]
    """What HF has: of two requests that the copy knows, and of one that it does not."""


@pytest.fixture
def site() -> Iterator[Copied]:
    story = three_requests()
    story.keep_copies()
    done, *_ = story.requests
    story.give_back(name for name in story.judge.hosts() if done in name)
    story.run(300.0, 15)
    story.poll_all()
    story.cycle()
    assert all(story.returns.values())
    story.run(LIMITS.retention + 1200.0, 30)
    assert done not in story.hf.intent.read().requests
    story.request("vms", 2)
    story.run(300.0, 15)
    story.poll_all()
    story.cycle()
    hosts = story.judge.hosts()
    assert {name.split("-")[1] for name in hosts} == story.requests.keys() - {done}
    yield Copied(story, done, hosts)
    story.close()


@pytest.mark.parametrize(
    "lists",
    [pytest.param(True, id="HF lists its hosts"), pytest.param(False, id="HF lists nothing", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    ("survivors", "put_back", "reason"),
    [
        pytest.param((), ("intent",), LOST, id="nothing else is left"),
        pytest.param(("status.json",), ("intent",), LOST, id="what HF was told is left", marks=pytest.mark.slow),
        pytest.param(("seen",), ("intent",), LOST, id="what HF polled is left", marks=pytest.mark.slow),
        pytest.param(("memory.json",), ("intent",), INTENT, id="memory is left", marks=pytest.mark.slow),
        pytest.param(("memory.json", "memory.json.lock"), ("intent",), INTENT, id="memory and its lock file are left"),
        pytest.param((), ("intent", "memory"), OLDER, id="memory is as old"),
        pytest.param(("memory.json.lock",), ("intent", "memory"), OLDER, id="memory is as old, its lock file is not",
                     marks=pytest.mark.slow),
        pytest.param(("status.json", "seen"), ("intent", "memory"), OLDER, id="memory is as old, all else is not",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_an_old_intent_is_recognised_and_costs_hf_no_machine(
    site: Copied, survivors: Collection[str], put_back: Collection[str], reason: BrakeReason, lists: bool
) -> None:
    site.story.wipe(survivors=survivors, put_back=put_back)
    site.goes_on(4, lists=lists)
    assert site.brake() is reason
    assert site.hosts <= site.story.machines().keys()
    assert not any(site.done in name for name in site.story.machines()), "what is long done is not done again"


def test_where_memory_is_left_scripts_refuse_the_old_intent_until_a_person_recovers_it(site: Copied) -> None:
    site.story.wipe(survivors=["memory.json"], put_back=["intent"])
    site.goes_on(1, lists=False)
    before = set(site.story.requests)
    site.story.request("pods", 1)
    assert set(site.story.requests) == before, "the script exited 1"
    site.story.recover()
    site.story.run(60.0, 3)
    assert site.brake() is None
    assert site.done not in site.story.hf.intent.read().requests
    site.story.request("pods", 1)
    assert len(site.story.requests) == len(before) + 1
    site.story.run(300.0, 15)
    assert site.hosts <= site.story.machines().keys()
