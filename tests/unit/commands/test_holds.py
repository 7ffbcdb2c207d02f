"""`provisioner pause`, `resume`, `drain`, `cancel`, `stop-all`, `start-all`: records, refusals and messages."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands.cli import run
from provisioner.files.ownership import user_name
from provisioner.model import Hold, Limits, Memory, RequestStatus, Verdict
from provisioner.planning.core.holds import limits_under_holds
from provisioner.state.directory import StateDir
from provisioner.telemetry.holds import current_holds
from provisioner.telemetry.pool_status import PoolStatus
from tests.support.clock_times import clock_time
from tests.support.hostfactory.sites import example_site
from tests.unit.core import BEFORE, OTHER, REQUEST, limits, memory, name, pool, record, running, slot, unmet_of

ME = user_name(os.getuid())
HELD = memory(
    record(running(0), slot(1), count=3),
    record(
        running(0, Verdict.SUCCEEDED, OTHER), running(1, Verdict.RETURNED, OTHER),
        id_=OTHER, ended=RequestStatus.COMPLETE, reported_at=BEFORE,
    ),
)  # fmt: skip
UNUSED = "No hold was changed."


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDir:
    """A provider instance whose loop has pools a and b, and has just ended a cycle."""
    made = StateDir(example_site(tmp_path, monkeypatch) / "work")
    made.intent.create("demoinst")
    made.memory.write(HELD)
    leave(made, limits(pool("a"), pool("b", is_paused=True)), paused=["b"])
    made.heartbeat.touch()
    return made


def leave(state: StateDir, allowed: Limits, **pool_status: Any) -> None:
    state.pool_status.write(asdict(PoolStatus(limits=allowed, **pool_status)))


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and the output of both streams."""
    capsys.readouterr()
    code = run(list(arguments))
    out, error = capsys.readouterr()
    return code, (out + error).strip()


def held(state: StateDir) -> list[tuple[str, str, str, str]]:
    return [(hold.kind, hold.target, hold.who, hold.reason) for hold in state.holds.read().current]


