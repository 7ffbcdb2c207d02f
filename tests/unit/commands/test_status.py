"""`provisioner status`: its output in each form, the choice of a part, and exit code 1."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.commands.cli import run
from provisioner.commands.status_text import wrap
from provisioner.model import (
    Brake,
    BrakeReason,
    ErrorClass,
    Failure,
    Limits,
    LossCause,
    Memory,
    PendingReason,
    RequestStatus,
    Slot,
    Unmet,
    Verdict,
    format_utc,
)
from provisioner.state.directory import StateDir
from provisioner.state.directory_note import SUFFIX, add_to_note
from provisioner.state.errors import StateMissing
from provisioner.state.locks import LockFile, identity
from provisioner.state.marker_files import UNSEEN
from provisioner.state.memory_file import MemoryStore
from provisioner.telemetry.pool_status import LastingFailure, StandingRefusal
from provisioner.telemetry.pool_windows import format_local_time
from provisioner.telemetry.status_inputs import read_status_inputs
from tests.support.clock_times import clock_time
from tests.support.desk import Desk, make_pool_status
from tests.support.parts import alter
from tests.support.stores import add_request
from tests.unit.core import NOW, REQUEST, STOCKOUT, limits, memory, name, pool, record, running, slot

HOSTILE = Failure(STOCKOUT.error, "no room\x1b[2J\nin zone " + "x" * 100)
FAILED = slot(4, Verdict.FAILED, failure=HOSTILE, is_gone=True, closed_at=NOW - 240)
PLANNED = memory(record(*map(running, range(3)), slot(3), FAILED, count=9), generation=0)
"""Three of nine machines run, one try failed."""
STRAY = "hf-zzzzzzzzzz-000001"
ORPHAN = alter(PLANNED, orphans={STRAY: NOW - 100})
TWO_POOLS = limits(pool("a", max_machines=500), pool("b"))


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    made = Desk(tmp_path, capsys)
    add_request(made.state, "T", 1, created_wall=0.0, create_for="demo")
    made.leave(PLANNED, TWO_POOLS)
    return made


def shown(desk: Desk, *options: str) -> tuple[int, str]:
    """Run the command. Return its exit code and its text."""
    return desk.call("status", *options)[:2]


def flat(text: str) -> str:
    """Return a text on one line, because a terminal's width decides where its lines break."""
    return " ".join(text.split())


def document(desk: Desk) -> dict[str, Any]:
    return desk.document("status")


# --- the loop ---------------------------------------------------------------------------------------------------------


def age(paths: Iterable[Path], seconds: float) -> None:
    then = time.time() - seconds
    for path in paths:
        os.utime(path, (then, then))


def silent(state: StateDir) -> str:
    then = time.time() - 68
    os.utime(state.heartbeat.path, (then, then))
    return f"LOOP NOT RUNNING since {clock_time(then)}, silent for "


def never_ran(state: StateDir) -> str:
    Path(state.heartbeat.path).unlink()
    return "LOOP NOT RUNNING and has never run"


def signed_off(state: StateDir) -> str:
    assert state.loop_lock.acquire(0)
    state.loop_lock.raise_epoch()
    state.loop_lock.sign_off()
    return ": the loop ended in order: start `provisioner run`; no machine is made or deleted until then\n    If a loop"


def gone(state: StateDir) -> str:
    sign(state, {"pid": 2**22 + 1})
    state.loop_lock.release()
    return f"process {2**22 + 1} on {os.uname().nodename} is gone without an orderly end: start `provisioner run`; no"


def idle(state: StateDir) -> str:
    sign(state, {})
    then = time.time() - 118
    for path in (state.heartbeat.path, state.loop_lock.path):
        os.utime(path, (then, then))
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    return f"{holder} holds the loop's lock and has done nothing for 118 s: end it; another loop would only stand by"


def sign(state: StateDir, facts: dict[str, Any]) -> None:
    assert state.loop_lock.acquire(0)
    state.loop_lock.raise_epoch()
    state.loop_lock.sign(state.loop_lock.record() | facts)


@pytest.mark.parametrize("end", [silent, never_ran, signed_off, gone, idle])
def test_a_loop_that_does_not_run_is_a_problem(desk: Desk, end: Callable[[StateDir], str]) -> None:
    code, text = shown(desk)
    assert (code, "NOT RUNNING" in text, document(desk)["loop"]["running"]) == (0, False, True)
    words = end(desk.state)
    code, text = shown(desk)
    assert (code, flat(words) in flat(text), document(desk)["loop"]["running"]) == (1, True, False), text


