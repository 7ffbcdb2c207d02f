"""Jumps of the wall clock. No deadline passes early, no machine is reported lost, and no wait is too long.

The loop's own clock runs here on a host whose clocks the test controls.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from provisioner.lab.fake_backend import Mark
from provisioner.loop.clock import LoopClock
from provisioner.loop.cycle_report import Mandate
from provisioner.loop.reconciler import Reconciler
from provisioner.model import RequestRecord, Slot, Verdict
from provisioner.state.errors import StateMissing
from tests.support.cycle_bench import LIMITS, Bench
from tests.support.inline_actors import InlineActors

MINUTES, DAY = 600.0, 86400.0
JUMPS = pytest.mark.parametrize("jump", [MINUTES, DAY, -DAY])
BOOT = LIMITS.pools["pool"].boot_deadline_seconds
ORPHAN = "hf-zzzzzzzzzz-000000"
STEP = 5.0


class Host:
    """A host's clocks: the wall clock, which can be set, and the monotonic clock, which cannot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.monotonic, self.boot = 1_700_000_000.0, 5_000.0, "first boot"
        clocks = SimpleNamespace(
            time=lambda: self.wall, monotonic=lambda: self.monotonic, strftime=time.strftime, gmtime=time.gmtime
        )
        monkeypatch.setattr("provisioner.loop.clock.time", clocks)
        monkeypatch.setattr("provisioner.loop.clock.boot_id", lambda: self.boot)


class Site(Bench):
    """The bench with the loop's real clock in place of a test clock."""

    def __init__(self, path: Path, host: Host) -> None:
        self.host = host
        super().__init__(path)

    def restarted(self) -> Reconciler:
        try:
            before = self.state.memory.read()
        except StateMissing:
            before = None
        self.loop_clock = LoopClock(before)
        self.reconciler = Reconciler(
            clock=self.loop_clock,
            state=self.state,
            actors=InlineActors(self.places),
            limits=LIMITS,
            provisioner="demo",
            mandate=Mandate(),
        )
        return self.reconciler

    def run(self, seconds: float) -> None:
        """Let time pass with a cycle every five seconds."""
        for _ in range(round(seconds / STEP)):
            self.host.wall += STEP
            self.host.monotonic += STEP
            self.clock.time += STEP
            now = self.loop_clock.now()
            sought = self.reconciler.sought()
            self.reconciler.cycle(
                {name: place.observe(now, sought.get(name, {})) for name, place in self.places.items()}
            )

    def cycle(self, times: int = 1, blind: object = ()) -> None:  # type: ignore[override]  # the report is not needed
        self.run(times * STEP)

    def record(self, id_: str) -> RequestRecord:
        return self.state.memory.read().requests[id_]

    def slots(self, id_: str) -> list[Slot]:
        return list(self.record(id_).slots.values())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, Host(monkeypatch))


def jumped(site: Site, jump: float, *, restarted: bool, rebooted: bool = False) -> None:
    """Set the wall clock forward or back. If ``rebooted``, then boot the host again. If ``restarted``, then restart the
    loop."""
    site.host.wall += jump
    if rebooted:
        site.host.boot, site.host.monotonic = "second boot", 10.0
    if restarted:
        site.restarted()


@JUMPS
@pytest.mark.parametrize("restarted", [False, True], ids=["while it runs", "at a restart"])
def test_deadlines_and_graces_end_when_they_would_have_ended(site: Site, jump: float, restarted: bool) -> None:
    """A jump must change neither the deadlines of a boot, a request and a return request nor the grace of an orphan."""
    kept = site.succeed(3)
    id_ = site.request(2)
    site.place.place.create(ORPHAN, Mark("demo", "pool", ORPHAN))
    site.run(10.0)
    site.run(BOOT / 2)
    deadline = site.record(id_).deadline_at
    jumped(site, jump, restarted=restarted)
    site.run(BOOT / 2 - 20.0)
    assert {slot.verdict for slot in site.slots(id_)} == {Verdict.OPEN}, "it boots within its time"
    assert not site.place.deleted, "an operator has the whole grace to notice"
    site.run(30.0)
    assert Verdict.FAILED in {slot.verdict for slot in site.slots(id_)}, "and no longer"
    assert ORPHAN in [delete.name for delete in site.place.deleted]
    assert site.record(id_).deadline_at == deadline
    assert {slot.verdict for slot in site.slots(kept)} == {Verdict.SUCCEEDED}
    assert not site.state.status.read_lost()


@JUMPS
def test_at_a_start_on_another_host_deadlines_move_by_an_hour_at_most_and_nothing_is_lost(
    site: Site, jump: float
) -> None:
    """On another host, the loop cannot know whether the clock was set or time has passed. So deadlines may move, by an
    hour at most."""
    kept = site.succeed(3)
    id_ = site.request(2)
    site.run(10.0)
    before = site.loop_clock.now()
    jumped(site, jump, restarted=True, rebooted=True)
    assert before - STEP <= site.loop_clock.now() <= before + 3600.0
    site.run(BOOT + 10.0)
    assert Verdict.FAILED in {slot.verdict for slot in site.slots(id_)}, "a slot waits no longer than its time"
    assert {slot.verdict for slot in site.slots(kept)} == {Verdict.SUCCEEDED}
    assert not site.state.status.read_lost()


@JUMPS
def test_a_mass_loss_waits_for_its_second_observation_as_long_as_ever(site: Site, jump: float) -> None:
    site.succeed(12)
    site.place.place._entries = {}
    site.run(30.0)
    jumped(site, jump, restarted=True)
    site.run(20.0)
    assert not site.state.status.read_lost()
    site.run(70.0)
    assert len(site.state.status.read_lost()) == 12


@JUMPS
def test_the_clock_of_hfs_host_decides_nothing_of_what_the_loop_remembers(site: Site, jump: float) -> None:
    """The script that records the request runs on a host with a wrong clock. The request's deadline must follow the
    loop's clock, also after a restart."""
    id_ = site.request(2, skew=site.host.wall - site.clock.time + jump)
    site.run(BOOT / 2)
    site.restarted()
    site.run(BOOT / 2 - 20.0)
    assert {slot.verdict for slot in site.slots(id_)} == {Verdict.OPEN}
    record = site.record(id_)
    assert record.deadline_at - record.read_at == LIMITS.request_deadline_seconds
