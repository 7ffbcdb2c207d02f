"""What is said in a first hour is true: a new directory is not a lost one, and a file of another user is not broken."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hf_scripts.installation import HERE
from provisioner.commands.cli import run
from provisioner.model import Memory
from provisioner.schema.problems import ConfigError
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateDenied, StateError, StateMissing, StateUnwritable
from provisioner.state.hf_signals import Seen
from tests.support.hostfactory.in_process import Here, asking
from tests.support.hostfactory.sites import small_site

USER = 65501
"""A user id of nobody."""
NEW = "intent.json: is not there yet: the state directory is new. HostFactory's first requestMachines makes it, or "
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def test_a_new_directory_is_told_what_makes_its_first_file(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--state-dir", state.path]) == 1
    assert capsys.readouterr().err == f"{state.path}/{NEW}`provisioner init`.\n"


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda state: state.intent.read(), id="read"),
        pytest.param(lambda state: state.intent.find(["a"]), id="find"),
        pytest.param(lambda state: state.intent.remove(["a"]), id="trim"),
        pytest.param(lambda state: state.intent.read_newest(), id="the loop's look"),
    ],
)
def test_each_use_of_a_new_directory_says_so(state: StateDir, use: Callable[[StateDir], object]) -> None:
    with pytest.raises(StateMissing, match=NEW):
        use(state)


def test_a_question_about_a_request_in_a_new_directory_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert NEW in Here(tmp_path, capfd).refusal("getRequestStatus", asking("abcdefghij"))


LOSSES: dict[str, Callable[[StateDir], object]] = {
    "memory is there": lambda state: state.memory.write(Memory("demo")),
    "memory's lock file is there": lambda state: (
        state.memory.write(Memory("demo")),
        Path(state.memory.path).unlink(),
    ),
    "status is there": lambda state: state.status.write({}, {}),
    "intent's lock file is there": lambda state: (state.intent.create("demo"), Path(state.intent.path).unlink()),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_where_anything_shows_that_there_was_one_it_is_lost(
    state: StateDir, lose: Callable[[StateDir], object]
) -> None:
    lose(state)
    with pytest.raises(StateMissing, match="Restore it from a backup, or run `provisioner recover`"):
        state.intent.read()


def test_a_missing_configuration_is_told_what_belongs_in_it(tmp_path: Path) -> None:
    site = small_site(tmp_path)
    site.write()
    site.path.unlink()
    with pytest.raises(ConfigError, match=r"no such file; make it and name the pools in it, as config/demoinst of the"):
        site_load(site.path)


def site_load(path: Path) -> object:
    from provisioner.settings import loader

    return loader.load(path, {})


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_check_install_says_how_it_is_called(option: str) -> None:
    done = subprocess.run([f"{HERE}/check_install.sh", option], capture_output=True, text=True, check=False, env={})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: check_install.sh [--loop-user USER]\n")


@pytest.mark.parametrize("arguments", [["--loop-user"], ["x"], ["--loop-user", "a", "b"], ["--helpless"]])
def test_check_install_refuses_what_it_does_not_know(arguments: list[str]) -> None:
    done = subprocess.run([f"{HERE}/check_install.sh", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: check_install.sh [--loop-user USER]\n"


# --- another user -----------------------------------------------------------------------------------------------------


@pytest.fixture
def open_state() -> Iterator[StateDir]:
    """A directory that every user may reach."""
    with TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        yield StateDir(directory)


def as_user(act: Callable[[], object]) -> str:
    """What goes wrong when another user does it: the error's kind and text."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        try:
            act()
        except StateError as error:
            os.write(writer, f"{type(error).__name__} {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.wait()
    return said


@only_root
def test_a_file_of_another_user_is_said_to_be_his(open_state: StateDir) -> None:
    open_state.intent.create("demo")
    path = open_state.intent.path
    said = as_user(open_state.intent.read)
    assert said == (
        f"{StateDenied.__name__} {path}: cannot be read: Permission denied. {path} belongs to user root and group root "
        f"with mode 660, and this process runs as user {USER}. Run it as the user that HostFactory runs the scripts "
        "as, or see hf_scripts/check_install.sh, which says how two users share the directory."
    )


@only_root
@pytest.mark.parametrize("name", ["intent.json", "intent.json.lock"])
def test_a_file_that_may_not_be_written_is_said_to_be_another_user_s(open_state: StateDir, name: str) -> None:
    open_state.intent.create("demo")
    for path in Path(open_state.path).iterdir():
        path.chmod(0o666)
    (Path(open_state.path) / name).chmod(0o640)

    def add() -> None:
        with open_state.intent.additions(create_for="demo") as intent:
            intent.add_request("T", 1, created_wall=0.0)

    said = as_user(add)
    assert f"{open_state.path}/{name}: " in said
    assert "Permission denied" in said
    assert f"belongs to user root and group root with mode 640, and this process runs as user {USER}" in said
    assert "recover" not in said


@only_root
def test_a_directory_that_may_not_be_searched_is_the_one_that_is_named(open_state: StateDir) -> None:
    seen = Seen(f"{open_state.path}/seen")
    seen.touch("abcdefghij")
    said = as_user(lambda: seen.touch("abcdefghij"))
    assert said.startswith(f"{StateUnwritable.__name__} {seen.path}/abcdefghij: cannot be written: Permission denied. ")
    assert f"{seen.path} belongs to user root and group root with mode 770" in said
    assert as_user(seen.marks).startswith(f"{StateDenied.__name__} {seen.path}: cannot be read: Permission denied. ")


@only_root
def test_a_memory_that_may_not_be_read_is_not_moved_aside(open_state: StateDir) -> None:
    from provisioner.state.recovery import read_files

    open_state.intent.create("demo")
    open_state.memory.write(Memory("demo"))
    for path in (open_state.intent.path, open_state.intent.lock_path):
        Path(path).chmod(0o666)
    assert "memory.json: cannot be read: Permission denied" in as_user(lambda: read_files(open_state))
