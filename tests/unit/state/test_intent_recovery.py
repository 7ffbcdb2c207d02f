"""`provisioner recover`: the plan after each loss, and writes that are interrupted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

import pytest

from provisioner.hostfactory import Answer
from provisioner.model import Brake, BrakeReason, Intent, Memory, RequestStatus, Verdict
from provisioner.names import NO_TEMPLATE
from provisioner.planning.report.answers import request_answer, return_answer
from provisioner.state.directory import StateDir
from provisioner.state.errors import Condition, StateMissing, StateTooNew, StateUnreadable, StateUnwritable
from provisioner.state.intent_file import IntentStore
from provisioner.state.intent_recovery import UNKNOWN_MOMENT, Recovery, apply_recovery, plan_recovery, read_files
from provisioner.state.memory_file import MemoryStore
from tests.support.stores import add_request, altered, outdate
from tests.unit.core import NOW, OTHER, PREFIX, REQUEST, TEMPLATE, giving_back, memory, name, record, running

RETURN = "ret-aaaaaaaaaa"
THIRD = "cccccccccc"
WALL = 1_800_000_000.0
BRAKE = Brake(BrakeReason.INTENT_LOST, NOW, "intent.json is missing.")


def memory_of_one() -> Memory:
    """Return a memory with a return and two requests, written at loop time NOW. One request is trimmed."""
    left = record(running(0, Verdict.RETURNED, request=OTHER), id_=OTHER, is_trimmed=True)
    kept = record(
        running(0, Verdict.SUCCEEDED), count=2, ended=RequestStatus.COMPLETE, read_at=NOW - 50, rc_account="acct"
    )
    return memory(kept, left, giving_back(name(0), read_at=NOW - 5), time=NOW, time_wall=WALL)


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    """A state whose intent lost records, with a memory and answers that have them."""
    made = StateDir(tmp_path)
    add_request(made, TEMPLATE, 9, created_wall=WALL, create_for="demo")
    remembered = memory_of_one()
    made.memory.write(remembered)
    answers = {id_: request_answer(one) for id_, one in remembered.requests.items()}
    answers[RETURN] = return_answer(remembered.returns[RETURN], remembered, PREFIX)
    made.status.write(answers, {})
    return made


def lose(state: StateDir, *kinds: str) -> None:
    for kind in kinds:
        Path(state.path, f"{kind}.json").unlink()


def break_off(state: StateDir, *kinds: str) -> None:
    for kind in kinds:
        path = Path(state.path, f"{kind}.json")
        path.write_text(path.read_text()[:20])


def plan(state: StateDir, *machines: str) -> Recovery:
    return plan_recovery(read_files(state), machines, PREFIX, "demo")


def written(state: StateDir) -> tuple[dict[str, tuple[str, int]], dict[str, tuple[str, ...]]]:
    intent = state.intent.read()
    return (
        {id_: (request.template, request.count) for id_, request in intent.requests.items()},
        {id_: returned.names for id_, returned in intent.returns.items()},
    )


# --- one file -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [lose, break_off], ids=["lost", "unreadable"])
def test_intent_is_made_again_from_memory_without_what_was_leaving(
    state: StateDir, wrong: Callable[[StateDir, str], None]
) -> None:
    before = state.intent.known_generation()
    wrong(state, "intent")
    made = plan(state, name(0), name(1, OTHER))
    assert not state.intent.exists() or wrong is break_off, "showing writes nothing"
    moved = apply_recovery(state, made)
    assert written(state) == ({REQUEST: (TEMPLATE, 2)}, {RETURN: (name(0),)})
    request = state.intent.read().requests[REQUEST]
    assert (request.created_wall, request.rc_account) == (WALL - 50, "acct")
    assert state.intent.read().generation == before + 1
    assert made.unknown == (name(1, OTHER),)
    assert len(moved) == (wrong is break_off)
    assert not state.release_asked(), "only an operator releases the brake"
    add_request(state, TEMPLATE, 1, created_wall=WALL)


@pytest.mark.parametrize("noted", ["by its lock file", "by memory"])
def test_an_older_intent_gives_way_and_is_kept(state: StateDir, noted: str) -> None:
    copy = Path(state.intent.path).read_bytes()
    if noted == "by memory":
        state.memory.write(replace(memory_of_one(), generation=9))
        os.unlink(state.intent.lock_path)
    else:
        add_request(state, TEMPLATE, 1, created_wall=WALL)
        Path(state.intent.path).write_bytes(copy)
    (kept,) = apply_recovery(state, plan(state))
    assert Path(kept).read_bytes() == copy
    assert written(state)[0] == {REQUEST: (TEMPLATE, 2)}
    assert state.intent.read().generation == (10 if noted == "by memory" else 3)
    assert state.intent.condition() is not Condition.OLDER


def test_an_unreadable_memory_makes_room_and_its_brake_is_left_to_the_loop(state: StateDir) -> None:
    break_off(state, "memory")
    made = plan(state)
    assert (made.intent, made.unreadable) == (None, ("memory",))
    (moved,) = apply_recovery(state, made)
    assert Path(moved).stat().st_size == 20
    assert not state.memory.exists()
    assert not made.releases(applied=True), "no operator has seen yet what the memory made again lacks"


@pytest.mark.parametrize("wrong", [lose, break_off], ids=["lost", "unreadable"])
def test_a_wrong_status_needs_nothing_but_room(state: StateDir, wrong: Callable[[StateDir, str], None]) -> None:
    apply_recovery(state, plan(state))
    wrong(state, "status")
    assert plan(state).writes is (wrong is break_off)
    apply_recovery(state, plan(state))
    assert not state.status.exists()


def test_the_brake_may_be_released_once_nothing_is_to_be_written(state: StateDir) -> None:
    assert not plan(state).releases(applied=False)
    assert plan(state).releases(applied=True), "the loop may be about to latch it"
    apply_recovery(state, plan(state))
    assert not plan(state).releases(applied=False)
    state.memory.write(replace(memory_of_one(), brake=BRAKE))
    made = plan(state)
    assert (made.writes, made.releases(applied=False)) == (False, True)


# --- several files ----------------------------------------------------------------------------------------------------


def test_without_memory_old_intent_given_answers_and_running_names_show_requests(state: StateDir) -> None:
    (old,) = state.intent.read().requests
    copy = Path(state.intent.path).read_bytes()
    add_request(state, TEMPLATE, 1, created_wall=WALL)
    Path(state.intent.path).write_bytes(copy)
    lose(state, "memory")
    made = plan(state, name(0, THIRD), name(1, THIRD), "hf-no-name-of-ours")
    apply_recovery(state, made)
    requests, returns = written(state)
    assert requests == {old: (TEMPLATE, 9), REQUEST: (NO_TEMPLATE, 1), OTHER: (NO_TEMPLATE, 1), THIRD: (NO_TEMPLATE, 2)}
    assert returns == {RETURN: (name(0),)}
    assert state.intent.read().requests[THIRD].created_wall == UNKNOWN_MOMENT, "nothing is ever made for it"
    assert THIRD in state.terminal_answers.ids(), "HF counts as having its machines: they are not cancelled"
    assert not state.release_asked()


def test_where_all_is_lost_the_machines_that_run_are_kept(state: StateDir) -> None:
    lose(state, "intent", "memory", "status")
    apply_recovery(state, plan(state, name(4), name(5)))
    assert written(state) == ({REQUEST: (NO_TEMPLATE, 2)}, {})


def test_where_there_never_was_anything_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StateMissing):
        plan(StateDir(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_newer_versions_file_is_left_to_that_version(state: StateDir) -> None:
    altered(state.memory.path, outdate)
    with pytest.raises(StateTooNew):
        plan(state)


# --- interrupted ------------------------------------------------------------------------------------------------------


def beside(monkeypatch: pytest.MonkeyPatch, owner: object, step: str, when: str, act: Callable[[], object]) -> None:
    """Call ``act`` once, before or after a step of ``owner``. ``step``: a method's path, such as "memory.set_aside"."""
    *parts, method = step.split(".")
    target = reduce(getattr, parts, owner)
    whole = getattr(target, method)

    def doing(*arguments: object) -> object:
        monkeypatch.undo()
        if when == "before":
            act()
        done = whole(*arguments)
        if when == "after":
            act()
        return done

    monkeypatch.setattr(target, method, doing)


