"""Loop time: it goes on across a restart, and no wall clock that is set moves it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from provisioner.loop.clock import LoopClock
from provisioner.model import (
    Memory,
    Uptime,
)


@pytest.mark.parametrize(
    ("gap", "counts"),
    [(0.0, 0.0), (90.0, 90.0), (86400.0, 3600.0), (-86400.0, 0.0)],
    ids=["none", "a short stop counts whole", "a day counts an hour", "a clock set back counts nothing"],
)
@pytest.mark.parametrize("uptime", [None, Uptime("another boot", 0.0)], ids=["of old", "of another host"])
def test_across_a_restart_loop_time_goes_on_by_the_wall_clocks_gap_within_bounds(
    gap: float, counts: float, uptime: Uptime | None
) -> None:
    clock = LoopClock(Memory("demo", time=500.0, time_wall=time.time() - gap, uptime=uptime))
    assert clock.now() == pytest.approx(500.0 + counts, abs=1.0)


@pytest.mark.parametrize("jump", [0.0, 600.0, -600.0, 86400.0, -86400.0])
@pytest.mark.parametrize(("gap", "counts"), [(90.0, 90.0), (7200.0, 3600.0), (-5.0, 0.0)])
def test_within_one_boot_it_goes_on_by_the_uptime_whatever_the_wall_clock_was_set_to(
    monkeypatch: pytest.MonkeyPatch, gap: float, counts: float, jump: float
) -> None:
    monkeypatch.setattr("provisioner.loop.clock.boot_id", lambda: "this boot")
    before = Uptime("this boot", time.monotonic() - gap)
    clock = LoopClock(Memory("demo", time=500.0, time_wall=time.time() - jump, uptime=before))
    assert clock.now() == pytest.approx(500.0 + counts, abs=1.0)


def test_the_uptime_names_its_boot_or_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "boot_id"
    monkeypatch.setattr("provisioner.loop.clock.BOOT_ID", file)
    assert LoopClock().uptime() is None
    file.write_text("4f2c\n")
    uptime = LoopClock().uptime()
    assert uptime is not None
    assert uptime.boot == "4f2c"
    assert uptime.seconds == pytest.approx(time.monotonic(), abs=1.0)


def test_loop_time_ignores_a_wall_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock()
    before = clock.now()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert 0.0 <= clock.now() - before < 1.0
