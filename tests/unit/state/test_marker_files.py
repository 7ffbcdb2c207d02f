"""Files that carry only a name and a modification time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from provisioner.hostfactory.provider_config import Digests
from provisioner.state.errors import StateUnreadable
from provisioner.state.marker_files import (
    KEPT,
    ConfigMark,
    ConfigMarks,
    Difference,
    Heartbeat,
    LifeSigns,
    Side,
    differences,
)
from provisioner.state.status_file import PoolStatusFile
from provisioner.telemetry.config_drift import format_difference


@pytest.mark.parametrize("content", [{"pools": {"a": ["one", "two"]}, "paused": ["b"]}, {}])
def test_notes_are_read(tmp_path: Path, content: dict[str, Any]) -> None:
    pool_status = PoolStatusFile(str(tmp_path / "pools.json"))
    assert pool_status.read() == {}
    pool_status.write(content)
    assert pool_status.read() == content


@pytest.mark.parametrize("content", ["[]", "3", "{"])
def test_damaged_notes_are_no_notes(tmp_path: Path, content: str) -> None:
    (tmp_path / "pools.json").write_text(content)
    with pytest.raises(StateUnreadable, match=r"pools\.json"):
        PoolStatusFile(str(tmp_path / "pools.json")).read()


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
    assert heartbeat.silent_seconds_until(last + 5_000_000_000) == pytest.approx(5, abs=0.001)
    os.utime(heartbeat.path, ns=(0, 0))
    heartbeat.touch()
    assert os.stat(heartbeat.path).st_mtime_ns >= last


HOLDER = {"pid": 7, "host": "vm"}


@pytest.mark.parametrize(
    ("signs", "advice"),
    [
        (
            LifeSigns(HOLDER, 9.0, 118.0, "holds"),
            "process 7 on vm holds the loop's lock and has done nothing for 118 s: end it;",
        ),
        (
            LifeSigns(HOLDER, 9.0, 118.0, "waits"),
            "process 7 on vm holds the loop's lock and has done nothing for 118 s: end it;",
        ),
        (
            LifeSigns(HOLDER, fate="holds"),
            "process 7 on vm holds the loop's lock and has ended no cycle yet: read its log;",
        ),
        (
            LifeSigns(HOLDER, 9.0, 70.0, "holds", stopped_message="continue it"),
            "has done nothing for 70 s: continue it; another",
        ),
        (
            LifeSigns(HOLDER, 9.0, 70.0, "released"),
            "process 7 on vm no longer holds the loop's lock and did not sign off: start",
        ),
        (
            LifeSigns(HOLDER, 9.0, 70.0, "gone"),
            "process 7 on vm is gone without an orderly end: start `provisioner run`",
        ),
        (LifeSigns(HOLDER, 9.0, 70.0, "ended"), "the loop ended in order: start `provisioner run`"),
        (LifeSigns(), "start `provisioner run`; no machine is made or deleted until then"),
    ],
)
def test_the_step_of_an_operator_follows_from_the_fate_of_the_last_loop(signs: LifeSigns, advice: str) -> None:
    assert advice in signs.advice
    assert ("start" in signs.advice) is (signs.fate not in ("holds", "waits")), "another would only stand by"


A, B, C = (Digests("00000000", digit * 8) for digit in "abc")
OTHER = Digests("11111111", "a" * 8)


def read(**contents: list[tuple[int, Digests]]) -> dict[Side, list[ConfigMark]]:
    made = {side: sorted((ConfigMark(*one) for one in reads), reverse=True) for side, reads in contents.items()}
    return {"scripts": made.get("scripts", []), "loop": made.get("loop", [])}


TEMPLATES = "templates"
CASES = {
    "neither has read": (read(), []),
    "the loop alone has read": (read(loop=[(1, A)]), []),
    "the scripts alone have read": (read(scripts=[(1, A)]), []),
    "both have read the same": (read(scripts=[(2, A)], loop=[(1, A)]), []),
    "the scripts have read nothing since the loop's changed": (read(scripts=[(2, A)], loop=[(1, A), (3, B)]), []),
    "the scripts read the old one still": (
        read(scripts=[(4, A)], loop=[(1, A), (3, B)]),
        [Difference(TEMPLATES, "loop")],
    ),
    "the scripts read a new one": (read(scripts=[(1, A), (4, B)], loop=[(2, A)]), [Difference(TEMPLATES, "scripts")]),
    "both were changed apart": (read(scripts=[(1, A), (4, B)], loop=[(1, A), (3, C)]), [Difference(TEMPLATES, None)]),
    "they never were the same": (read(scripts=[(4, B)], loop=[(3, C)]), [Difference(TEMPLATES, None)]),
    "the scripts go back to what the loop had": (
        read(scripts=[(2, B), (5, A)], loop=[(1, A), (3, B)]),
        [Difference(TEMPLATES, None)],
    ),
    "the other file differs": (read(scripts=[(1, A), (4, OTHER)], loop=[(2, A)]), [Difference("config", "scripts")]),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_difference(case: str) -> None:
    contents, found = CASES[case]

    assert differences(contents) == found


@pytest.mark.parametrize(("newer", "words"), [("scripts", "configmap"), ("loop", "HostFactory's host"), (None, "both")])
def test_a_difference_says_what_to_do(newer: Side | None, words: str) -> None:
    text = format_difference(Difference(TEMPLATES, newer))

    assert "templates file" in text
    assert (words if newer else "compare the two") in text


def test_what_was_noted_is_read_and_what_is_old_is_forgotten(tmp_path: Path) -> None:
    marks = ConfigMarks(str(tmp_path / "config"))
    assert marks.read() == {"scripts": [], "loop": []}
    for number in range(KEPT + 1):
        digests = Digests("00000000", str(number) * 8)
        marks.note("loop", digests)
        os.utime(tmp_path / "config" / "-".join(("loop", *digests)), ns=(number, number))
    marks.note("scripts", A)
    (tmp_path / "config" / "loop-else").touch()
    marks.note_in_force(Digests("00000000", "4" * 8))

    assert [one.digests.templates[0] for one in marks.read()["loop"]] == ["4", "3", "2"]
    noted = marks.read()
    marks.note_in_force(Digests("00000000", "4" * 8))
    assert marks.read() == noted, "noted once"
    assert [one.digests for one in marks.read()["scripts"]] == [A]
    os.utime(tmp_path / "config" / "loop-00000000-44444444", ns=(4, 4))
    marks.note("loop", Digests("00000000", "2" * 8))
    assert [one.digests.templates[0] for one in marks.read()["loop"]] == ["2", "4", "3"], "read again: the newest"