def end() -> None:
    raise StateUnwritable("power cut")


MACHINES = (name(0, THIRD), name(3))


@pytest.mark.parametrize(
    "step", ["terminal_answers.assume_reported", "memory.set_aside", "intent.keep_aside", "intent._save"]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_recovery_is_run_again(
    state: StateDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    break_off(state, "memory", "intent")
    twin = StateDir(shutil.copytree(state.path, tmp_path / "twin"))
    apply_recovery(twin, plan(twin, *MACHINES))
    beside(monkeypatch, state, step, when, end)
    with pytest.raises(StateUnwritable, match="power cut"):
        apply_recovery(state, plan(state, *MACHINES))
    apply_recovery(state, plan(state, *MACHINES))
    assert written(state) == written(twin)
    assert not state.memory.exists()


def test_a_request_recorded_meanwhile_is_not_overwritten(state: StateDir) -> None:
    """If a script of HF records a request after recover has read intent and before it writes intent, the request must
    be kept."""
    own = state.intent.read().requests
    made = plan(state)
    late = add_request(state, TEMPLATE, 1, created_wall=WALL)
    apply_recovery(state, made)
    now = state.intent.read().requests
    assert set(now) == {*own, late, REQUEST}
    assert {id_: now[id_] for id_ in own} == own


@pytest.mark.parametrize("settled", [False, True], ids=["published", "settled"])
def test_the_answers_that_hf_was_given_name_machines_if_no_other_file_is_left(state: StateDir, settled: bool) -> None:
    text = '{"status":"complete","machines":[{"name":"x","rcAccount":"demand"},{"name":"y","rcAccount":"demand"}]}'
    if settled:
        lose(state, "intent", "memory", "status")
        state.terminal_answers.settle_reported(THIRD, text)
    else:
        lose(state, "intent", "memory")
        state.status.write({THIRD: Answer(text, True)}, {})
    apply_recovery(state, plan(state))
    assert written(state)[0] == {THIRD: (NO_TEMPLATE, 2)}
    assert state.intent.read().requests[THIRD].rc_account == "demand", "its account finds it again"


# --- several at once --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step", ["memory.set_aside", "memory.signature", "terminal_answers.assume_reported", "intent.restore"]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_two_recoveries_at_once_write_what_one_writes(
    state: StateDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    """If two recoveries run at once, the files must get what one recovery alone would write. Both read the same files.
    Before or after a step of one, the other does all its work."""
    break_off(state, "memory")
    lose(state, "intent")
    twin = StateDir(shutil.copytree(state.path, tmp_path / "twin"))
    apply_recovery(twin, plan(twin, *MACHINES))
    one, other = plan(state, *MACHINES), plan(state, *MACHINES)
    beside(monkeypatch, state, step, when, lambda: apply_recovery(state, other))
    apply_recovery(state, one)
    assert written(state) == written(twin)
    assert not state.memory.exists()


@pytest.mark.parametrize("kind", ["memory", "status"])
def test_a_file_that_the_loop_made_again_meanwhile_is_not_moved(state: StateDir, kind: str) -> None:
    good = Path(state.path, f"{kind}.json").read_bytes()
    break_off(state, kind)
    made = plan(state)
    Path(state.path, f"{kind}.json").write_bytes(good)
    apply_recovery(state, made)
    assert list(Path(state.path).glob(f"{kind}.json.aside-*")) == []
    assert Path(state.path, f"{kind}.json").read_bytes() == good


def test_an_intent_that_scripts_write_while_the_files_are_read_is_not_taken_for_an_old_copy(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = state.memory.read

    def beside_a_script() -> Memory:
        monkeypatch.undo()
        add_request(state, TEMPLATE, 1, created_wall=WALL)
        return read()

    monkeypatch.setattr(state.memory, "read", beside_a_script)
    assert read_files(state).is_fine("intent")


def test_a_request_that_leaves_while_the_files_are_read_is_not_brought_back(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_recovery(state, plan(state))
    held = {store: store.read for store in (state.intent, state.memory)}

    def then_it_leaves(store: IntentStore | MemoryStore) -> Intent | Memory:
        monkeypatch.undo()
        content = held[store]()
        left = memory_of_one()
        state.memory.write(
            replace(left, requests={id_: replace(r, is_trimmed=True) for id_, r in left.requests.items()})
        )
        state.intent.remove([REQUEST])
        return content

    for store in held:
        monkeypatch.setattr(store, "read", partial(then_it_leaves, store))
    assert not plan(state).writes


# --- rows that cannot be read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (10**9, "expected a number from 0 to 100000, got 1000000000"),
        (10**30, "expected int, got '1000000000000000000000000000000'"),
        (-1, "expected a number from 0 to 100000, got -1"),
        ("9", "expected int, got '9'"),
    ],
)
def test_a_row_that_cannot_be_read_is_set_aside_and_the_others_stay(state: StateDir, count: object, words: str) -> None:
    sound, wrong = (add_request(state, TEMPLATE, count, created_wall=WALL, create_for="demo") for count in (3, 4))
    path = Path(state.intent.path)
    document = json.loads(path.read_text())
    document["requests"][wrong]["count"] = count
    path.write_text(json.dumps(document))

    files = read_files(state)
    assert (files.conditions["intent"], f"requests.{wrong}: count: {words}" in files.reasons["intent"]) == (
        Condition.UNREADABLE,
        True,
    )
    (kept,) = apply_recovery(state, plan_recovery(files, (), PREFIX, "demo"))
    read = state.intent.read().requests
    assert (read[sound].count, wrong in read, REQUEST in read) == (3, False, True)
    assert json.loads(Path(state.path, kept).read_text())["requests"][wrong]["count"] == count


@pytest.mark.parametrize("generation", [10**30, 2**60, "4"])
def test_a_generation_that_no_writer_has_made_is_unreadable(state: StateDir, generation: object) -> None:
    path = Path(state.intent.path)
    document = json.loads(path.read_text())
    document["meta"]["state"]["generation"] = generation
    path.write_text(json.dumps(document))
    with pytest.raises(StateUnreadable):
        state.intent.read()