@pytest.mark.parametrize(
    ("arguments", "recorded", "words"),
    [
        (["pause", "a"], ("pause", "a", ME, ""), "gets no new machines until `provisioner resume a`"),
        (["drain", "a", "--reason", "sick"], ("drain", "a", ME, "sick"), "HostFactory is asked to return"),
        (
            ["stop-all", "--reason", " two\n  lines "],
            ("stop-all", "", ME, "two lines"),
            "until `provisioner start-all`",
        ),
        (["cancel", REQUEST, "--reason", "no"], ("cancel", REQUEST, ME, "no"), "ends with its running machines"),
        (["cancel", name(0, OTHER), "--reason", "no"], ("cancel", name(0, OTHER), ME, "no"), "to return machine"),
        (["cancel", name(1), "--reason", "no"], ("cancel", name(1), ME, "no"), "once its request has ended"),
        (["pause", "gke-main", "--reason", "look"], ("pause", "gke-main", ME, "look"), "no new machines"),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
def test_a_hold_is_recorded_with_who_and_why_and_pulling_it_again_says_so(
    arguments: list[str], recorded: tuple[str, ...], words: str, state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = called(capsys, *arguments)
    assert (code, held(state)) == (0, [recorded])
    assert words in text
    assert "The loop obeys from now on." in text
    code, text = called(capsys, *arguments)
    assert (code, held(state)) == (0, [recorded])
    assert f"already, by {ME} since " in text
    assert "No hold was changed." in text


@pytest.mark.parametrize("arguments", [["drain", "a"], ["cancel", REQUEST], ["stop-all"]], ids=lambda one: str(one[0]))
@pytest.mark.parametrize("reason", [[], ["--reason", " "], ["--reason", "x" * 501]], ids=["none", "blank", "too long"])
def test_what_costs_machines_asks_for_a_reason(arguments: list[str], reason: list[str], state: StateDir) -> None:
    with pytest.raises(SystemExit, match="2"):
        run([*arguments, *reason])
    assert held(state) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pause", "c"], "No pool is named 'c'; there are 'a', 'b', 'gke-main', 'gke-spare', 'mig-a', 'mig-b'."),
        (["drain", "gke-mian", "--reason", "x"], "No pool is named 'gke-mian'; did you mean 'gke-main'?"),
        (["resume", ""], "No pool is named ''"),
        (["cancel", "zz", "--reason", "x"], f"No request and no machine is named 'zz'; there are '{REQUEST}', 'hf-"),
        (["cancel", OTHER, "--reason", "x"], f"Request {OTHER} has ended (complete)"),
        (["cancel", name(1, OTHER), "--reason", "x"], f"Machine {name(1, OTHER)} is returned already."),
        (["cancel", "ret-aaaaaaaaaa", "--reason", "x"], "is a return request and cannot be cancelled"),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
def test_a_name_that_nothing_has_is_refused_and_nothing_is_recorded(
    arguments: list[str], words: str, state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = called(capsys, *arguments)
    assert code == 1
    assert text.startswith(words) or words in text
    assert text.endswith(UNUSED)
    assert not state.holds.exists()


def test_of_many_names_some_are_shown(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    leave(state, limits(*(pool(f"pool-{number:02d}") for number in range(30))))
    _, text = called(capsys, "pause", "~")
    assert ("pool-00" in text, "pool-25" in text, "and more. No hold was" in text) == (True, False, True)


def test_it_says_if_there_is_no_name_at_all(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    state.memory.write(Memory("demoinst"))
    assert f"is named 'zz'; there is none. {UNUSED}" in called(capsys, "cancel", "zz", "--reason", "x")[1]


def test_a_cancel_stays_while_memory_is_missing(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys, "cancel", name(1), "--reason", "no")[0] == 0
    Path(state.memory.path).unlink()
    assert called(capsys, "pause", "a")[0] == 0
    assert [target for _, target, _, _ in held(state)] == [name(1), "a"]


def test_a_request_that_no_loop_has_read_can_be_cancelled(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    id_ = state.record_request("demoinst", "T", 2, created_wall=0.0, rc_account="").id
    assert called(capsys, "cancel", id_, "--reason", "no")[0] == 0
    assert called(capsys, "pause", "a")[0] == 0
    assert [target for _, target, _, _ in held(state)] == [id_, "a"], "the next command does not forget it"
    assert called(capsys, "cancel", name(0, OTHER), "--reason", "x")[0] == 0
    state.memory.write(Memory("demoinst"))
    assert called(capsys, "pause", "b")[0] == 0
    assert [target for _, target, _, _ in held(state)] == [id_, "a", "b"], "what is done leaves the file"


def test_resume_and_start_all_let_go_of_what_they_name_and_of_nothing_else(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["pause", "a"], ["drain", "a", "--reason", "x"], ["pause", "b"], ["stop-all", "--reason", "x"]
    ):  # fmt: skip
        assert run(arguments) == 0
    code, text = called(capsys, "resume", "a", "--reason", "well again")
    assert (code, [kind for kind, *_ in held(state)]) == (0, ["pause", "stop-all"])
    assert text.startswith("Pool a goes on.")
    assert {(hold.who, hold.reason) for hold in state.holds.read().released} == {(ME, "well again")}
    assert called(capsys, "resume", "a") == (0, "There is no hold on pool a. No hold was changed.")
    assert called(capsys, "start-all")[0] == 0
    assert held(state) == [("pause", "b", ME, "")]
    assert called(capsys, "start-all") == (0, "There is no hold on everything. No hold was changed.")
    assert "The pool stays paused until `paused` is removed from provisioner.yaml." in called(capsys, "resume", "b")[1]
    os.unlink(state.heartbeat.path)
    code, text = called(capsys, "stop-all", "--reason", "x")
    assert (code, len(held(state))) == (0, 1)
    assert text.endswith("No loop runs; the next loop will obey.")


def test_a_new_directory_takes_holds_on_the_pools_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = example_site(tmp_path, monkeypatch)
    assert called(capsys, "pause", "mig-a")[0] == 0
    (site / "conf" / "provisioner.yaml").write_text("pools: [")
    assert called(capsys, "pause", "mig-b")[0] == 1, "a configuration that is wrong has no pools"
    assert called(capsys, "resume", "mig-a")[0] == 0, "what is held can be let go of all the same"


@pytest.mark.parametrize(("command", "left"), [(["stop-all", "--reason", "x"], 1), (["start-all"], 0)])
def test_a_file_that_cannot_be_used_is_refused_but_for_stop_and_start(
    command: list[str], left: int, state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["drain", "a", "--reason", "x"]) == 0
    Path(state.holds.path).write_text("{")
    code, text = called(capsys, "pause", "a")
    assert code == 1
    assert "The holds in force are unknown" in text
    code, text = called(capsys, *command)
    assert (code, len(held(state))) == (0, left)
    assert "All other holds are released; set again those that are needed." in text


# --- the output for operators -----------------------------------------------------------------------------------------


def test_status_says_who_holds_what_since_when_and_why(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert "by " + ME not in called(capsys, "status")[1]
    known = limits(pool("a"), pool("b", is_paused=True))
    leave(state, known)
    for arguments in (
        ["pause", "a"], ["drain", "b", "--reason", "sick"], ["stop-all", "--reason", "cloud is down"],
        ["cancel", name(0, OTHER), "--reason", "wrong"],
    ):  # fmt: skip
        assert run(arguments) == 0
    code, text = called(capsys, "status")
    assert code == 1
    lines = [line.strip() for line in text.splitlines()]
    since = state.holds.read().current
    assert [line for line in lines if f"by {ME} since " in line] == [
        f"STOPPED: no machine is made or deleted until `provisioner start-all`; {by(since[2])}",
        "DRAINED pool b: it has no machine left and gets none until `provisioner resume b`; " + by(since[1]),
        f"PAUSED pool a: the pool gets no new machines until `provisioner resume a`; {by(since[0])}",
        f"cancel of {name(0, OTHER)} asked {by(since[3])}",
    ]
    assert [one["hold"] for one in current_holds(state, HELD)["current"]] == ["pause", "drain", "stop-all", "cancel"]
    assert "1 in a: stopped" not in text, "the loop publishes it with its next cycle"
    holds = state.holds.read()
    unmet = unmet_of(HELD, limits_under_holds(known, holds), holds=holds)
    leave(state, known, unmet=unmet)
    assert "1 in a: stopped" in called(capsys, "status")[1]
    assert run(["drain", "a", "--reason", "x"]) == 0
    current = current_holds(state, HELD)["current"]
    assert {one["target"]: one["machines"] for one in current if one["hold"] == "drain"} == {
        "a": 3, "b": 0
    }  # fmt: skip


def by(hold: Hold) -> str:
    return f"by {ME} since {clock_time(hold.since)}" + (f": {hold.reason}" if hold.reason else "")


def test_status_says_that_holds_are_unknown(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    Path(state.holds.path).write_text("{")
    code, text = called(capsys, "status")
    assert code == 1
    assert "HOLDS UNKNOWN" in text


def test_the_document_says_what_was_done(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(called(capsys, "drain", "a", "--reason", "sick", "-o", "json")[1])
    assert document.pop("held_by")["reason"] == "sick"
    assert document == {
        "hold": "drain", "target": "a", "set": True, "changed": True, "machine": False,
        "paused_by_settings": False, "loop_runs": True, "unusable_message": "",
    }  # fmt: skip


@pytest.mark.parametrize("command", [["stop-all", "--reason", "x"], ["start-all"]])
def test_who_stops_all_waits_for_no_file_of_machines(
    command: list[str], state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command must not read memory or intent. In an emergency, these files may have tens of megabytes, or be
    damaged."""
    for file in (state.memory.path, state.intent.path):
        Path(file).write_text("{")
    assert called(capsys, *command)[0] == 0
