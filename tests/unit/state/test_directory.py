"""The databases: what opening, reading, a transaction and a write promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tinydb import TinyDB

from provisioner import model
from provisioner.hostfactory.answer import Answer, Loss
from provisioner.model import Memory, RequestRecord
from provisioner.names import name_pattern
from provisioner.state import additions, atomic
from provisioner.state import intent as intent_file
from provisioner.state.database import SCHEMA
from provisioner.state.directory import StateDir
from provisioner.state.errors import (
    LockTimeout,
    StateError,
    StateExists,
    StateMissing,
    StateStale,
    StateTooNew,
    StateUnreadable,
    StateUnwritable,
)
from provisioner.state.locks import DataLock

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "FIRST_PAUSE", 0.0)


@pytest.fixture
def umask_077() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def add(state: StateDir, template: str = "T1") -> str:
    with state.intent.additions(create_for="demo") as intent:
        return intent.add_request(template, 2, created_wall=5.0)


def fill(state: StateDir) -> None:
    """Write all three databases, as a running system has them."""
    add(state)
    state.memory.write(Memory("demo"))
    state.status.write({"r1": Answer("{}", False)}, {"host": Loss(30)})


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# --- opening never creates --------------------------------------------------------------------------------------------

READS = {
    "intent": lambda state: state.intent.read(),
    "intent.find": lambda state: state.intent.find(["r1"]),
    "intent.returned_names": lambda state: state.intent.returned_names(),
    "intent.remove": lambda state: state.intent.remove(["r1"]),
    "memory": lambda state: state.memory.read(),
    "memory.is_older": lambda state: state.memory.is_older(),
    "status.read_answers": lambda state: state.status.read_answers(["r1"]).get("r1"),
    "status.read_all": lambda state: state.status.read_all(),
    "status.read_lost": lambda state: state.status.read_lost(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reading_what_is_not_there_creates_nothing_and_names_the_file(state: StateDir, read) -> None:
    with pytest.raises(StateMissing, match=r"(intent|memory|status)\.json: (is not there yet|the file does not exist)"):
        read(state)
    assert contents(Path(state.path)) == {}


def test_a_mistyped_directory_is_named_and_not_created(tmp_path: Path) -> None:
    mistyped = StateDir(tmp_path / "wrok")
    for attempt in (mistyped.intent.read, lambda: add(mistyped), lambda: mistyped.intent.create("demo")):
        with pytest.raises(StateMissing, match=r"wrok: this state directory does not exist.*HF_PROVIDER_WORKDIR"):
            attempt()
    with pytest.raises(StateUnwritable, match="wrok"):
        mistyped.memory.write(Memory("demo"))
    assert list(tmp_path.iterdir()) == []


def test_looking_at_signs_of_life_creates_nothing(state: StateDir) -> None:
    assert state.intent.signature() is None
    assert not state.memory.exists()
    assert not state.memory.existed()
    assert state.seen.marks() == {}
    assert state.told.ids() == frozenset()
    assert state.inventory.read() is None
    assert state.heartbeat.loop_silent_for(0) is None
    assert contents(Path(state.path)) == {}


# --- creating ---------------------------------------------------------------------------------------------------------


def test_the_first_request_creates_intent(state: StateDir) -> None:
    request = add(state)
    intent = state.intent.read()
    assert (intent.provisioner, intent.generation) == ("demo", 1)
    assert intent.requests == {request: model.Request(request, "T1", 2, 5.0)}


def test_init_creates_an_empty_intent_once(state: StateDir) -> None:
    state.intent.create("demo")
    assert state.intent.read() == model.Intent("demo", 1, {}, {})
    before = contents(Path(state.path))
    with pytest.raises(StateExists, match="exists already"):
        state.intent.create("other")
    assert contents(Path(state.path))["intent.json"] == before["intent.json"]


def test_intent_is_not_created_where_memory_shows_that_it_was_lost(state: StateDir) -> None:
    state.memory.write(Memory("demo"))
    for attempt in (lambda: add(state), lambda: state.intent.create("demo")):
        with pytest.raises(StateMissing, match=r"memory\.json exists, so it was lost.*provisioner recover"):
            attempt()
    assert not state.intent.exists()


@pytest.mark.usefixtures("no_pauses")
def test_intent_is_not_created_again_when_only_its_lock_file_remembers_it(state: StateDir) -> None:
    add(state)
    os.unlink(state.intent.path)
    with pytest.raises(StateMissing, match=r"is gone, although it was written 1 times.*provisioner recover"):
        add(state)
    assert not state.intent.exists()
    state.intent.create("demo")
    assert state.intent.read().generation == 2, "a loop that saw generation 1 must not take the new file for an old one"


# --- changes of intent ------------------------------------------------------------------------------------------------


def test_additions_are_written_once_however_many_they_are(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    add(state)
    renames = []
    real = os.rename
    monkeypatch.setattr(atomic.os, "rename", lambda old, new: (renames.append(new), real(old, new)))
    with state.intent.additions() as intent:
        requests = [intent.add_request("T", 1, created_wall=1.0) for _ in range(3)]
        back = intent.add_return(["a", "b"], created_wall=2.0)
        assert renames == []
    assert renames == [state.intent.path]
    now = state.intent.read()
    assert now.generation == 2
    assert set(requests) < set(now.requests)
    assert now.returns == {back: model.ReturnRequest(back, ("a", "b"), 2.0)}


def test_a_change_that_changes_nothing_writes_nothing(state: StateDir) -> None:
    add(state)
    before = state.intent.signature()
    state.intent.remove(["unknown", "ret-unknown"])
    with state.intent.additions():
        pass
    assert state.intent.signature() == before


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_an_exception_inside_writes_nothing_and_leaves_no_lock(state: StateDir, error: type[BaseException]) -> None:
    add(state)
    before = state.intent.signature()
    with pytest.raises(error), state.intent.additions() as intent:
        raise error(intent.add_request("T", 1, created_wall=1.0))
    assert state.intent.signature() == before
    with state.intent.additions(wait=0) as intent:
        kept = intent.add_request("T", 1, created_wall=1.0)
    assert len(state.intent.read().requests) == 2
    assert kept in state.intent.read().requests


def test_a_writer_whose_lock_file_is_removed_meanwhile_changes_nothing(state: StateDir, monkeypatch) -> None:
    add(state)
    before = state.intent.signature()
    monkeypatch.setattr(intent_file, "waiting", lambda *_: os.unlink(state.intent.lock_path) or [])
    with pytest.raises(StateUnwritable, match="Never remove lock files"):
        add(state)
    assert state.intent.signature() == before


def test_text_that_is_no_unicode_comes_back_as_it_was(state: StateDir) -> None:
    with state.intent.additions(create_for="demo") as intent:
        request = intent.add_request("T", 1, created_wall=1.0, rc_account="\ud800ä")
    assert state.intent.read().requests[request].rc_account == "\ud800ä"


def test_trimming_takes_requests_and_returns_and_skips_what_is_gone(state: StateDir) -> None:
    request = add(state)
    with state.intent.additions() as intent:
        back = intent.add_return(["a"], created_wall=1.0)
        kept = intent.add_request("T2", 1, created_wall=1.0, rc_account="desk")
    assert state.intent.remove([request, back, "nobody"]) >= 0.0
    assert state.intent.read().requests == {kept: model.Request(kept, "T2", 1, 1.0, "desk")}
    assert state.intent.read().returns == {}


def test_find_knows_requests_and_returns_by_id(state: StateDir) -> None:
    request = add(state)
    with state.intent.additions() as intent:
        back = intent.add_return(["a", "b"], created_wall=1.0)
    by_id = state.intent.find([request, back, "unknown"])
    assert {key: dict(value) for key, value in by_id.items()} == {
        request: {"template": "T1", "count": 2, "created_wall": 5.0},
        back: {"names": ["a", "b"], "created_wall": 1.0},
    }
    assert state.intent.returned_names() == {"a", "b"}


def test_ids_have_the_models_shape_and_none_is_given_twice(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_pattern("hf").fullmatch(f"hf-{additions.new_id()}-000001")
    many = {additions.new_id() for _ in range(2000)}
    assert len(many) == 2000
    assert set("".join(many)) == set(additions.ID_ALPHABET)
    draws = iter(["same", "same", "other", "same", "same", "third"])
    monkeypatch.setattr(additions, "new_id", lambda: next(draws))
    assert add(state) == "same"
    before = state.intent.signature()
    with pytest.raises(StateError, match="is taken already; nothing was written"):
        add(state, "T2")
    assert state.intent.signature() == before
    with state.intent.additions() as intent:
        assert [intent.add_return([], created_wall=0.0) for _ in range(2)] == ["ret-other", "ret-same"]
        assert intent.add_return([], created_wall=0.0) == "ret-third"


def test_a_random_byte_that_would_favour_some_letters_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([bytes([252, 253, 254, 255] + [0] * 6), bytes([35] * 10)])
    monkeypatch.setattr(additions.os, "urandom", lambda size: next(draws))
    assert additions.new_id() == "aaaaaa9999"


# --- generations ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_pauses")
def test_a_writer_refuses_an_intent_older_than_the_one_its_lock_file_knows(state: StateDir) -> None:
    add(state)
    old = Path(state.intent.path).read_bytes()
    add(state)
    Path(state.intent.path).write_bytes(old)
    assert state.intent.is_older()
    with pytest.raises(StateStale, match=r"intent\.json: generation 1 is older than 2.*lookupcache"):
        add(state)
    assert Path(state.intent.path).read_bytes() == old


@pytest.mark.usefixtures("no_pauses")
def test_a_generation_that_is_noted_makes_writers_refuse_an_older_intent(state: StateDir) -> None:
    add(state)
    Path(state.intent.lock_path).unlink()
    state.intent.note_newest(5)
    state.intent.note_newest(3)
    with pytest.raises(StateStale, match="generation 1 is older than 5"):
        add(state)


def test_a_file_that_no_writer_made_stands_alone(state: StateDir) -> None:
    assert not state.intent.stands_alone(), "nothing is there"
    add(state)
    assert not state.intent.stands_alone()
    Path(state.intent.lock_path).unlink()
    assert state.intent.stands_alone()


def test_a_writer_that_is_served_an_old_intent_opens_it_again(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    add(state)
    old = Path(state.intent.path).read_bytes()
    add(state)
    served = iter([old, old])
    real = atomic.read_own
    monkeypatch.setattr(atomic, "read_own", lambda path: next(served, None) or real(path))
    add(state)
    assert len(state.intent.read().requests) == 3
    assert next(served, None) is None


def test_data_newer_than_its_lock_file_is_what_a_crash_leaves_and_is_fine(state: StateDir) -> None:
    add(state)
    behind = Path(state.intent.lock_path).read_bytes()
    add(state)
    Path(state.intent.lock_path).write_bytes(behind)
    assert not state.intent.is_older()
    add(state)
    assert (state.intent.read().generation, len(state.intent.read().requests)) == (3, 3)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 256, b'{"host": "h', b"[]", b'{"generation": "x"}', b'{"generation": -4}', b"x" * 300],
    ids=["empty", "zeros", "half a line", "no object", "no number", "negative", "noise"],
)
def test_a_lock_file_that_does_not_parse_is_tolerated_and_mended(state: StateDir, content: bytes) -> None:
    add(state)
    Path(state.intent.lock_path).write_bytes(content)
    add(state)
    assert len(state.intent.read().requests) == 2
    assert json.loads(Path(state.intent.lock_path).read_bytes().partition(b"\n")[0]) == {"generation": 2}


def test_an_older_memory_put_back_is_noticed_until_the_loop_has_written_again(state: StateDir) -> None:
    state.memory.write(Memory("demo", epoch=1))
    old = Path(state.memory.path).read_bytes()
    state.memory.write(Memory("demo", epoch=2))
    state.memory.write(Memory("demo", epoch=2))
    assert not state.memory.is_older()
    Path(state.memory.path).write_bytes(old)
    assert state.memory.is_older()
    successor = StateDir(state.path)
    successor.memory.write(Memory("demo", epoch=3))
    assert not successor.memory.is_older()
    assert successor.memory.read().epoch == 3
    assert json.loads(Path(state.memory.path).read_bytes())["meta"]["state"]["generation"] == 4, "never one used before"


def test_a_lost_memory_is_known_to_have_existed(state: StateDir) -> None:
    state.memory.write(Memory("demo"))
    os.unlink(state.memory.path)
    assert not state.memory.exists()
    assert state.memory.existed()


# --- files that cannot be used are left alone -------------------------------------------------------------------------

DAMAGE = {
    "empty": (b"", r"holds nothing \(0 bytes\)"),
    "zeros": (b"\0" * 9, r"holds nothing \(9 bytes\)"),
    "cut off": (b'{"meta": {"state": {"sch', r"line 1 column 21 \(byte 20 of 24\)"),
    "second line": (b'{"a": {},\n"b": oops}', r"line 2 column 6 \(byte 15 of 20\)"),
    "umlaut before": ('{"ä": oops}'.encode(), r"line 1 column 7 \(byte 7 of 12\)"),
    "not UTF-8": (b'{"a": "\xff"}', "byte 7 of 10: invalid start byte"),
    "endless nesting": (b"[" * 100_000, "not valid JSON"),
    "a list": (b"[1]", "not a database of tables"),
    "a table of numbers": (b'{"a": {"1": 2}}', "not a database of tables"),
    "somebody else's": (b'{"_default": {"1": {}}}', "not written by the provisioner"),
    "no generation": (b'{"meta": {"state": {"schema": 1, "kind": "intent", "provisioner": ""}}}', "lacks one of"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_an_unusable_file_is_reported_with_its_place_and_left_as_it_is(
    state: StateDir, content: bytes, message: str
) -> None:
    fill(state)
    for file in (state.intent, state.memory, state.status):
        Path(file.path).write_bytes(content)
    attempts = {"intent": lambda: add(state), **{name: lambda read=read: read(state) for name, read in READS.items()}}
    for name, attempt in attempts.items():
        with pytest.raises(StateUnreadable, match=message) as caught:
            attempt()
        assert name.partition(".")[0] + ".json" in str(caught.value)
        assert "The file was left as it is." in str(caught.value)
        assert "provisioner r" in str(caught.value), "the message ends with the next step"
    for file in (state.intent, state.memory, state.status):
        assert Path(file.path).read_bytes() == content


def test_the_loop_does_not_overwrite_an_unreadable_memory_before_it_was_set_aside(state: StateDir) -> None:
    Path(state.memory.path).write_bytes(b"precious")
    with pytest.raises(StateUnreadable):
        state.memory.write(Memory("demo"))
    assert Path(state.memory.path).read_bytes() == b"precious"
    aside = state.memory.set_aside()
    state.memory.write(Memory("demo"))
    assert Path(aside).read_bytes() == b"precious"
    assert state.memory.read() == Memory("demo")


def test_an_unreadable_status_is_set_aside_because_it_can_be_made_again(state: StateDir) -> None:
    Path(state.status.path).write_bytes(b"damaged")
    state.status.write({"r1": Answer("{}", True)}, {})
    assert state.status.read_answers(["r1"]).get("r1") == Answer("{}", True)
    (aside,) = Path(state.path).glob("status.json.aside-*")
    assert aside.read_bytes() == b"damaged"


def test_setting_aside_what_is_not_there_says_so(state: StateDir) -> None:
    with pytest.raises(StateMissing, match=r"memory\.json"):
        state.memory.set_aside()


WRITES: dict[str, Callable[[StateDir], object]] = {
    "intent": add,
    "memory": lambda state: state.memory.write(Memory("demo")),
    "status": lambda state: state.status.write({}, {}),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_newer_schema_is_refused_for_reading_and_writing(state: StateDir, name: str) -> None:
    fill(state)
    path = Path(state.path, f"{name}.json")
    tables = json.loads(path.read_bytes())
    tables["meta"]["state"]["schema"] = SCHEMA + 1
    path.write_text(json.dumps(tables))
    before = path.read_bytes()
    fresh = StateDir(state.path)
    for attempt in (lambda: READS.get(name, READS["status.read_all"])(fresh), lambda: WRITES[name](fresh)):
        with pytest.raises(StateTooNew, match=rf"{name}\.json: has schema version 2, this provisioner knows up to 1"):
            attempt()
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", WRITES)
def test_a_file_of_an_older_schema_is_written_in_ours_whoever_changes_it(state: StateDir, name: str) -> None:
    """Else an older program, taken back, would take what it cannot read for a damaged file."""
    WRITES[name](state)
    path = Path(state.path, f"{name}.json")
    tables = json.loads(path.read_bytes())
    tables["meta"]["state"]["schema"] = SCHEMA - 1
    path.write_text(json.dumps(tables))
    WRITES[name](StateDir(state.path))
    assert json.loads(path.read_bytes())["meta"]["state"]["schema"] == SCHEMA


def test_a_file_under_another_files_name_is_refused(state: StateDir) -> None:
    fill(state)
    os.replace(state.memory.path, state.intent.path)
    with pytest.raises(StateUnreadable, match=r"intent\.json: holds 'memory', not 'intent'"):
        state.intent.read()


@pytest.mark.parametrize(
    ("table", "document", "message"),
    [
        ("requests", {"template": "T", "count": 1}, r"requests\.x: .*created_wall"),
        ("requests", {"template": "T", "count": "1", "created_wall": 1}, r"requests\.x: count: expected int, got '1'"),
        ("requests", {"template": "T", "count": 1, "created_wall": 1, "new": 1}, "unknown field 'new'"),
        ("returns", {"names": "a", "created_wall": 1}, "names: expected a list"),
    ],
)
def test_a_document_that_does_not_fit_the_model_is_named(state: StateDir, table, document, message) -> None:
    add(state)
    tables = json.loads(Path(state.intent.path).read_bytes())
    tables[table]["x"] = document
    Path(state.intent.path).write_text(json.dumps(tables))
    with pytest.raises(StateUnreadable, match=message):
        state.intent.read()


@pytest.mark.parametrize(
    ("table", "document"),
    [
        ("answers", {"answer": "{}"}),
        ("answers", {"answer": 1, "ended": True}),
        ("lost", {}),
        ("lost", {"grace": 1}),
        ("lost", {"grace": "1", "cause": "node"}),
        ("available", {"machines": None}),
    ],
)
def test_a_status_document_that_does_not_fit_is_named(state: StateDir, table: str, document: dict) -> None:
    fill(state)
    tables = json.loads(Path(state.status.path).read_bytes())
    tables[table]["odd"] = document
    Path(state.status.path).write_text(json.dumps(tables))
    read = {"lost": state.status.read_lost, "available": state.status.read_available}
    with pytest.raises(StateUnreadable, match=r"status\.json: (the answer|the loss|what is available) of odd"):
        read.get(table, lambda: state.status.read_answers(["odd"]).get("odd"))()


# --- memory and status ------------------------------------------------------------------------------------------------


def test_status_is_what_was_written_last(state: StateDir) -> None:
    state.status.write(
        {"r1": Answer('{"requestId":"r1"}', False), "r2": Answer("{}", True)}, {"host": Loss(30, "evicted")}, {"T": 7}
    )
    assert state.status.read_answers(["r1", "nobody"]) == {"r1": Answer('{"requestId":"r1"}', False)}
    assert state.status.read_answers(["nobody"]).get("nobody") is None
    assert state.status.read_lost() == {"host": Loss(30, "evicted")}
    assert state.status.read_available() == {"T": 7}
    StateDir(state.path).status.write({"r3": Answer("…", True)}, {})
    assert state.status.read_all() == {"r3": Answer("…", True)}
    assert state.status.read_lost() == {}
    assert state.status.read_available() == {}
    assert json.loads(Path(state.status.path).read_bytes())["meta"]["state"]["generation"] == 2


def test_only_changed_records_are_encoded_again(state: StateDir) -> None:
    same, other = RequestRecord("a", "T", 1, 0.0, 9.0), RequestRecord("b", "T", 1, 0.0, 9.0)
    state.memory.write(Memory("demo", requests={"a": same, "b": other}))
    before = state.memory._codec._requests
    changed = RequestRecord("b", "T", 1, 0.0, 9.0, told_at=3.0)
    state.memory.write(Memory("demo", requests={"a": same, "b": changed}))
    after = state.memory._codec._requests
    assert after["a"][1] is before["a"][1]
    assert after["b"][1] != before["b"][1]
    assert state.memory.read().requests == {"a": same, "b": changed}


def test_what_is_written_is_a_tinydb_database_with_our_ids(state: StateDir) -> None:
    request = add(state)
    with TinyDB(state.intent.path, access_mode="r") as database:
        assert database.tables() == {"meta", "requests", "returns"}
        assert database.storage.read()["requests"].keys() == {request}


def test_the_signature_changes_with_each_write(state: StateDir) -> None:
    signatures = set()
    for _ in range(3):
        add(state)
        signatures.add(state.intent.signature())
    assert len(signatures) == 3


# --- modes, locks, cost -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("umask_077")
def test_every_file_is_shared_with_the_group_whatever_the_umask(state: StateDir) -> None:
    fill(state)
    state.seen.touch("r1")
    state.inventory.write(["a"])
    state.heartbeat.touch()
    state.journal.append([{"a": 1}])
    assert state.loop_lock.acquire(0)
    state.loop_lock.raise_epoch()
    files = {path for path in Path(state.path).rglob("*") if path.is_file()}
    assert len(files) == 12
    assert {path.stat().st_mode & 0o777 for path in files} == {0o660}
    assert (Path(state.path) / "seen").stat().st_mode & 0o777 == 0o770
    add(state)
    assert Path(state.intent.path).stat().st_mode & 0o777 == 0o660


def test_a_writer_that_waits_too_long_names_the_holder(state: StateDir) -> None:
    add(state)
    before = state.intent.signature()
    with (
        DataLock(state.intent.lock_path),
        pytest.raises(LockTimeout) as caught,
        StateDir(state.path).intent.additions(wait=0.05) as intent,
    ):
        intent.add_request("T", 1, created_wall=0.0)
    host = os.uname().nodename
    assert f"held this lock for 0.05 s; nothing was written. Signed by process {os.getpid()} on host {host}" in str(
        caught.value
    )
    assert "which runs on this host" in str(caught.value)
    assert state.intent.lock_path in str(caught.value)
    assert state.intent.signature() == before


def test_the_scripts_share_of_the_store_imports_nothing_heavy() -> None:
    code = (
        "import sys, provisioner.state.directory as store; state = store.StateDir('.');print(*sys.modules, sep='\\n')"
    )
    run = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=clean_environment())
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    heavy = {"dataclasses", "inspect", "logging", "datetime", "uuid", "tempfile", "socket", "subprocess", "pathlib"}
    assert loaded & heavy == set()
    assert not {"provisioner.model", "provisioner.state.codec", "provisioner.state.journal"} & loaded


def clean_environment() -> dict[str, str]:
    """Without site directories (an editable install's hook imports much), so the packages' places are named."""
    places = [str(REPOSITORY), *(place for place in sys.path if place.endswith("site-packages"))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
