"""`provisioner status`: what it says, and that it exits with 1 where something asks for a person."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.commands.cli import run
from provisioner.model import Brake, BrakeReason, Memory, RequestRecord, Slot, Verdict, evolve
from provisioner.state.directory import StateDir
from provisioner.state.loop_signals import UNSEEN
from provisioner.telemetry.notes import LastingFailure, Notes, StandingRefusal
from tests.support.clock_times import clock_time
from tests.support.hostfactory.sites import example_site

HELD = Memory("demoinst", time=10_000.0, orphans={"hf-zzzzzzzzzz-000001": 9_900.0})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """The example's provider instance, with an empty intent, beside a loop that has just ended a cycle."""
    made = example_site(tmp_path, monkeypatch)
    assert run(["init"]) == 0
    StateDir(made / "work").heartbeat.touch()
    capsys.readouterr()
    return made


@pytest.fixture
def state(site: Path) -> StateDir:
    return StateDir(site / "work")


def leave(state: StateDir, **notes: Any) -> None:
    """Write the notes that a loop has left."""
    state.notes.write(asdict(Notes(**notes)))


def shown(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and text."""
    capsys.readouterr()
    return run(["status"]), capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    run(["status", "-o", "json"])
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


def ago(path: str, seconds: float) -> str:
    """The file was modified so long ago; when that was, as people read it."""
    then = time.time() - seconds
    os.utime(path, (then, then))
    return clock_time(then)


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_a_loop_that_runs_is_fine(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = shown(capsys)
    assert (code, "NOT RUNNING" in text) == (0, False)
    assert document(capsys)["loop"]["running"] is True


def test_a_loop_that_has_been_dead_for_68_s_is_a_problem(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    since = ago(state.heartbeat.path, 68)
    code, text = shown(capsys)
    assert (code, f"LOOP NOT RUNNING since {since}" in text) == (1, True), text
    assert document(capsys)["loop"]["running"] is False


def test_a_loop_that_never_ran_is_a_problem(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    Path(state.heartbeat.path).unlink()
    code, text = shown(capsys)
    assert (code, "LOOP NOT RUNNING and has never run" in text) == (1, True), text


def test_a_loop_that_has_signed_off_is_not_waited_for(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert state.loop_lock.acquire(0)
    state.loop_lock.raise_epoch()
    assert shown(capsys)[0] == 0
    state.loop_lock.sign_off()
    code, text = shown(capsys)
    assert (code, "LOOP NOT RUNNING since" in text) == (1, True), text


def test_where_nobody_can_say_it_is_not_said_that_the_loop_is_dead(
    state: StateDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a host that mounts the state directory read-only."""
    real = os.utime

    def refused(path: Any, *arguments: Any, **options: Any) -> None:
        if str(path).startswith(f"{state.heartbeat.path}."):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        real(path, *arguments, **options)

    def not_removed(path: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr(os, "unlink", not_removed)
    code, text = shown(capsys)
    assert (code, "NOT RUNNING" in text) == (0, False)
    assert re.search(r"loop last ran at \d\d:\d\d:\d\d on ", text)


# --- what the loop has left -------------------------------------------------------------------------------------------


EPOCH = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(0))

TROUBLES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing is planned": (
        {"problem": LastingFailure(0.0, "not seen yet: mig-a.")},
        f"NOTHING IS PLANNED since {EPOCH}: not seen yet: mig-a.",
    ),
    "a refused configuration": (
        {"configuration": LastingFailure(0.0, "provisioner.yaml: 1 problem\n  nonsense: unknown setting")},
        f"CONFIGURATION REFUSED, the one before stays in force, since {EPOCH}: provisioner.yaml: 1 problem",
    ),
    "a paused pool": ({"paused": ["mig-a"]}, "PAUSED pool mig-a: it gets no new machines"),
    "creates that are refused": (
        {"refused": [StandingRefusal("gke-main", "create", "GkePod", 0.0, "pods is forbidden")]},
        f"REFUSED by pool gke-main: creates of GkePod since {EPOCH}: pods is forbidden",
    ),
    "deletes that are refused": (
        {"refused": [StandingRefusal("mig-a", "delete", "", 0.0, "Required permission")]},
        f"REFUSED by pool mig-a: deletes since {EPOCH}: Required permission",
    ),
}


