"""A restore drill. After a dump, hours pass, the directory is lost, and the dump is restored.

No machine of HF is deleted, and no reported answer changes. Unknown machines become orphans that the brake protects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from provisioner.model import BrakeReason, Memory
from provisioner.planning.core.usage import by_pool, get_usage
from provisioner.state.dump import take_dump
from provisioner.state.dump_format import Dump, unpack
from provisioner.state.memory_file import MemoryCodec
from provisioner.state.restore import restore_dump
from tests.simulation.lost_files import Site, three_requests
from tests.simulation.simulation import LIMITS, PROVISIONER


@dataclass
class Dumped(Site):
    """A site with a dump."""

    dump: Dump
    open: str
    """A request that is open in the dump and whose answer was reported to HF later."""

    @property
    def known(self) -> set[str]:
        """Return the requests in the dump."""
        intent = self.dump.tables("intent")
        assert intent is not None
        return set(intent["requests"])

    def loses_all(self) -> None:
        """Empty the directory, and restore the dump into it."""
        self.sim.wipe()
        restore_dump(self.sim.hf, self.dump, PROVISIONER, replaces=False)
        self.sim.restart()

    def goes_back(self) -> None:
        """Replace the existing files by the dump."""
        self.sim.judge.note_lost_files(["intent", "memory", "status"])
        restore_dump(self.sim.hf, self.dump, PROVISIONER, replaces=True)
        self.sim.restart()

    def made_again(self) -> Memory:
        """Run cycles until a brake is latched, which happens once the memory is rebuilt. Return this memory."""
        while self.brake() is None:
            self.sim.advance(10.0)
            self.sim.cycle()
        return self.memory()

    def saved(self) -> Memory:
        """Return the memory in the dump."""
        tables = self.dump.tables("memory")
        assert tables is not None
        return MemoryCodec().decode(tables)


def hours(memory: Memory) -> Mapping[str, int]:
    """Return the usage of each pool's machines in milliseconds, as it was when the memory was written."""
    return by_pool(get_usage(memory, memory.written.time, memory.written.ahead))


@pytest.fixture
def site() -> Iterator[Dumped]:
    sim = three_requests()
    done, _, opened = sim.requests
    dump = unpack("dump", take_dump(sim.hf)[1])
    sim.run(300.0, 15)
    sim.poll_all()
    sim.return_machines(name for name in sim.judge.hosts() if done in name)
    sim.run(LIMITS.retention_seconds + 1200.0, 30)
    sim.poll_all()
    sim.request("vms", 2)
    sim.run(300.0, 15)
    sim.poll_all()
    sim.cycle()
    assert all(wanted.reported for wanted in sim.requests.values())
    yield Dumped(sim, done, dump, opened)
    sim.close()


@pytest.mark.parametrize(
    "lists",
    [pytest.param(True, id="HF lists its hosts"), pytest.param(False, id="HF lists nothing")],
)
def test_a_restore_costs_hf_no_machine_and_the_brake_waits_for_an_operator(site: Dumped, lists: bool) -> None:
    hosts = set(site.sim.judge.hosts())
    unknown = {name for name in hosts if name.split("-")[1] not in site.known}
    assert site.open in {name.split("-")[1] for name in hosts}
    assert unknown
    site.loses_all()
    site.goes_on(4 if lists else 1, lists=lists)
    assert site.brake() is BrakeReason.MEMORY_OLDER
    assert hosts <= site.sim.machines().keys()
    assert unknown.isdisjoint(site.memory().orphans.since) if lists else unknown <= site.memory().orphans.since.keys()
    assert not any(site.done in name for name in site.sim.machines()), "ended requests are not repeated"


def test_once_an_operator_has_checked_all_goes_on_and_machines_that_hf_lists_stay(site: Dumped) -> None:
    hosts = set(site.sim.judge.hosts())
    site.loses_all()
    site.goes_on(1, lists=True)
    site.sim.recover()
    site.goes_on(3, lists=True)
    assert site.brake() is None
    assert hosts <= site.sim.machines().keys()


def test_answers_reported_since_the_dump_stay_where_the_directory_is_still_there(site: Dumped) -> None:
    answers = {id_: wanted.reported for id_, wanted in site.sim.requests.items()}
    settled = {id_: site.sim.hf.terminal_answers.settled(id_) for id_ in answers}
    assert settled[site.open] is not None
    site.goes_back()
    site.goes_on(1, lists=True)
    assert site.brake() is BrakeReason.MEMORY_OLDER
    assert {id_: site.sim.hf.terminal_answers.settled(id_) for id_ in answers} == settled
    site.sim.poll(site.open)  # the judge compares with the answer that HF got before


def test_usage_until_the_dump_is_restored_and_no_hour_is_counted_twice(site: Dumped) -> None:
    site.dump = unpack("dump", take_dump(site.sim.hf)[1])
    assert site.saved().usage.days, "one has gone"
    site.sim.run(600.0, 10)
    site.loses_all()
    rebuilt = site.made_again()
    assert (by_pool(rebuilt.usage.days), rebuilt.usage.since_wall) == (
        hours(site.saved()),
        site.saved().usage.since_wall,
    )

    kept = [slot for record in rebuilt.requests.values() for slot in record.slots.values() if not slot.deletion.is_gone]
    site.sim.run(3600.0, 60)
    grown = sum(hours(site.memory()).values()) - sum(hours(rebuilt).values())
    assert grown == pytest.approx(len(kept) * 3600_000, rel=0.05)
