"""Tests of loop time: it continues across a restart, and a change of the wall clock does not move it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioner.loop import clock as module
from provisioner.loop.clock import LoopClock
from provisioner.model import Memory, Uptime
from tests.support.parts import alter

THIS_BOOT = "this boot"


@dataclass
class Host:
    """The wall clock and uptime of a host, set by the test."""

    epoch: float = 1_790_000_000.0
    up: float = 50_000.0

    def time(self) -> float:
        return self.epoch

    def monotonic(self) -> float:
        return self.up


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    made = Host()
    (tmp_path / "boot_id").write_text(f"{THIS_BOOT}\n")
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(module, "BOOT_ID", tmp_path / "boot_id")
    return made


@pytest.mark.parametrize(
    ("gap", "counts"),
    [(0.0, 0.0), (90.0, 90.0), (86400.0, 3600.0), (-86400.0, 0.0)],
    ids=["none", "a short stop counts whole", "a day counts an hour", "a clock set back counts nothing"],
)
@pytest.mark.parametrize("uptime", [None, Uptime("another boot", 0.0)], ids=["of old", "of another host"])
def test_across_a_restart_loop_time_goes_on_by_the_wall_clocks_gap_within_bounds(
    host: Host, gap: float, counts: float, uptime: Uptime | None
) -> None:
    assert (
        LoopClock(alter(Memory("demo"), time=500.0, time_wall=host.epoch - gap, uptime=uptime)).now() == 500.0 + counts
    )


@pytest.mark.parametrize("jump", [0.0, 86400.0, -86400.0])
@pytest.mark.parametrize(("gap", "counts"), [(90.0, 90.0), (7200.0, 3600.0), (-5.0, 0.0)])
def test_within_one_boot_it_goes_on_by_the_uptime_whatever_the_wall_clock_was_set_to(
    host: Host, gap: float, counts: float, jump: float
) -> None:
    before = Uptime(THIS_BOOT, host.up - gap)
    assert (
        LoopClock(alter(Memory("demo"), time=500.0, time_wall=host.epoch - jump, uptime=before)).now() == 500.0 + counts
    )


def test_the_uptime_names_its_boot_or_is_unknown(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert LoopClock().uptime() == Uptime(THIS_BOOT, host.up)
    monkeypatch.setattr(module, "BOOT_ID", tmp_path / "none")
    assert LoopClock().uptime() is None


def test_loop_time_ignores_a_wall_clock_that_is_set(host: Host) -> None:
    clock = LoopClock()
    before = clock.now()
    host.epoch, host.up = 0.0, host.up + 3.0
    assert (clock.now() - before, clock.wall()) == (3.0, 0.0)
