"""What the loop leaves beside the databases: its heartbeat, and the notes on pools."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from provisioner.state.errors import StateUnreadable
from provisioner.state.markers import Heartbeat
from provisioner.state.status import PoolNotes


@pytest.mark.parametrize("content", [{"pools": {"a": ["one", "two"]}, "paused": ["b"]}, {}])
def test_notes_are_read(tmp_path: Path, content: dict[str, Any]) -> None:
    notes = PoolNotes(str(tmp_path / "pools.json"))
    assert notes.read() == {}
    notes.write(content)
    assert notes.read() == content


@pytest.mark.parametrize("content", ["[]", "3", "{"])
def test_damaged_notes_are_no_notes(tmp_path: Path, content: str) -> None:
    (tmp_path / "pools.json").write_text(content)
    with pytest.raises(StateUnreadable, match=r"pools\.json"):
        PoolNotes(str(tmp_path / "pools.json")).read()


def test_the_loops_silence_until_now_leaves_no_file_behind(tmp_path: Path) -> None:
    heartbeat = Heartbeat(str(tmp_path / "heartbeat"))
    assert heartbeat.silent_now() is None
    heartbeat.touch()
    os.utime(heartbeat.path, ns=(0, os.stat(heartbeat.path).st_mtime_ns - 90_000_000_000_000))
    assert heartbeat.silent_now() == pytest.approx(90_000, abs=900)
    assert [entry.name for entry in tmp_path.iterdir()] == ["heartbeat"]


def test_the_loops_silence_is_the_gap_between_two_files_times(tmp_path: Path) -> None:
    heartbeat, other = Heartbeat(str(tmp_path / "heartbeat")), tmp_path / "seen"
    assert heartbeat.age_against(str(other)) is None
    heartbeat.touch()
    assert heartbeat.age_against(str(other)) is None
    other.touch()
    last = os.stat(heartbeat.path).st_mtime_ns
    os.utime(other, ns=(0, last + 90_000_000_000))
    assert heartbeat.age_against(str(other)) == pytest.approx(90, abs=0.001)
    os.utime(other, ns=(0, last - 1_000_000_000))
    assert heartbeat.age_against(str(other)) == 0.0
    assert heartbeat.loop_silent_for(last + 5_000_000_000) == pytest.approx(5, abs=0.001)
    os.utime(heartbeat.path, ns=(0, 0))
    heartbeat.touch()
    assert os.stat(heartbeat.path).st_mtime_ns >= last
