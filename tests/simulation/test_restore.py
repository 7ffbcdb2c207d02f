"""A restore drill: a dump, then hours that no copy knows of, then the directory is lost and the dump put back.

No machine of HF's is deleted, no told answer changes, and what nobody knows is an orphan that the brake holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from provisioner.model import BrakeReason
from provisioner.state.archive import Dump, unpack
from provisioner.state.dump import take
from provisioner.state.restore import restore
from tests.simulation.story import LIMITS, PROVISIONER, Story


@dataclass
class Site:
    """A story told so far that much of it is not in the dump."""

    story: Story
    dump: Dump
    done: str
    """A request whose machines HF gives back after the dump, and that leaves the files."""
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

    def goes_on(self, hours: int, *, lists: bool) -> None:
        """HF asks for more and polls what it waits for. It need not call getReturnRequests."""
        for turn in range(hours * 60):
            self.story.advance(60.0)
            if turn % 20 == 0:
                self.story.request("pods", 1)
            for id_, wanted in self.story.requests.items():
                if wanted.told is None:
                    self.story.poll(id_)
            if lists:
                self.story.list_hosts()
            self.story.cycle()

    def brake(self) -> BrakeReason | None:
        memory = self.story.memory()
        assert memory is not None
        return memory.brake.reason if memory.brake else None


@pytest.fixture
def site() -> Iterator[Site]:
    story = Story()
    story.request("wide", 2)
    story.request("vms", 1)
    story.run(300.0, 15)
    story.poll_all()
    story.request("pods", 1)
    story.cycle()
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
    yield Site(story, dump, done, opened)
    story.close()


LISTS = pytest.mark.parametrize(
    "lists",
    [pytest.param(True, id="HF lists its hosts"), pytest.param(False, id="HF lists nothing", marks=pytest.mark.slow)],
)


@LISTS
def test_a_restore_costs_hf_no_machine_and_the_brake_waits_for_a_person(site: Site, lists: bool) -> None:
    hosts = set(site.story.judge.hosts())
    assert site.open in {name.split("-")[1] for name in hosts}
    site.loses_all()
    site.goes_on(4, lists=lists)
    assert site.brake() is BrakeReason.MEMORY_OLDER
    assert hosts <= site.story.machines().keys()
    assert not any(site.done in name for name in site.story.machines()), "what is long done is not done again"


def test_what_nobody_knows_is_an_orphan_that_the_brake_holds_until_a_person_has_looked(site: Site) -> None:
    unknown = {name for name in site.story.judge.hosts() if name.split("-")[1] not in site.known}
    assert unknown
    site.loses_all()
    site.goes_on(1, lists=False)
    memory = site.story.memory()
    assert memory is not None
    assert unknown <= memory.orphans.keys()
    assert unknown <= site.story.machines().keys()


def test_once_a_person_has_looked_all_goes_on_and_machines_that_hf_lists_stay(site: Site) -> None:
    hosts = set(site.story.judge.hosts())
    site.loses_all()
    site.goes_on(1, lists=True)
    site.story.recover()
    site.goes_on(3, lists=True)
    assert site.brake() is None
    assert hosts <= site.story.machines().keys()


def test_what_hf_was_told_since_the_dump_stays_where_the_directory_is_still_there(site: Site) -> None:
    answers = {id_: wanted.told for id_, wanted in site.story.requests.items()}
    settled = {id_: site.story.hf.told.settled(id_) for id_ in answers}
    assert settled[site.open] is not None
    site.goes_back()
    site.goes_on(1, lists=True)
    assert site.brake() is BrakeReason.MEMORY_OLDER
    assert {id_: site.story.hf.told.settled(id_) for id_ in answers} == settled
    site.story.poll(site.open)  # the judge compares with what HF was told before