def test_a_loop_that_does_not_run_may_work_on_the_directory_where_a_later_one_began(desk: Desk, tmp_path: Path) -> None:
    note = str(tmp_path / f".demo{SUFFIX}")
    desk.leave(PLANNED, TWO_POOLS, note=note)
    signed_off(desk.state)
    assert "it uses another state: compare" in flat(shown(desk)[1])
    for directory, words in ((desk.state.path, ": compare"), ("/new", ", and a later loop began on /new: compare")):
        add_to_note(note, directory)
        assert f"it uses another state{words}" in flat(shown(desk)[1])


@pytest.mark.parametrize(("ago", "code"), [(20.0, 0), (400.0, 1)])
def test_hostfactory_is_silent_if_it_neither_polls_nor_lists_for_long(desk: Desk, ago: float, code: int) -> None:
    assert "HostFactory has not polled or listed its hosts here yet" in shown(desk)[1]
    desk.state.note_hosts({"h": None})
    then = time.time() - ago
    os.utime(desk.state.inventory.path, (then, then))
    result, text = shown(desk)
    message = f"HostFactory last called getReturnRequests at {clock_time(then)}, "
    assert (result, message in text, "HOSTFACTORY SILENT: " in text) == (code, True, code == 1), text
    desk.state.seen.touch(REQUEST)
    result, text = shown(desk)
    assert (result, "HostFactory last called getRequestStatus at " in text) == (0, True), text
    assert f"; its last list of hosts came at {clock_time(then)}" in flat(text), text


def test_hostfactory_is_not_silent_before_its_first_list_of_hosts(desk: Desk) -> None:
    """Before HostFactory has listed hosts for the first time, its silence must not count as a problem. HostFactory
    lists hosts only once it has some, and may poll no request for hours."""
    desk.state.seen.touch(REQUEST)
    age(Path(desk.state.path, "seen").iterdir(), 400.0)
    code, text = shown(desk)
    assert (code, "it has not listed its hosts yet" in text) == (0, True), text


@pytest.mark.parametrize("ago", [20.0, 400.0])
def test_calls_that_the_scripts_refused_a_moment_ago_are_a_problem(desk: Desk, ago: float) -> None:
    refused = desk.state.refused
    for reason in ("the disk is full", "it is held"):
        desk.state.note_refusal("requestMachines", reason)
    since = clock_time(refused.read()[0].since)
    then = time.time() - ago
    os.utime(os.path.join(refused.path, "requestMachines"), (then, then))
    code, text = shown(desk)
    message = f"CALLS REFUSED: the call of requestMachines was refused 2 times since {since}: it is held"
    assert (code, message in text, "CALLS REFUSED" in text) == ((1, True, True) if ago < 300 else (0, False, False))
    assert [one["recent"] for one in document(desk)["hostfactory"]["refused"]] == [2] * code
    desk.state.note_refusal("requestMachines", "")
    assert (shown(desk)[0], document(desk)["hostfactory"]["refused"]) == (0, []), "it has answered"


@pytest.mark.parametrize("file", ["intent.json.lock", "intent.json.lock.turn"])
@pytest.mark.parametrize("ago", [1.0, 75.0])
def test_a_process_that_holds_the_lock_of_intent_for_long_is_a_problem(desk: Desk, ago: float, file: str) -> None:
    """A process that holds the lock of intent for more than a few seconds must be reported. A write needs milliseconds,
    but a script that was stopped (SIGSTOP) keeps the lock."""
    path = os.path.join(desk.state.path, file)
    lock = LockFile(path)
    with ExitStack() as end:
        end.callback(lock.release)
        assert lock.acquire(0)
        lock.sign(identity())
        os.utime(path, (time.time() - ago, time.time() - ago))
        code, text = shown(desk)
        message = (
            rf"LOCK of intent.json is held, .*refused: {file} is held for 7\d s. Signed by process {os.getpid()} on"
        )
        held = re.search(message, text)
        assert (code, bool(held), "LOCK" in text) == ((1, True, True) if ago > 5 else (0, False, False)), text
    age([Path(path)], ago)
    assert shown(desk)[0] == 0, "free again"