@pytest.mark.parametrize(("left", "words"), TROUBLES.values(), ids=TROUBLES)
def test_what_asks_for_a_person_is_said_and_the_code_is_1(
    state: StateDir, capsys: pytest.CaptureFixture[str], left: dict[str, Any], words: str
) -> None:
    leave(state)
    assert shown(capsys)[0] == 0
    leave(state, **left)
    code, text = shown(capsys)
    assert (code, words in text) == (1, True), text


def test_notes_of_a_loop_that_left_only_sentences_are_read(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    Path(state.notes.path).write_text('{"mig-a": ["someone else shrinks the group"]}')
    assert document(capsys)["problems"] == {"mig-a": ["someone else shrinks the group"]}


@pytest.mark.parametrize("section", ['"paused": 3', '"problem": []', '"terms": {"cancel_after": "x"}'])
def test_notes_that_no_loop_of_ours_left_are_named(
    state: StateDir, capsys: pytest.CaptureFixture[str], section: str
) -> None:
    Path(state.notes.path).write_text(f'{{"pools": {{}}, {section}}}')
    assert run(["status"]) == 1
    assert "pools.json: holds what no loop of ours writes" in capsys.readouterr().err


# --- old copies -------------------------------------------------------------------------------------------------------


def test_an_old_copy_of_memory_is_a_problem(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    state.memory.write(HELD)
    copy = shutil.copy2(state.memory.path, f"{state.path}/copy")
    state.memory.write(replace(HELD, orphans={}))
    assert shown(capsys)[0] == 0
    os.replace(copy, state.memory.path)
    code, text = shown(capsys)
    assert (code, "MEMORY OLD: memory.json is an old copy" in text) == (1, True), text
    assert document(capsys)["files"]["memory"]["condition"] == "older"


def test_a_memory_without_its_lock_file_is_a_problem(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    state.memory.write(HELD)
    Path(state.memory.lock_path).unlink()
    code, text = shown(capsys)
    assert (code, "MEMORY ALONE: memory.json stands without its lock file" in text) == (1, True), text


@pytest.mark.parametrize("by_memory", [False, True], ids=["by its lock file", "by what memory has read"])
def test_an_old_copy_of_intent_is_a_problem(
    state: StateDir, capsys: pytest.CaptureFixture[str], by_memory: bool
) -> None:
    copy = shutil.copy2(state.intent.path, f"{state.path}/copy")
    with state.intent.additions() as intent:
        intent.add_request("GkePod", 1, created_wall=0.0)
    state.memory.write(replace(HELD, generation=2 if by_memory else 0))
    assert shown(capsys)[0] == 0
    os.replace(copy, state.intent.path)
    if by_memory:
        Path(state.intent.lock_path).unlink()
    code, text = shown(capsys)
    assert (code, "INTENT OLD: intent.json is an old copy" in text) == (1, True), text


def test_an_intent_that_scripts_write_while_status_reads_is_not_taken_for_an_old_copy(
    state: StateDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state.memory.write(replace(HELD, generation=1))
    wrap_once(monkeypatch, "read", lambda: add_and_read_it(state))
    assert shown(capsys)[0] == 0


def add_and_read_it(state: StateDir) -> None:
    """Record a request as HF does, and let the loop read it."""
    with state.intent.additions() as intent:
        intent.add_request("GkePod", 1, created_wall=0.0)
    state.memory.write(replace(HELD, generation=2))


def wrap_once(monkeypatch: pytest.MonkeyPatch, method: str, meanwhile: Callable[[], None]) -> None:
    """Between the first read of memory and whatever comes next, this happens."""
    from provisioner.state.memory import MemoryStore

    whole = getattr(MemoryStore, method)

    def read(store: MemoryStore) -> Any:
        content = whole(store)
        monkeypatch.undo()
        meanwhile()
        return content

    monkeypatch.setattr(MemoryStore, method, read)


@pytest.mark.parametrize("content", [None, "{"], ids=["lost", "unreadable"])
@pytest.mark.parametrize("kind", ["intent", "memory"])
def test_a_file_that_cannot_be_read_hides_nothing_else(
    state: StateDir, capsys: pytest.CaptureFixture[str], kind: str, content: str | None
) -> None:
    brake = Brake(BrakeReason.INTENT_LOST, 9_000.0, "intent.json is missing.")
    state.memory.write(replace(HELD, time_wall=time.time(), brake=brake))
    leave(state, paused=["mig-a"])
    path = Path(state.path, f"{kind}.json")
    path.unlink()
    if content is not None:
        path.write_text(content)
    code, text = shown(capsys)
    word = "LOST" if content is None else "UNREADABLE"
    assert (code, f"{kind.upper()} {word}: " in text, "PAUSED pool mig-a" in text) == (1, True, True), text
    if kind == "intent":
        assert "BRAKE intent_lost" in text
        assert "machine hf-zzzzzzzzzz-000001" in text


# --- the brake --------------------------------------------------------------------------------------------------------


def test_a_latched_brake_says_since_when_why_and_which_machines_wait(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    brake = Brake(BrakeReason.TOO_MANY_ORPHANS, 9_000.0, "25 of 30 machines have no request.", "gke-main")
    names = [f"hf-zzzzzzzzzz-{number:06d}" for number in range(25)]
    wall = time.time()
    state.memory.write(replace(HELD, time_wall=wall, brake=brake, orphans=dict.fromkeys(names, 9_900.0)))
    terms = {"orphan_grace": 600.0, "orphan_cap_per_hour": 20, "cancel_after": 1800.0, "delete_unlisted_after": None}
    leave(state, orphans={"gke-main": names}, terms=terms)
    code, text = shown(capsys)
    assert code == 1
    since = clock_time(wall - 1_000)
    words = f"BRAKE too_many_orphans in pool gke-main since {since}: 25 of 30 machines have no request."
    assert words in text
    assert "provisioner recover --release-brake" in text
    lines = [line for line in text.splitlines() if "  machine hf-" in line]
    assert len(lines) == 20
    first = clock_time(wall + 500)
    assert (
        lines[0]
        == f"  machine {names[0]} in pool gke-main has no request: deleted as an orphan at {first} if released now"
    )
    last = clock_time(wall + 500 + 3600)
    assert f"and 5 more, the last of them at {last}; `-o json` names all" in text
    printed = document(capsys)
    assert [one["machine"] for one in printed["waiting"]] == names
    assert {one["pool"] for one in printed["waiting"]} == {"gke-main"}


def test_orphans_that_no_brake_holds_are_shown_and_no_problem(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    state.memory.write(replace(HELD, time_wall=time.time()))
    code, text = shown(capsys)
    assert (code, "machine hf-zzzzzzzzzz-000001 has no request" in text) == (0, True)


def test_machines_that_no_list_names_wait_where_they_are_to_be_deleted(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    slot = Slot("hf-aaaaaaaaaa-000000", 0, "gke-main", Verdict.SUCCEEDED, 0.0)
    record = RequestRecord("aaaaaaaaaa", "GkePod", 1, 0.0, 60.0, {0: slot}, told_at=1.0)
    wall = time.time()
    unlisted = {slot.name: 5_000.0}
    state.memory.write(replace(HELD, time_wall=wall, orphans={}, unlisted=unlisted, requests={record.id: record}))
    terms = {"orphan_grace": 600.0, "orphan_cap_per_hour": 20, "cancel_after": 1800.0, "delete_unlisted_after": None}
    leave(state, terms=terms)
    assert document(capsys)["waiting"] == []
    leave(state, terms=terms | {"delete_unlisted_after": 7200.0})
    (one,) = document(capsys)["waiting"]
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall + 2_200))
    assert one == {"machine": slot.name, "pool": "gke-main", "unlisted": True, "deleted_at": at}


# --- the files --------------------------------------------------------------------------------------------------------


def test_status_of_a_new_directory_says_that_intent_is_missing(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "work" / "intent.json").unlink()
    (site / "work" / "intent.json.lock").unlink()
    assert run(["status"]) == 1
    assert "intent.json" in capsys.readouterr().err


def test_status_shows_requests_and_a_latched_brake_is_a_problem(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = StateDir(site / "work")
    with state.intent.additions() as intent:
        id_ = intent.add_request("GkePod", 3, created_wall=0.0)
    capsys.readouterr()
    assert run(["status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["unread"] == [id_]
    brake = Brake(BrakeReason.MEMORY_LOST, 0.0, "memory.json was lost.")
    state.memory.write(Memory(provisioner="demoinst", brake=brake))
    assert run(["status"]) == 1
    assert ": memory.json was lost." in capsys.readouterr().out


def test_status_says_that_memory_is_lost(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = StateDir(site / "work")
    state.memory.write(Memory(provisioner="demoinst"))
    assert run(["status"]) == 0
    assert "MEMORY LOST" not in capsys.readouterr().out
    Path(state.memory.path).unlink()
    assert run(["status"]) == 1
    assert "MEMORY LOST: memory.json is missing although it was written" in capsys.readouterr().out


def test_status_shows_what_is_wrong_with_a_pool(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StateDir(site / "work").notes.write({"pools": {"mig-a": ["someone else shrinks the group"]}})
    assert run(["status"]) == 0
    assert "  pool mig-a: someone else shrinks the group" in capsys.readouterr().out


def test_status_of_a_pool_that_cannot_be_seen_is_a_problem(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StateDir(site / "work").notes.write({"pools": {"mig-a": [f"{UNSEEN}there is no such group"]}})
    capsys.readouterr()
    assert run(["status"]) == 1
    assert "  pool mig-a: cannot be seen: there is no such group" in capsys.readouterr().out


def test_status_names_a_stuck_machine_until_it_is_gone(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = StateDir(site / "work")
    stuck = Slot("hf-abcdefghij-000001", 1, "gke-main", Verdict.RETURNED, 0.0, stuck=True)
    capsys.readouterr()
    for slot, code, named in (
        (stuck, 1, [{"machine": stuck.name, "pool": "gke-main"}]),
        (evolve(stuck, gone=True), 0, []),
    ):
        record = RequestRecord("abcdefghij", "GkePod", 1, 0.0, 60.0, {1: slot})
        state.memory.write(Memory(provisioner="demoinst", requests={record.id: record}))
        assert run(["status", "-o", "json"]) == code
        assert json.loads(capsys.readouterr().out)["stuck"] == named
        assert run(["status"]) == code
        assert ("STUCK hf-abcdefghij-000001 in pool gke-main" in capsys.readouterr().out) is bool(named)


def test_status_shows_machines_that_no_list_has_named_for_a_day(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wall = time.time()
    remembered = Memory("demoinst", time=90_000.0, time_wall=wall - 10, unlisted={"hf-old": 3_600.0, "hf-new": 3_700.0})
    StateDir(site / "work").memory.write(remembered)
    capsys.readouterr()
    assert run(["status"]) == 0
    shown = capsys.readouterr().out
    assert "machine hf-old: no list of HostFactory has named it for a day" in shown
    assert "hf-new" not in shown


def test_a_slot_that_was_set_aside_is_a_problem(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    slot = Slot("hf-aaaaaaaaaa-000000", 0, "gke-main", Verdict.SUCCEEDED, 0.0, set_aside=True)
    record = RequestRecord("aaaaaaaaaa", "GkePod", 1, 0.0, 60.0, {0: slot})
    state.memory.write(Memory("demoinst", requests={record.id: record}))
    code, text = shown(capsys)
    assert (code, f"SET ASIDE: {slot.name}" in text) == (1, True)
