"""An old copy of intent.json is restored without its lock file, after nearly all other files were lost.

The loop recognises the copy as old, and HostFactory loses no machine. If no file proves the age of the copy, the loop
deletes no machine until an operator has checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pytest

from provisioner.model import BrakeReason
from tests.simulation.lost_files import Site, three_requests
from tests.simulation.simulation import LIMITS

LOST, OLDER, INTENT = BrakeReason.MEMORY_LOST, BrakeReason.MEMORY_OLDER, BrakeReason.INTENT_OLDER


@dataclass
class Copied(Site):
    """A site with a copy of intent.json."""

    hosts: set[str]
    """The machines that HF has, of two requests in the copy and of one that is missing in it."""


@pytest.fixture
def site() -> Iterator[Copied]:
    sim = three_requests()
    sim.keep_copies()
    done, *_ = sim.requests
    sim.return_machines(name for name in sim.judge.hosts() if done in name)
    sim.run(300.0, 15)
    sim.poll_all()
    sim.cycle()
    assert all(sim.returns.values())
    sim.run(LIMITS.retention_seconds + 1200.0, 30)
    assert done not in sim.hf.intent.read().requests
    sim.request("vms", 2)
    sim.run(300.0, 15)
    sim.poll_all()
    sim.cycle()
    hosts = sim.judge.hosts()
    assert {name.split("-")[1] for name in hosts} == sim.requests.keys() - {done}
    yield Copied(sim, done, hosts)
    sim.close()


@pytest.mark.parametrize(
    "lists",
    [pytest.param(True, id="HF lists its hosts"), pytest.param(False, id="HF lists nothing", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    ("survivors", "put_back", "reason"),
    [
        pytest.param((), ("intent",), LOST, id="nothing else is left"),
        pytest.param(("status.json",), ("intent",), LOST, id="the terminal answers are left", marks=pytest.mark.slow),
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
    site.sim.wipe(survivors=survivors, put_back=put_back)
    site.goes_on(4, lists=lists)
    assert site.brake() is reason
    assert site.hosts <= site.sim.machines().keys()
    assert not any(site.done in name for name in site.sim.machines()), "ended requests are not repeated"


def test_where_memory_is_left_scripts_refuse_the_old_intent_until_an_operator_recovers_it(site: Copied) -> None:
    site.sim.wipe(survivors=["memory.json"], put_back=["intent"])
    site.goes_on(1, lists=False)
    before = set(site.sim.requests)
    site.sim.request("pods", 1)
    assert set(site.sim.requests) == before, "the script exited 1"
    site.sim.recover()
    site.sim.run(60.0, 3)
    assert site.brake() is None
    assert site.done not in site.sim.hf.intent.read().requests
    site.sim.request("pods", 1)
    assert len(site.sim.requests) == len(before) + 1
    site.sim.run(300.0, 15)
    assert site.hosts <= site.sim.machines().keys()
