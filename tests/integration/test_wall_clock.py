"""The loop's host sets its wall clock a day back across a restart: nothing that runs is touched."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conformance.stage import Case, Grid, names, stage

DAY = 86_400.0


def test_a_wall_clock_set_a_day_back_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop whose wall clock was set a day back across a restart must lose, delete and forget no machine.
    tests/simulation/test_clock_jumps.py also tests clocks that are set forward."""
    with stage() as cloud, Grid(tmp_path, cloud, Case(1, "", lambda _: None, processes=True)) as hf:
        machines = hf.complete(3)
        kept, returned = machines[:2], machines[2]
        hf.stop_loop()
        monkeypatch.setattr(time, "time", lambda now=time.time: now() - DAY)
        hf.start_loop()
        hf.cycles(3)
        assert hf.reclaimed(*machines) == {}
        assert hf.cloud() == sorted(machines)
        assert names(hf.ended(hf.return_machines(returned))) == [returned]
        assert len(hf.complete(2)) == 2
        assert set(kept) <= set(hf.cloud("running"))
        assert hf.state.memory.read().brake is None
