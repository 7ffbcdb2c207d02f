"""A restore drill: a dump, then hours that no copy knows of, then the directory is lost and the dump put back.

No machine of HF's is deleted, no told answer changes, and what nobody knows is an orphan that the brake holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from provisioner.model import BrakeReason, Memory
from provisioner.planning.core.usage import by_pool, used
from provisioner.state.archive import Dump, unpack
from provisioner.state.dump import take
from provisioner.state.memory import MemoryCodec
from provisioner.state.restore import restore
from tests.simulation.site import Site, three_requests
from tests.simulation.story import LIMITS, PROVISIONER


@dataclass
class Dumped(Site):
    """The copy is a dump."""

    dump: Dump
    open: str
    """A request that is open in the dump, and of which HF was told after it."""

    @property
    def known(self) -> set[str]:
        """Requests that the dump knows."""
        intent = self.dump.tables("intent")
        assert intent is not None
        return set(intent["requests"])

    def loses_all(self) -> None:
        """The directory is empty, and the dump is put back into it."""
        self.story.wipe()
        restore(self.story.hf, self.dump, PROVISIONER, replaces=False)
        self.story.restart()

    def goes_back(self) -> None:
        """The dump replaces what is there."""
        self.story.judge.loses(["intent", "memory", "status"])
        restore(self.story.hf, self.dump, PROVISIONER, replaces=True)
        self.story.restart()

    def made_again(self) -> Memory:
        """The memory, once all pools were seen and it is made again."""
        while self.brake() is None:
            self.story.advance(10.0)
            self.story.cycle()
        return self.memory()

    def saved(self) -> Memory:
        """The memory of the dump."""
        tables = self.dump.tables("memory")
        assert tables is not None
        return MemoryCodec().decode(tables)


def hours(memory: Memory) -> Mapping[str, int]:
    """What the machines of each pool had used when a memory was written, in milliseconds."""
    return by_pool(used(memory, memory.written.time, memory.written.ahead))


@pytest.fixture
def site() -> Iterator[Dumped]:
    story = three_requests()
    done, _, opened = story.requests
    dump = unpack("dump", take(story.hf)[1])
    story.run(300.0, 15)
    story.poll_all()
    story.give_back(name for name in story.judge.hosts() if done in name)
    story.run(LIMITS.retention + 1200.0, 30)
    story.poll_all()
    story.request("vms", 2)
    story.run(300.0, 15)
    story.poll_all()
    story.cycle()
    assert all(wanted.told for wanted in story.requests.values())
    yield Dumped(story, done, dump, opened)
    story.close()


@pytest.mark.parametrize(
    "lists",
    [pytest.param(True, id="HF lists its hosts"), pytest.param(False, id="HF lists nothing")],
)
def test_a_restore_costs_hf_no_machine_and_the_brake_waits_for_a_person(site: Dumped, lists: bool) -> None:
    hosts = set(site.story.judge.hosts())
    unknown = {name for name in hosts if name.split("-")[1] not in site.known}
    assert site.open in {name.split("-")[1] for name in hosts}
    assert unknown
    site.loses_all()
    site.goes_on(4 if lists else 1, lists=lists)
    assert site.brake() is BrakeReason.MEMORY_OLDER
    assert hosts <= site.story.machines().keys()
    assert unknown.isdisjoint(site.memory().orphans.since) if lists else unknown <= site.memory().orphans.since.keys()
    assert not any(site.done in name for name in site.story.machines()), "what is long done is not done again"


def test_once_a_person_has_looked_all_goes_on_and_machines_that_hf_lists_stay(site: Dumped) -> None:
    hosts = set(site.story.judge.hosts())
    site.loses_all()
    site.goes_on(1, lists=True)
    site.story.recover()
    site.goes_on(3, lists=True)
    assert site.brake() is None
    assert hosts <= site.story.machines().keys()


def test_what_hf_was_told_since_the_dump_stays_where_the_directory_is_still_there(site: Dumped) -> None:
    answers = {id_: wanted.told for id_, wanted in site.story.requests.items()}
    settled = {id_: site.story.hf.terminal_answers.settled(id_) for id_ in answers}
    assert settled[site.open] is not None
    site.goes_back()
    site.goes_on(1, lists=True)
    assert site.brake() is BrakeReason.MEMORY_OLDER
    assert {id_: site.story.hf.terminal_answers.settled(id_) for id_ in answers} == settled
    site.story.poll(site.open)  # the judge compares with what HF was told before


def test_what_machines_had_used_until_the_dump_comes_back_and_no_hour_is_counted_twice(site: Dumped) -> None:
    site.dump = unpack("dump", take(site.story.hf)[1])
    assert site.saved().usage.days, "one has gone"
    site.story.run(600.0, 10)
    site.loses_all()
    begun = site.made_again()
    assert (by_pool(begun.usage.days), begun.usage.since_wall) == (hours(site.saved()), site.saved().usage.since_wall)

    kept = [slot for record in begun.requests.values() for slot in record.slots.values() if not slot.deletion.gone]
    site.story.run(3600.0, 60)
    grown = sum(hours(site.memory()).values()) - sum(hours(begun).values())
    assert grown == pytest.approx(len(kept) * 3600_000, rel=0.05)
