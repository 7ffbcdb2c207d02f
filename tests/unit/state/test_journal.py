"""The journal: whole lines, in order, rotated by size."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from provisioner.state.errors import StateUnwritable
from provisioner.state.journal import Journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_the_journal_holds_one_line_per_entry_in_order(path: Path) -> None:
    journal = Journal(str(path))
    journal.append([])
    assert not path.exists()
    journal.append([{"n": 1, "text": "two\nlines"}, {"n": 2}])
    journal.append([{"n": 3}])
    assert numbers(path) == [1, 2, 3]


def test_half_a_line_of_a_crash_does_not_swallow_the_next_one(path: Path) -> None:
    path.write_text('{"n": 1}\n{"n"')
    Journal(str(path)).append([{"n": 3}])
    assert path.read_text().splitlines() == ['{"n": 1}', '{"n"', '{"n":3}']
    Journal(str(path)).append([{"time": 1.0, "n": 4}])
    found = Journal(str(path)).find('"n"')
    assert ([line["n"] for line in found.lines], found.torn) == ([4], 3), "a line without a time is none"


def test_the_journal_is_rotated_by_size_and_the_oldest_goes(path: Path) -> None:
    journal = Journal(str(path), max_bytes=40, keep=2)
    for number in range(40):
        journal.append([{"n": number}])
    kept = [path.with_name(f"{path.name}.{number}") for number in (2, 1)]
    assert sorted(path.parent.iterdir()) == sorted(kept)
    left = [number for file in kept for number in numbers(file)]
    assert left == list(range(40 - len(left), 40))
    assert all(40 <= file.stat().st_size < 60 for file in kept)


def test_a_journal_that_cannot_be_written_says_so(path: Path) -> None:
    with pytest.raises(StateUnwritable, match="journal"):
        Journal(str(path / "missing")).append([{"n": 1}])


class FullDisk:
    """Stands for ``os.write``: takes so many bytes, then refuses."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, descriptor: int, content: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = REAL_WRITE(descriptor, content[: self.room])
        self.room -= done
        return done


REAL_WRITE = os.write


def test_lines_that_a_full_disk_refused_are_written_when_there_is_room(path: Path, monkeypatch) -> None:
    journal = Journal(str(path))
    disk = FullDisk(room=500)
    monkeypatch.setattr("provisioner.state.journal.os.write", disk)
    for some in (range(100), range(100, 101), range(101, 102)):
        with pytest.raises(StateUnwritable, match="No space left"):
            journal.append({"time": 1.0, "n": number} for number in some)
    disk.room = 1_000_000
    journal.append([{"time": 1.0, "n": 102}])
    found = journal.find('"n"')
    assert [line["n"] for line in found.lines] == list(range(103)), "each once, and in order"
    assert found.torn <= 1, "the half of a line that the disk still took"


def test_a_journal_that_cannot_be_written_for_long_keeps_the_newest_lines(path: Path, monkeypatch) -> None:
    journal = Journal(str(path))
    disk = FullDisk(room=0)
    monkeypatch.setattr("provisioner.state.journal.os.write", disk)
    monkeypatch.setattr("provisioner.state.journal.UNWRITTEN_BYTES", 1000)
    for turn in range(3):
        with pytest.raises(StateUnwritable):
            journal.append({"n": number} for number in range(turn * 100, (turn + 1) * 100))
    disk.room = 1_000_000
    journal.append([{"n": 300}])
    kept = numbers(path)
    assert 80 < len(kept) < 120
    assert kept == list(range(kept[0], 301)), "none between them is missing"
