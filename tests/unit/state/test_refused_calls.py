"""The traces of refused calls: their number, their times, their bound, and damaged lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioner.state import refused_calls
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateMissing
from provisioner.state.refused_calls import Refusals, RefusedCalls


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list whose only item is the time of the next refusal."""
    moment = [1000.0]
    monkeypatch.setattr(refused_calls.time, "time", lambda: moment[0])
    return moment


def test_refusals_are_counted_by_script_with_the_last_reason(state: StateDir, at: list[float]) -> None:
    assert state.refused.read() == []
    for at[0], reason in ((1000.0, "held by 7"), (1020.0, "held by 7"), (1040.0, "full \udcff")):
        state.note_refusal("requestMachines", reason)
    state.note_refusal("getReturnRequests", "x" * 5000)
    written = os.stat(os.path.join(state.refused.path, "requestMachines")).st_mtime
    first, second = state.refused.read()
    assert first == Refusals("requestMachines", 3, 3, 1000, written, "full ?")
    assert (second.script, second.total, second.text) == ("getReturnRequests", 1, "x" * 400)


@pytest.mark.parametrize(
    ("calls", "total", "recent"),
    [("rr", 2, 2), ("ra", 1, 0), ("raaar", 2, 1), ("aarrarar", 4, 1), ("arra", 2, 0)],
    ids=["refused", "answered since", "refused again", "now and then", "over"],
)
def test_an_answer_ends_the_refusals_before_it_and_keeps_the_total(
    state: StateDir, at: list[float], calls: str, total: int, recent: int
) -> None:
    for at[0], call in enumerate(calls, 1000):
        state.note_refusal("requestMachines", "held" if call == "r" else "")
    [found] = state.refused.read()
    since = 1000 + len(calls) - recent if recent else 0
    assert (found.total, found.recent, found.since, found.text) == (total, recent, since, "held" * bool(recent))


def test_answers_write_only_after_a_refusal_and_only_once(state: StateDir) -> None:
    path = Path(state.refused.path, "requestMachines")
    state.note_refusal("requestMachines", "")
    assert not path.parent.exists()
    sizes = []
    for reason in ("held", "", "", ""):
        state.note_refusal("requestMachines", reason)
        sizes.append(path.stat().st_size)
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3]


def test_a_file_begins_anew_at_its_bound(state: StateDir, at: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_calls, "MOST_BYTES", 50)
    totals = []
    for _ in range(9):
        state.note_refusal("requestMachines", "held by 7")
        totals.append(state.refused.read()[0].total)
    assert totals == [1, 2, 3, 4, 1, 2, 3, 4, 1]


def test_damaged_lines_and_files_of_other_names_do_not_count(state: StateDir, at: list[float]) -> None:
    state.note_refusal("requestMachines", "held")
    path = Path(state.refused.path)
    (path / "requestMachines").write_bytes(b"\0\0\n-7 x\n" + b"9" * 400 + b" x\n" + b"1000 held\n10")
    (path / ".nfs0001").write_text("1000 held\n")
    (path / "getReturnRequests").write_text("")
    assert [(one.script, one.total, one.text) for one in state.refused.read()] == [("requestMachines", 1, "held")]


def test_the_state_directory_itself_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StateMissing):
        RefusedCalls(str(tmp_path / "none" / "refused")).note("requestMachines", "held")
    assert not (tmp_path / "none").exists()
