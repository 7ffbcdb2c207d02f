"""`provisioner recover`.

Without a flag it changes nothing. One flag lets it write, and another lets it release the brake.

It lists the machines that a release would delete.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands.cli import run
from provisioner.model import (
    Brake,
    BrakeReason,
    ErrorClass,
    Failure,
    Limits,
    Memory,
    ObservationFailed,
    OrphanLimits,
    RequestRecord,
    Verdict,
)
from provisioner.state.directory import StateDir
from provisioner.telemetry.pool_status import PoolStatus
from tests.support.clock_times import clock_time
from tests.support.hostfactory.sites import example_site
from tests.support.parts import alter
from tests.unit.core import running

ORPHANS = {"hf-zzzzzzzzzz-000001": 9_000.0, "hf-zzzzzzzzzz-000002": 9_900.0}
"""Loop time since which each machine has no request; memory is written at 10,000."""

BRAKE = Brake(BrakeReason.MEMORY_LOST, 9_000.0, "memory.json was lost and was rebuilt; machines found: 2.")
LATCHED = alter(Memory("demoinst"), generation=1, time=10_000.0, brake=BRAKE, orphans=ORPHANS)
LACKS_ONE = replace(
    LATCHED, requests={"aaaaaaaaaa": RequestRecord("aaaaaaaaaa", "GkePod", 3, read_at=0.0, deadline_at=1.0)}
)


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the wall clock, so that the results do not depend on the speed of the host."""
    stands = time.time()
    monkeypatch.setattr(time, "time", lambda: stands)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDir:
    """The state directory of the example's provider instance, with an empty intent."""
    made = StateDir(example_site(tmp_path, monkeypatch) / "work")
    made.intent.create("demoinst")
    return made


def remember(state: StateDir, memory: Memory) -> None:
    """Write memory as a loop has left it just now."""
    state.memory.write(alter(memory, time_wall=time.time()))


