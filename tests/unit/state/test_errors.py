"""Errors of the state, which name the problem. The condition of a file is judged with its lock file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from provisioner.commands.cli import run
from provisioner.model import Memory
from provisioner.state.directory import StateDir
from provisioner.state.errors import Condition, StateDenied, StateError, StateMissing, StateUnwritable, condition
from provisioner.state.intent_recovery import read_files
from provisioner.state.poll_markers import Seen
from tests.support.hostfactory.in_process import Here, asking
from tests.support.stores import add

USER = 65501
"""A user id that belongs to no account."""
NEW = "intent.json: does not exist yet, because the directory is new. The first requestMachines makes the file, or "
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda state: state.intent.read(), id="read"),
        pytest.param(lambda state: state.intent.find(["a"]), id="find"),
        pytest.param(lambda state: state.intent.remove(["a"]), id="trim"),
        pytest.param(lambda state: state.intent.read_newest(), id="the loop's observation"),
    ],
)
def test_each_use_of_a_new_directory_says_what_makes_its_first_file(
    state: StateDir, use: Callable[[StateDir], object]
) -> None:
    with pytest.raises(StateMissing, match=NEW):
        use(state)


def test_a_command_and_a_script_say_so_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hf = Here(tmp_path, capfd)
    assert NEW in hf.refusal("getRequestStatus", asking("abcdefghij"))
    assert run(["status", "--state-dir", hf.state.path]) == 1
    assert capfd.readouterr().err == f"{hf.state.path}/{NEW}`provisioner init`.\n"


LOSSES: dict[str, Callable[[StateDir], object]] = {
    "memory is there": lambda state: state.memory.write(Memory("demo")),
    "memory's lock file is there": lambda state: (state.memory.write(Memory("demo")), os.unlink(state.memory.path)),
    "status is there": lambda state: state.status.write({}, {}),
    "intent's lock file is there": lambda state: (state.intent.create("demo"), os.unlink(state.intent.path)),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_where_anything_shows_that_there_was_one_it_is_lost(
    state: StateDir, lose: Callable[[StateDir], object]
) -> None:
    lose(state)
    with pytest.raises(StateMissing, match="Restore it from a backup, or run `provisioner recover`"):
        state.intent.read()


# --- another user -----------------------------------------------------------------------------------------------------


@pytest.fixture
def shared() -> Iterator[StateDir]:
    """A state directory that every user may reach."""
    with TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        yield StateDir(directory)


@contextmanager
def another_user() -> Iterator[None]:
    """Run the block as another user, so that the system's rules for this user apply."""
    import_module("grp")  # Python's own library may be closed to that user
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(USER)
    os.seteuid(USER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def refused(act: Callable[[], object]) -> str:
    """Call ``act`` as another user, and return the kind and the text of the StateError that it raises."""
    with another_user(), pytest.raises(StateError) as caught:
        act()
    return f"{caught.type.__name__} {caught.value}"


@only_root
def test_a_file_of_another_user_is_said_to_be_his(shared: StateDir) -> None:
    shared.intent.create("demo")
    path = shared.intent.path
    assert refused(shared.intent.read) == (
        f"{StateDenied.__name__} {path}: cannot be read: Permission denied. {path} belongs to user root and group root "
        f"with mode 660, and this process runs as user {USER}. Run it as the user that HostFactory runs the scripts "
        "as, or see hf_scripts/check_install.sh, which says how two users share the directory."
    )


@only_root
@pytest.mark.parametrize("name", ["intent.json", "intent.json.lock"])
def test_a_file_that_may_not_be_written_is_said_to_be_another_user_s(shared: StateDir, name: str) -> None:
    shared.intent.create("demo")
    for path in Path(shared.path).iterdir():
        path.chmod(0o666)
    Path(shared.path, name).chmod(0o640)
    said = refused(lambda: add(shared))
    assert f"{shared.path}/{name}: " in said
    assert "Permission denied" in said
    assert f"belongs to user root and group root with mode 640, and this process runs as user {USER}" in said
    assert "recover" not in said


@only_root
def test_a_directory_that_may_not_be_searched_is_the_one_that_is_named(shared: StateDir) -> None:
    seen = Seen(f"{shared.path}/seen")
    seen.touch("abcdefghij")
    said = refused(lambda: seen.touch("abcdefghij"))
    assert said.startswith(f"{StateUnwritable.__name__} {seen.path}/abcdefghij: cannot be written: Permission denied. ")
    assert f"{seen.path} belongs to user root and group root with mode 770" in said
    assert refused(seen.marks).startswith(f"{StateDenied.__name__} {seen.path}: cannot be read: Permission denied. ")


@only_root
def test_a_memory_that_may_not_be_read_is_not_moved_aside(shared: StateDir) -> None:
    shared.intent.create("demo")
    shared.memory.write(Memory("demo"))
    for path in (shared.intent.path, shared.intent.lock_path):
        Path(path).chmod(0o666)
    assert "memory.json: cannot be read: Permission denied" in refused(lambda: read_files(shared))


@pytest.mark.parametrize(
    ("generation", "noted", "expected"),
    [
        pytest.param(None, None, Condition.NEW, id="nothing was ever there"),
        pytest.param(None, 0, Condition.NEW, id="a lock was taken and nothing written"),
        pytest.param(None, 3, Condition.MISSING, id="what was written is gone"),
        pytest.param(3, None, Condition.ALONE, id="no writer made it"),
        pytest.param(3, 4, Condition.OLDER, id="an old copy"),
        pytest.param(3, 3, Condition.FINE, id="the last one written"),
        pytest.param(3, 2, Condition.FINE, id="a crash before the note"),
    ],
)
def test_file_and_note(generation: int | None, noted: int | None, expected: Condition) -> None:
    assert condition(generation, noted) is expected


def test_a_memory_file_in_each_condition(tmp_path: Path) -> None:
    memory = StateDir(tmp_path).memory
    copy = f"{memory.path}.copy"
    conditions = [memory.condition()]
    memory.write(Memory("demo"))
    shutil.copy(memory.path, copy)
    conditions.append(memory.condition())
    memory.write(Memory("demo", generation=1))
    shutil.copy(copy, memory.path)
    conditions.append(memory.condition())
    Path(memory.path).write_text("{")
    conditions.append(memory.condition())
    os.unlink(memory.path)
    conditions.append(memory.condition())
    shutil.copy(copy, memory.path)
    os.unlink(memory.lock_path)
    conditions.append(memory.condition())
    assert conditions == ["new", "fine", "older", "unreadable", "missing", "alone"]
