"""The journal's lines: times, rotation, and what is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.state.journal import Journal, stamp
from tests.unit.core import (
    BEFORE,
    NOW,
    REQUEST,
    name,
)

WALL = 1_790_000_000.0


def test_times_are_iso_with_an_offset_and_old_ones_are_read(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal.jsonl"))
    journal.append([{"time": 1_700_000_000.5, "machine": "m"}, {"time": stamp(WALL), "machine": "m"}])
    assert [line["at"] for line in journal.find('"m"').lines] == [1_700_000_000.5, WALL]
    assert stamp(WALL)[-6] in "+-"


def test_lines_that_are_torn_or_no_lines_of_ours_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    good = '{"time":5,"machine":"m"}\n'
    path.write_bytes((good + '{"time":6,"machine":"m"\n["m"]\n{"time":"soon","m":"m"}\n' + good).encode() + b'{"ti\xff')
    found = Journal(str(path)).find('"m"')
    assert (len(found.lines), found.torn, found.since) == (2, 4, 5.0)


def test_a_journal_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert Journal(str(path)).find("x") == Journal(str(path)).find("y")
    path.symlink_to("elsewhere")
    (tmp_path / "journal.jsonl.1").write_text('{"time":5,"machine":"m"}\n')
    found = Journal(str(path)).find('"m"')
    assert len(found.lines) == 1
    assert "link" in found.unreadable


def test_lines_come_in_the_order_of_writing_across_rotations_and_each_once(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal.jsonl"), max_bytes=300, keep=3)
    for number in range(40):
        journal.append([{"time": NOW + number, "n": number, "machine": name(number), "of": REQUEST}])
    numbers = [line["n"] for line in journal.find(REQUEST, "machine", name(39)).lines]
    assert numbers == list(range(40 - len(numbers), 40))
    assert len(numbers) > 5


@pytest.mark.parametrize(
    ("most", "found"),
    [
        pytest.param(None, [0, 1, 2, 3, 4, 5], id="no bound"),
        pytest.param(6, [0, 1, 2, 3, 4, 5], id="there are no more"),
        pytest.param(5, [2, 3, 4, 5], id="of the first cycle only a part would be left"),
        pytest.param(4, [4, 5], id="nobody knows whether the first cycle is whole"),
        pytest.param(2, [4, 5], id="one cycle is more than is asked for"),
    ],
)
def test_of_too_many_lines_the_newest_cycles_are_read_whole(tmp_path: Path, most: int | None, found: list[int]) -> None:
    journal = Journal(str(tmp_path / "journal.jsonl"))
    journal.append([{"time": NOW + number // 2, "n": number, "machine": "m"} for number in range(6)])
    assert [line["n"] for line in journal.find('"m"', newest=True, most=most).lines] == found


def test_two_that_write_rotate_once(tmp_path: Path) -> None:
    loop, command = (Journal(str(tmp_path / "journal.jsonl"), max_bytes=40, keep=3) for _ in range(2))
    loop.append([{"time": NOW, "event": "a machine of the first"}])
    command._rotate()
    command.append([{"time": NOW, "event": "short"}])
    command._rotate()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["journal.jsonl", "journal.jsonl.1"]


def test_a_rotation_while_it_is_read_hides_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(str(tmp_path / "journal.jsonl"), max_bytes=10_000, keep=3)
    journal.append([{"time": BEFORE, "machine": "m"}])
    from provisioner.state import journal as module

    read = module._read_into

    def rotating(contents: dict[tuple[int, int], bytes], path: str) -> None:
        read(contents, path)
        if path == journal.path:
            Path(path).rename(f"{path}.1")

    monkeypatch.setattr(module, "_read_into", rotating)
    assert len(journal.find("machine").lines) == 1