def recover(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command. Return its exit code and its document."""
    code = run(["recover", "-o", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def every_byte(directory: str) -> dict[str, tuple[int, int, bytes]]:
    """Return the content of a directory, with inodes and times of modification."""
    paths = [Path(directory), *Path(directory).rglob("*")]
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in paths
    }


def seconds_from_now(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone - time.time()


# --- without a flag ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", BrakeReason)
def test_a_release_that_may_delete_anothers_machines_is_named_only_with_its_condition(
    state: StateDir, capsys: pytest.CaptureFixture[str], reason: BrakeReason
) -> None:
    remember(state, replace(LATCHED, brake=replace(BRAKE, reason=reason)))
    condition = recover(capsys)[1]["outcome"].partition(": provisioner recover --release-brake")[0]
    may_be_another = reason in (BrakeReason.TOO_MANY_ORPHANS, BrakeReason.IDENTITY_CONFLICT)
    assert condition.endswith("To release it once no other provisioner makes machines") is may_be_another


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize(
    ("held", "broken"),
    [
        pytest.param(LATCHED, (), id="the brake is latched"),
        pytest.param(LACKS_ONE, (), id="a request is lost"),
        pytest.param(LATCHED, ("memory",), id="memory is unreadable"),
        pytest.param(LATCHED, ("status",), id="status is unreadable"),
    ],
)
def test_without_a_flag_nothing_changes(
    state: StateDir, capsys: pytest.CaptureFixture[str], held: Memory, broken: tuple[str, ...], output: str
) -> None:
    remember(state, held)
    state.status.write({}, {})
    state.seen.touch("aaaaaaaaaa")
    state.heartbeat.touch()
    for kind in broken:
        Path(state.path, f"{kind}.json").write_text("{")
    before = every_byte(state.path)
    assert run(["recover", "-o", output]) == 1, "an operator has something to do"
    assert capsys.readouterr().out
    assert every_byte(state.path) == before


def test_without_a_problem_recover_finds_nothing(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    remember(state, replace(LATCHED, brake=None))
    code, shown = recover(capsys)
    assert (code, shown["brake"], shown["writes"], shown["released"]) == (0, None, [], False)


def test_it_shows_since_when_and_why_the_brake_holds_and_which_machines_a_release_would_delete_when(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(state, LATCHED)
    shown = recover(capsys)[1]
    brake, waiting = shown["brake"], shown["waiting"]
    assert (brake["reason"], brake["detail"], brake["pool"]) == ("memory_lost", BRAKE.detail, "")
    assert -1005 < seconds_from_now(brake["since"]) < -995
    assert [one["machine"] for one in waiting] == list(ORPHANS)
    first, second = (seconds_from_now(one["deleted_at"]) for one in waiting)
    assert -5 < first < 5, "its ten minutes of grace are over"
    assert 495 < second < 505, "nine minutes of grace are left"
    run(["recover"])
    text = capsys.readouterr().out
    assert f"BRAKE memory_lost since {clock_time(brake['since'])}: {BRAKE.detail}" in text
    assert all(f"machine {name}" in text for name in ORPHANS)
    assert f"deleted as an orphan at {clock_time(waiting[1]['deleted_at'])}" in text


def test_when_they_go_is_bounded_by_the_cap_per_hour(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"hf-zzzzzzzzzz-{number:06d}" for number in range(45)]
    spent = (8_000.0,) * 5
    remember(state, alter(LATCHED, orphans=dict.fromkeys(names, 9_000.0), orphan_deletes=spent))
    minutes = [round(seconds_from_now(one["deleted_at"]) / 60) for one in recover(capsys)[1]["waiting"]]
    hours = [(15, 0), (5, 3600 - 2000), (15, 3600), (5, 2 * 3600 - 2000), (5, 7200)]
    assert minutes == [round(at / 60) for count, at in hours for _ in range(count)]
    run(["recover"])
    shown = capsys.readouterr().out
    assert sum("  machine " in line for line in shown.splitlines()) == 20
    assert "and 25 more, the last of them at" in shown


def test_the_limits_are_those_that_the_loop_has_left_else_the_configurations_else_unknown(
    tmp_path: Path, state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(state, LATCHED)
    limits = Limits("", {}, {}, orphans=OrphanLimits(1200.0))
    state.pool_status.write(asdict(PoolStatus(limits=limits)))
    assert 195 < seconds_from_now(recover(capsys)[1]["waiting"][0]["deleted_at"]) < 205, "the loop's 20 minutes"
    Path(state.pool_status.path).write_text("{")
    assert -5 < seconds_from_now(recover(capsys)[1]["waiting"][0]["deleted_at"]) < 5, "the configuration's ten"
    (tmp_path / "conf" / "provisioner.yaml").write_text("{")
    code, shown = recover(capsys)
    assert (code, [one["deleted_at"] for one in shown["waiting"]]) == (1, [None, None])


def test_it_names_the_requests_that_a_release_would_cancel(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    forgotten = RequestRecord("aaaaaaaaaa", "GkePod", 1, 0.0, 1.0, {0: running(0, Verdict.SUCCEEDED)})
    asked = replace(forgotten, id="bbbbbbbbbb", slots={})
    heard = replace(asked, id="cccccccccc")
    document = {"template": "GkePod", "count": 1, "created_wall": 0.0}
    state.intent.add({"requests": dict.fromkeys(("aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc"), document)})
    remember(state, replace(LATCHED, requests={one.id: one for one in (forgotten, asked, heard)}))
    state.terminal_answers.assume_reported("cccccccccc")
    for id_, ago in (("aaaaaaaaaa", 1801), ("bbbbbbbbbb", 0), ("cccccccccc", 1801)):
        state.seen.touch(id_)
        then = time.time() - ago
        os.utime(Path(state.seen.path, id_), (then, then))
    assert recover(capsys)[1]["forgotten"] == [{"id": "aaaaaaaaaa", "machines": 1}]
    run(["recover"])
    assert "request aaaaaaaaaa: cancelled, and its 1 machine deleted" in capsys.readouterr().out


# --- writing ----------------------------------------------------------------------------------------------------------


def test_it_shows_the_files_writes_them_with_apply_and_leaves_the_brake_as_it_is(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(state, LACKS_ONE)
    assert run(["recover"]) == 1
    shown = capsys.readouterr().out
    assert "to write back: request aaaaaaaaaa, machines 3, template GkePod" in shown
    assert "To make these changes: provisioner recover --apply" in shown
    assert (state.intent.read().requests, state.release_asked()) == ({}, False)
    code, document = recover(capsys, "--apply")
    assert (code, document["writes"], document["applied"], document["released"]) == (0, ["intent"], True, False)
    assert state.intent.read().requests["aaaaaaaaaa"].count == 3
    assert run(["recover", "--apply"]) == 0, "there is nothing left to write"
    assert "The brake stays latched. To release it: provisioner recover --release-brake" in capsys.readouterr().out
    assert not state.release_asked()


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(["intent"], id="memory tells all: what would be written is shown"),
        pytest.param(["intent", "memory"], id="only the machines tell: refused"),
    ],
)
def test_where_a_pool_cannot_be_seen(
    state: StateDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lost: list[str]
) -> None:
    blind = ObservationFailed("gke-main", 0.0, Failure(ErrorClass.UNAVAILABLE, "no route"))
    monkeypatch.setattr("provisioner.commands.recover.observe_once", lambda *_: {"gke-main": blind})
    remember(state, replace(LATCHED, brake=None))
    for kind in lost:
        Path(state.path, f"{kind}.json").unlink()
    assert run(["recover"]) == 1
    output = capsys.readouterr()
    assert ("pool gke-main cannot be seen" in output.out) is (lost == ["intent"])
    assert ("cannot be seen: gke-main. No file was written." in output.err) is (lost != ["intent"])
    assert run(["recover", "--apply"]) == (0 if lost == ["intent"] else 1)
    assert Path(state.intent.path).exists() is (lost == ["intent"])


# --- releasing --------------------------------------------------------------------------------------------------------


def test_releasing_has_a_flag_of_its_own(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    remember(state, LATCHED)
    code, document = recover(capsys, "--release-brake")
    assert (code, document["released"], document["applied"]) == (0, True, False)
    assert [one["machine"] for one in document["waiting"]] == list(ORPHANS)
    assert state.release_asked()
    run(["recover"])
    assert "A release of the brake was requested" in capsys.readouterr().out


def test_it_releases_after_it_has_said_what_will_go(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    remember(state, LATCHED)
    in_the_way = Path(state.path, "recover")
    in_the_way.mkdir()
    assert run(["recover", "--release-brake"]) == 1
    output = capsys.readouterr()
    assert all(f"machine {name}" in output.out for name in ORPHANS)
    assert "releases the brake with its next cycle" not in output.out
    assert f"{in_the_way}: cannot be written" in output.err
    assert run(["recover", "--release-brake", "-o", "json"]) == 1
    assert capsys.readouterr().out == "", "a document would say that the brake is released"


def test_where_no_brake_is_latched_nothing_is_released(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    remember(state, replace(LATCHED, brake=None))
    code, document = recover(capsys, "--release-brake")
    assert (code, document["released"]) == (0, False)
    assert "No brake is latched" in document["outcome"]
    assert not state.release_asked()


@pytest.mark.parametrize(
    ("held", "broken", "words"),
    [
        pytest.param(
            LACKS_ONE, (), "write the files as well: provisioner recover --apply --release-brake", id="intent"
        ),
        pytest.param(LATCHED, ("memory",), "provisioner recover --apply", id="memory"),
    ],
)
def test_it_is_not_released_while_files_are_wrong(
    state: StateDir, capsys: pytest.CaptureFixture[str], held: Memory, broken: tuple[str, ...], words: str
) -> None:
    remember(state, held)
    for kind in broken:
        Path(state.path, f"{kind}.json").write_text("{")
    before = every_byte(state.path)
    code, document = recover(capsys, "--release-brake")
    assert (code, document["released"]) == (1, False)
    assert document["outcome"].startswith("The brake was not released:")
    assert words in document["outcome"]
    assert every_byte(state.path) == before


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize("calls", [["--apply --release-brake"], ["--apply", "--release-brake"]])
def test_both_flags_write_and_release(
    state: StateDir,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    calls: list[str],
    is_older: bool,
) -> None:
    monkeypatch.setattr("provisioner.commands.recover.observe_once", lambda *_: {})
    remember(state, replace(LACKS_ONE, generation=7 if is_older else 1))
    assert recover(capsys)[1]["files"]["intent"] == ("older" if is_older else "fine")
    for options in calls:
        assert not state.release_asked()
        code, document = recover(capsys, *options.split())
        assert code == 0, document
    assert document["released"]
    assert list(state.intent.read().requests) == ["aaaaaaaaaa"]
    assert state.release_asked()


def test_a_memory_that_will_be_made_again_has_no_brake_to_release_yet(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(state, LATCHED)
    Path(state.memory.path).write_text("{")
    code, document = recover(capsys, "--apply", "--release-brake")
    assert (code, document["applied"], document["released"]) == (1, True, False)
    assert "you have not seen yet" in document["outcome"]
    assert not state.release_asked()


def test_what_an_old_copy_of_memory_says_of_the_brake_counts_for_nothing(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(state, LATCHED)
    copy = Path(state.memory.path).read_bytes()
    remember(state, replace(LATCHED, brake=None))
    Path(state.memory.path).write_bytes(copy)
    code, shown = recover(capsys)
    assert (code, shown["files"]["memory"], shown["brake"], shown["waiting"]) == (1, "older", None, [])
    code, shown = recover(capsys, "--release-brake")
    assert (code, shown["released"], state.release_asked()) == (1, False, False)


def test_before_the_first_loop_there_is_nothing_to_recover(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recover"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "  intent.json: fine",
        "  memory.json: new",
        "  status.json: new",
        "  No loop has run on this state directory yet (`provisioner run`): there is nothing to recover.",
    ]
    assert run(["recover", "--release-brake"]) == 1
    words = "The brake was not released: no brake is latched. No loop has run on this state directory yet"
    assert words in capsys.readouterr().out
    assert not state.release_asked()


@pytest.mark.parametrize("left", ["status.json", "memory.json.lock", "both of memory's"])
def test_a_memory_that_a_loop_has_made_is_lost_when_it_is_missing(
    state: StateDir, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    if left == "status.json":
        state.status.write({}, {})
    elif left == "memory.json.lock":
        Path(state.path, left).write_text('{"generation": 3}\n')
    else:
        remember(state, LATCHED)
        Path(state.memory.path).unlink()
    assert run(["trim"]) == 1
    assert "memory.json: the file does not exist" in capsys.readouterr().err
    assert run(["recover"]) == (left != "status.json")
    assert "latches a brake that you have not seen yet" in capsys.readouterr().out
