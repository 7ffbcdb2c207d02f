"""The journal: complete lines, in order, rotated by size."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from provisioner.state.errors import StateUnwritable
from provisioner.state.journal import Journal, format_time
from tests.unit.core import (
    BEFORE,
    NOW,
    REQUEST,
    name,
)


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
    Journal(str(path)).append([{"time": format_time(1.0), "n": 4}])
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
    """A replacement of ``os.write`` that writes ``room`` bytes, and then fails because the disk is full."""

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
            journal.append({"time": format_time(1.0), "n": number} for number in some)
    disk.room = 1_000_000
    journal.append([{"time": format_time(1.0), "n": 102}])
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


WALL = 1_790_000_000.0


def test_times_are_iso_with_an_offset(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal.jsonl"))
    journal.append([{"time": WALL, "machine": "m"}, {"time": format_time(WALL), "machine": "m"}])
    found = journal.find('"m"')
    assert ([line["at"] for line in found.lines], found.torn) == ([WALL], 1)
    assert format_time(WALL)[-6] in "+-"


def test_lines_that_are_torn_or_no_lines_of_ours_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    good = json.dumps({"time": format_time(5.0), "machine": "m"}) + "\n"
    path.write_bytes((good + '{"time":6,"machine":"m"\n["m"]\n{"time":"soon","m":"m"}\n' + good).encode() + b'{"ti\xff')
    found = Journal(str(path)).find('"m"')
    assert (len(found.lines), found.torn, found.since) == (2, 4, 5.0)


def test_a_journal_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert Journal(str(path)).find("x") == Journal(str(path)).find("y")
    path.symlink_to("elsewhere")
    (tmp_path / "journal.jsonl.1").write_text(json.dumps({"time": format_time(5.0), "machine": "m"}) + "\n")
    found = Journal(str(path)).find('"m"')
    assert len(found.lines) == 1
    assert "link" in found.unreadable


def test_lines_come_in_the_order_of_writing_across_rotations_and_each_once(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal.jsonl"), max_bytes=300, keep=3)
    for number in range(40):
        journal.append([{"time": format_time(NOW + number), "n": number, "machine": name(number), "of": REQUEST}])
    numbers = [line["n"] for line in journal.find(REQUEST, "machine", name(39)).lines]
    assert numbers == list(range(40 - len(numbers), 40))
    assert len(numbers) > 5


@pytest.mark.parametrize(
    ("most", "found"),
    [
        pytest.param(None, [0, 1, 2, 3, 4, 5], id="no bound"),
        pytest.param(6, [0, 1, 2, 3, 4, 5], id="there are no more"),
        pytest.param(5, [2, 3, 4, 5], id="of the first cycle only a part would be left"),
        pytest.param(4, [4, 5], id="the first cycle may be cut"),
        pytest.param(2, [4, 5], id="one cycle is more than is asked for"),
    ],
)
def test_of_too_many_lines_the_newest_cycles_are_read_whole(tmp_path: Path, most: int | None, found: list[int]) -> None:
    journal = Journal(str(tmp_path / "journal.jsonl"))
    journal.append([{"time": format_time(NOW + number // 2), "n": number, "machine": "m"} for number in range(6)])
    assert [line["n"] for line in journal.find('"m"', newest=True, most=most).lines] == found


def test_two_that_write_rotate_once(tmp_path: Path) -> None:
    loop, command = (Journal(str(tmp_path / "journal.jsonl"), max_bytes=65, keep=3) for _ in range(2))
    loop.append([{"time": format_time(NOW), "event": "a machine of the first"}])
    command._rotate()
    command.append([{"time": format_time(NOW), "event": "short"}])
    command._rotate()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["journal.jsonl", "journal.jsonl.1"]


def test_a_rotation_while_it_is_read_hides_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(str(tmp_path / "journal.jsonl"), max_bytes=10_000, keep=3)
    journal.append([{"time": format_time(BEFORE), "machine": "m"}])
    from provisioner.state import journal as module

    read = module._read_into

    def rotating(contents: dict[tuple[int, int], bytes], path: str) -> None:
        read(contents, path)
        if path == journal.path:
            Path(path).rename(f"{path}.1")

    monkeypatch.setattr(module, "_read_into", rotating)
    assert len(journal.find("machine").lines) == 1