@pytest.mark.parametrize("waits", [True, False])
def test_a_loop_that_begins_is_no_problem(desk: Desk, waits: bool) -> None:
    """A loop that is starting must not be reported as not running. Until it writes its first heartbeat, the file still
    has the old heartbeat of the previous loop."""
    then = time.time() - 500
    os.utime(desk.state.heartbeat.path, (then, then))
    assert desk.state.loop_lock.acquire(0)
    desk.state.loop_lock.raise_epoch(wait_seconds=47.0 if waits else 0.0)
    code, text = shown(desk)
    until = format_local_time(str(desk.state.loop_lock.holder().get("waits_until", "")))
    message = (
        f"LOOP STARTS at {until}: process {os.getpid()} on {os.uname().nodename} waits until calls of the previous "
    )
    assert (code, flat(message) in flat(text), "LOOP NOT RUNNING" in text) == (0, waits, False), text


def test_an_unknown_state_of_the_loop_is_not_reported_as_dead(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the command cannot find out whether the loop runs, it must not report that the loop is not running. This
    happens on a host that mounts the state directory read-only."""
    real = os.utime

    def refused(path: Any, *arguments: Any, **options: Any) -> None:
        if not arguments or str(path).startswith(f"{desk.state.heartbeat.path}."):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        real(path, *arguments, **options)

    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr(os, "unlink", refused)
    code, text = shown(desk)
    assert (code, "NOT RUNNING" in text) == (0, False)
    assert re.search(r"loop last ran at \d\d:\d\d:\d\d on ", text)


def test_a_directory_that_cannot_be_written_is_a_problem(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(StateDir, "find_write_error", lambda _: full)
    code, text = shown(desk)
    assert (code, "STATE DIRECTORY CANNOT BE WRITTEN: No space left on device. Make room" in flat(text)) == (1, True), (
        text
    )


# --- the files of the loop --------------------------------------------------------------------------------------------


EPOCH = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(0))
REFUSED = StandingRefusal("a", "create", "T", 0.0, "pods is forbidden")
SAID: dict[str, tuple[int, dict[str, Any], str]] = {
    "nothing is planned": (1, {"problem": LastingFailure(0, "blind.")}, f"PLANNING STOPPED since {EPOCH}: blind."),
    "a refused configuration": (
        1,
        {"configuration": LastingFailure(0.0, "provisioner.yaml: 1 problem\n  nonsense: unknown setting")},
        f"CONFIGURATION REFUSED since {EPOCH}: the loop keeps the previous one; ",
    ),
    "a paused pool": (1, {"paused": ["b"]}, "PAUSED pool b: the pool gets no new machines"),
    "creates that are refused": (
        1, {"refused": [REFUSED]}, f"REFUSED by pool a: creates of template T since {EPOCH}: pods is forbidden"
    ),
    "deletes that are refused": (
        1, {"refused": [replace(REFUSED, operation="delete")]}, f"REFUSED by pool a: deletes since {EPOCH}: pods is f"
    ),
    "a pool that cannot be seen": (
        1, {"pools": {"a": [f"{UNSEEN}no such group"]}}, "UNSEEN pool a, no machine is made or deleted there: no such"
    ),
    "what is wrong with a pool": (0, {"pools": {"a": ["others shrink it"]}}, "  pool a: others shrink it"),
}  # fmt: skip


def lost(number: int, cause: LossCause) -> Slot:
    return running(number, Verdict.LOST, cause=cause, closed_at=NOW, is_gone=True)


HELD = Failure(ErrorClass.OTHER, "it waits for its finalizers: example.com/a")
REMEMBERED: dict[str, tuple[int, Memory, str]] = {
    "a stuck machine": (1, memory(record(slot(is_stuck=True))), f"STUCK {name(0)} in pool a"),
    "a stuck machine that is gone": (0, memory(record(slot(is_stuck=True, is_gone=True))), "0 of 1 machines run"),
    "why it is stuck": (1, memory(record(slot(is_stuck=True, hindrance=HELD))), f"by now: {HELD.text}"),
    "machines that do not run any more": (
        1,
        memory(record(*(running(number, Verdict.SUCCEEDED, down_since=NOW, failure=HELD) for number in range(2)))),
        f"DOWN 2 machines that HostFactory has in pool a, e.g. {name(0)} since ",
    ),
    "one that was lost since": (
        0,
        memory(record(running(0, Verdict.LOST, down_since=NOW, is_gone=True))),
        "0 of 1 machines run",
    ),
    "a slot that was set aside": (
        1,
        memory(record(slot(is_set_aside=True))),
        "SET ASIDE 1 machine of request aaaaaaaaaa",
    ),
    "a lost machine": (0, memory(record(lost(0, LossCause.NODE))), "  1 lost in a since "),
    "machines that exit again and again": (
        1,
        memory(record(*(lost(number, LossCause.EXITED) for number in range(3)))),
        "  LOSSES: 3 lost in a since ",
    ),
    "an orphan": (0, ORPHAN, f"machine {STRAY} has no request"),
    "no list has named it for a day": (
        0,
        memory(unlisted={"hf-old": NOW - 86_400.0, "hf-new": NOW - 86_300.0}),
        "  1 machine, e.g. hf-old: in no list of HostFactory for a day",
    ),
}


@pytest.mark.parametrize(("code", "left", "words"), SAID.values(), ids=SAID)
def test_pool_status_is_shown_and_is_a_problem_if_an_operator_is_needed(
    desk: Desk, code: int, left: dict[str, Any], words: str
) -> None:
    desk.leave(PLANNED, TWO_POOLS, **left)
    found, text = shown(desk)
    assert (found, flat(words) in flat(text)) == (code, True), text


def test_the_time_since_which_a_pool_is_unseen_is_shown_once(desk: Desk) -> None:
    notes = {"pools": {"a": [f"{UNSEEN}no such group"]}, "unseen_since": {"a": time.time() - 9}}
    desk.leave(PLANNED, TWO_POOLS, **notes, unmet={REQUEST: (Unmet("a", PendingReason.UNSEEN, 1, since=NOW - 9),)})
    _, text = shown(desk)
    assert "UNSEEN pool a since " in text
    assert "1 in a: the pool is unseen: no such group" in text, "without the time"


@pytest.mark.parametrize(("code", "held", "words"), REMEMBERED.values(), ids=REMEMBERED)
def test_memory_is_shown_and_is_a_problem_if_an_operator_is_needed(
    desk: Desk, code: int, held: Memory, words: str
) -> None:
    desk.leave(held)
    found, text = shown(desk)
    assert (found, flat(words) in flat(text)) == (code, True), text
    assert "hf-new" not in text
    assert ("STUCK" in text) is bool(document(desk)["stuck"])


@pytest.mark.parametrize(
    "section",
    [
        '"paused": 3',
        '"problem": []',
        '"limits": {"cancel_after": "x"}',
        '"limits": {"nonsense": 1}',
        '"unmet": {"a": [1]}',
    ],
)
def test_notes_that_no_loop_of_ours_left_are_named(desk: Desk, section: str) -> None:
    Path(desk.state.pool_status.path).write_text(f'{{"pools": {{}}, {section}}}')
    code, _, error = desk.call("status")
    assert (code, "pools.json: has content that no loop of ours writes" in error) == (1, True)


def test_notes_of_a_loop_that_left_only_sentences_are_read(desk: Desk) -> None:
    Path(desk.state.pool_status.path).write_text('{"pools": {"a": ["someone else shrinks the group"]}}')
    assert document(desk)["problems"] == {"a": ["someone else shrinks the group"]}


# --- old copies, and files that are lost ------------------------------------------------------------------------------


def test_an_old_copy_of_memory_is_a_problem(desk: Desk) -> None:
    state = desk.state
    copy = shutil.copy2(state.memory.path, f"{state.path}/copy")
    state.memory.write(ORPHAN)
    assert shown(desk)[0] == 0
    os.replace(copy, state.memory.path)
    code, text = shown(desk)
    assert (code, "MEMORY OLD: memory.json is an old copy" in text) == (1, True), text
    assert document(desk)["files"]["memory"]["condition"] == "older"


def test_a_memory_without_its_lock_file_is_a_problem(desk: Desk) -> None:
    Path(desk.state.memory.lock_path).unlink()
    code, text = shown(desk)
    assert (code, "MEMORY ALONE: memory.json exists without its lock file" in text) == (1, True), text


@pytest.mark.parametrize("by_memory", [False, True], ids=["by its lock file", "by what memory has read"])
def test_an_old_copy_of_intent_is_a_problem(desk: Desk, by_memory: bool) -> None:
    state = desk.state
    copy = shutil.copy2(state.intent.path, f"{state.path}/copy")
    add_and_read(state, read=by_memory)
    assert shown(desk)[0] == 0
    os.replace(copy, state.intent.path)
    if by_memory:
        Path(state.intent.lock_path).unlink()
    code, text = shown(desk)
    assert (code, "INTENT OLD: intent.json is an old copy" in text) == (1, True), text


def add_and_read(state: StateDir, *, read: bool = True) -> None:
    """Record a request as HF does, and let the loop read it."""
    add_request(state, "T", 1, created_wall=0.0)
    if read:
        state.memory.write(replace(PLANNED, generation=state.intent.read().generation))


def test_an_intent_that_scripts_write_while_status_reads_is_not_taken_for_an_old_copy(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = MemoryStore.read

    def read(store: MemoryStore) -> Memory:
        content = whole(store)
        monkeypatch.undo()
        add_and_read(desk.state)
        return content

    monkeypatch.setattr(MemoryStore, "read", read)
    assert shown(desk)[0] == 0


@pytest.mark.parametrize("content", [None, "{"], ids=["lost", "unreadable"])
@pytest.mark.parametrize("kind", ["intent", "memory"])
def test_a_file_that_cannot_be_read_hides_nothing_else(desk: Desk, kind: str, content: str | None) -> None:
    brake = Brake(BrakeReason.INTENT_LOST, 9_000.0, "intent.json is missing.")
    desk.leave(replace(ORPHAN, brake=brake), paused=["a"])
    path = Path(desk.state.path, f"{kind}.json")
    path.unlink()
    if content is not None:
        path.write_text(content)
    code, text = shown(desk)
    word = "LOST" if content is None else "UNREADABLE"
    assert (code, f"{kind.upper()} {word}: " in text, "PAUSED pool a" in text) == (1, True, True), text
    assert document(desk)["memory_lost"] is ((kind, content) == ("memory", None))
    if kind == "intent":
        assert "BRAKE intent_lost" in text
        assert f"machine {STRAY}" in text


# --- the brake --------------------------------------------------------------------------------------------------------


def test_a_latched_brake_says_since_when_why_and_which_machines_wait(desk: Desk) -> None:
    brake = Brake(BrakeReason.TOO_MANY_ORPHANS, NOW - 1000, "25 of 30 machines have no request.", "a")
    names = [f"hf-zzzzzzzzzz-{number:06d}" for number in range(25)]
    desk.leave(alter(PLANNED, brake=brake, orphans=dict.fromkeys(names, NOW - 100)), TWO_POOLS, orphans={"a": names})
    code, text = shown(desk)
    wall = desk.state.memory.read().written.wall
    assert code == 1
    since = clock_time(wall - 1_000)
    assert f"BRAKE too_many_orphans in pool a since {since}: 25 of 30 machines have no request." in text
    assert "let it return them and change its id (`provisioner recover`)" in flat(text)
    (line,) = (line for line in text.splitlines() if "  machine hf-" in line)
    first, last = clock_time(wall + 500), clock_time(wall + 500 + 3600)
    assert line == f"  machine {names[0]} in pool a has no request: deleted as an orphan at {first} if released now"
    assert f"  and 24 more, the last of them at {last}; `-o json` names all" in text
    printed = document(desk)
    assert [one["machine"] for one in printed["waiting"]] == names
    assert {one["pool"] for one in printed["waiting"]} == {"a"}


@pytest.mark.parametrize(
    ("reason", "shown_times"),
    [
        pytest.param(BrakeReason.TOO_MANY_ORPHANS, True, id="a first burst"),
        pytest.param(BrakeReason.IDENTITY_CONFLICT, True, id="an identity conflict"),
        pytest.param(BrakeReason.MEMORY_LOST, False, id="a lost file explains the machines"),
    ],
)
def test_a_brake_that_another_provisioner_may_have_caused_says_how_to_look_for_it(
    desk: Desk, reason: BrakeReason, shown_times: bool
) -> None:
    since = {f"hf-zzzzzzzzzz-{number:06d}": NOW - 100 * (number // 2 + 1) for number in range(12)}
    brake = Brake(reason, NOW - 1000, "12 of 30 machines have no request.", "a")
    desk.leave(alter(PLANNED, brake=brake, orphans=since), TWO_POOLS, orphans={"a": list(since)})
    _, text = shown(desk)
    wall = desk.state.memory.read().written.wall
    times = ", ".join(f"2 at {clock_time(wall - ago)}" for ago in (600, 500, 400))
    words = f"first seen: {times}, …, 2 at {clock_time(wall - 100)}."
    assert [part in text for part in (words, "a release DELETES its machines", "gcloud logging read")] == [
        shown_times
    ] * 3
    step = "look at `provisioner recover` first, then add --release-brake"
    assert (step in text) is not shown_times, "a release is not offered while it may delete another's machines"
    unless = "unless a file was lost or restored then"
    assert (unless in text) is (reason is BrakeReason.TOO_MANY_ORPHANS)


@pytest.mark.parametrize("after", [None, 7200.0])
def test_machines_that_no_list_names_wait_where_they_are_to_be_deleted(desk: Desk, after: float | None) -> None:
    held = running(0, Verdict.SUCCEEDED)
    allowed = limits(pool("a"), delete_unlisted_after=after)
    desk.leave(memory(record(held, reported_at=1.0), unlisted={held.name: NOW - 5000.0}), allowed)
    wall = desk.state.memory.read().written.wall
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall + 2_200))
    waits = {"machine": held.name, "pool": "a", "unlisted": True, "deleted_at": at}
    assert document(desk)["waiting"] == ([waits] if after else [])


# --- forms of the output ----------------------------------------------------------------------------------------------


def table(text: str, title: str) -> dict[str, list[str]]:
    """Return the rows under a title, by name."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.split()[:1] == [title] and "wanted" in line)
    rows = [line.split(maxsplit=8) for line in lines[start + 1 :]]
    return {cells[0]: cells[1:] for cells in rows[:2] if len(cells) == 9 and cells[0] != "window:"}


def test_one_screen_says_what_is_wanted_runs_and_fails(desk: Desk) -> None:
    code, text = shown(desk)
    assert code == 0
    assert table(text, "template")["T"][:7] == ["9", "3", "1", "1", "0", "200", "-"]
    assert table(text, "pool")["a"][:7] == ["9", "3", "1", "1", "0", "100", "500"]
    assert table(text, "pool")["b"] == ["0", "0", "0", "0", "0", "100", "-", "-"]
    assert table(text, "pool")["a"][7] == "stockout 4 min ago: [1]", "the request below has the text"
    assert document(desk)["unread"] == [*desk.state.intent.read().requests]
    desk.leave(memory(), Limits("hf", {}, {}))
    assert "wanted" not in shown(desk)[1], "there is no pool and no template"


def test_a_text_stands_once_and_lines_fit_the_screen(desk: Desk) -> None:
    text = shown(desk)[1]
    assert (text.count("[1] no room"), text.count("[1]")) == (1, 4), "beside the request; the pool and two tables"
    assert max(map(len, text.splitlines())) <= 160
    wrapped = next(line for line in text.splitlines() if line.strip().startswith("x"))
    assert wrapped.startswith(" " * 8), "the rest of a line is further to the right"
    wide = shown(desk, "-o", "wide")[1]
    assert (wide.count("no room") > 2, "[1]" in wide) == (True, False)
    assert wrap("  gcloud " + "word " * 50) == "  gcloud " + "word " * 50, "a command to copy stays whole"
    assert json.loads(shown(desk, "-o", "json")[1])["pools"][0]["last_error"]["text"] == HOSTILE.text


def test_before_the_first_request_a_loop_s_trouble_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first request, the command must show problems of the loop, although the scripts have not made the
    state files yet. Problems are most likely then."""
    desk = Desk(tmp_path, capsys)
    with pytest.raises(StateMissing, match="the directory is new"):
        read_status_inputs(desk.state)
    refused = LastingFailure(0.0, "provisioner.yaml: 1 problem\n  nonsense: unknown setting")
    desk.state.pool_status.write(asdict(make_pool_status(memory(), TWO_POOLS, configuration=refused)))
    desk.state.heartbeat.touch()
    code, text = shown(desk)
    assert code == 1
    assert text.startswith(f"Provisioner in {desk.state.path}\n")
    assert "CONFIGURATION REFUSED" in text
    assert "nonsense: unknown setting" in text
    assert "LOST" not in text
    desk.state.pool_status.write(asdict(make_pool_status(memory(), TWO_POOLS)))
    assert shown(desk)[0] == 0
    assert document(desk)["files"]["intent"]["condition"] == "new"


@pytest.mark.parametrize(
    ("wrong", "scripts"),
    [
        ("provisioner.yaml: 1 problem\n  lop: unknown setting", "the scripts go on"),
        ("provisioner.yaml: 1 problem\n  pools.a.pod_spec: 'pod.json': containers: missing", "the scripts go on"),
        ("kubeconfig k.json cannot be used: it is empty", "the scripts go on"),
        ("inst_templates.json: 1 problem\n  not JSON", "the scripts read"),
    ],
)
def test_a_refused_configuration_says_for_whom_the_one_before_is_in_force(desk: Desk, wrong: str, scripts: str) -> None:
    desk.leave(PLANNED, TWO_POOLS, configuration=LastingFailure(0.0, wrong))
    text = flat(shown(desk)[1])
    assert f"the loop keeps the previous one; {scripts}" in text


def test_a_setting_that_only_a_restart_applies_is_no_mistake(desk: Desk) -> None:
    text = "id: cannot change while the loop runs; restart the loop"
    desk.leave(PLANNED, TWO_POOLS, configuration=LastingFailure(0.0, text))
    assert f"the loop keeps the previous one; the scripts go on: {text}" in flat(shown(desk)[1])


def test_a_request_that_gave_machines_up_without_a_try_says_why(desk: Desk) -> None:
    full = Failure(ErrorClass.QUOTA, "The template's maxNumber of 9 machines is reached")
    given_up = slot(1, Verdict.FAILED, submitted_at=None, is_gone=True, failure=full)
    desk.leave(memory(record(running(), given_up, ended=RequestStatus.COMPLETE_WITH_ERROR)))
    code, text = shown(desk)
    words = f"request {REQUEST} (T): complete_with_error; 1 of 2 machines run; slots: 1 failed, 1 open: {full.text}"
    assert (code, words in flat(text)) == (0, True), text
    desk.leave(memory(record(running(), FAILED, ended=RequestStatus.COMPLETE_WITH_ERROR)))
    assert "slots: 1 failed, 1 open\n" in shown(desk)[1], "the table shows a failed try"


def test_wide_shows_each_template_in_each_pool_and_errors_in_full(desk: Desk) -> None:
    _, text = shown(desk, "-o", "wide")
    (row,) = (line for line in text.splitlines() if line.startswith("  T in a "))
    assert row.endswith("x" * 100)
    assert "T in a " not in shown(desk)[1]


@pytest.mark.parametrize("form", ["text", "wide"])
def test_what_a_cloud_says_does_not_steer_the_terminal(desk: Desk, form: str) -> None:
    text = shown(desk, "-o", form)[1]
    assert ("\x1b" in text, "?[2J" in text) == (False, True)


def test_yaml_says_what_json_says(desk: Desk) -> None:
    one, other = (shown(desk, "--pool", "a", "-o", form)[1] for form in ("json", "yaml"))
    pairs = [(value, yaml.safe_load(other)[key]) for key, value in json.loads(one).items() if key != "time"]
    assert json.loads(one).keys() == yaml.safe_load(other).keys()
    assert [type(left) for left, _ in pairs] == [type(right) for _, right in pairs]


def test_a_filter_shows_a_part(desk: Desk) -> None:
    text = shown(desk, "--pool", "b")[1]
    assert ("  request " in text, table(text, "pool").keys()) == (False, {"b"})
    assert f"request {REQUEST}" in shown(desk, "--request", REQUEST, "--template", "T")[1]


@pytest.mark.parametrize(
    ("kind", "there"), [("pool", "a, b\n"), ("template", "T\n"), ("request", f"{REQUEST}, ")], ids=lambda one: one
)
def test_a_name_that_nothing_has_is_a_mistake_and_says_which_there_are(desk: Desk, kind: str, there: str) -> None:
    code, text, error = desk.call("status", f"--{kind}", "x")
    assert (code, text) == (2, "")
    assert error.startswith(f"--{kind} x: the state files contain no such {kind}; there are {there}")


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "nan"])
def test_watching_takes_seconds(desk: Desk, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["status", "--state-dir", desk.state.path, f"--watch={seconds}"])
    assert "expected seconds above 0 such as 5" in capsys.readouterr().err


def test_a_time_within_a_text_has_the_form_of_the_others(desk: Desk) -> None:
    desk.leave(PLANNED, TWO_POOLS, pools={"a": [f"6 of 9 machines are missing since {format_utc(0.0)}, all at once."]})
    assert f"missing since {EPOCH}, all at once." in flat(shown(desk)[1])
    assert f"missing since {format_utc(0.0)}" in flat(shown(desk, "-o", "json")[1])
