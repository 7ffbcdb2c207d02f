"""Refusal of symbolic links, hard links and FIFOs at the paths of our files."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hf_scripts import log
from provisioner.files.safe_open import read_own, refusal_message
from provisioner.hostfactory import Answer
from provisioner.hostfactory.provider_config import Directories
from provisioner.lab.trace import TraceError, read_trace
from provisioner.model import Memory
from provisioner.state import atomic
from provisioner.state.atomic import create_whole, read_whole
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError, StateLinked
from provisioner.state.locks import DataLock
from tests.support.hostfactory.in_process import Here
from tests.support.hostfactory.provider import requesting
from tests.support.stores import add, pauses
from tests.support.waiting import until

ID = "abcdefghij"
CONTENT = b'{"names": []}\n'


def wait_for_lock(state: StateDir) -> None:
    with DataLock(state.intent.lock_path):
        pass


USES: dict[str, list[Callable[[StateDir], object]]] = {
    "intent.json": [add, lambda state: state.intent.read(), lambda state: state.intent.check("demo")],
    "intent.json.lock": [add],
    "intent.json.lock.turn": [wait_for_lock],
    "memory.json": [lambda state: state.memory.write(Memory("inst")), lambda state: state.memory.read()],
    "memory.json.lock": [lambda state: state.memory.write(Memory("inst"))],
    "status.json": [lambda state: state.status.write({}, {}), lambda state: state.status.read_all()],
    f"seen/{ID}": [lambda state: state.seen.touch(ID)],
    f"seen/{ID}.answer-0": [
        lambda state: state.terminal_answers.settle_reported(ID, "{}"),
        lambda state: state.terminal_answers.settled(ID),
    ],
    "hf-inventory.json": [lambda state: state.inventory.write(["h"]), lambda state: state.inventory.read()],
    "announced.json": [lambda state: state.announced.write({"T": 1}), lambda state: state.announced.read()],
    "pools.json": [lambda state: state.pool_status.write({}), lambda state: state.pool_status.read()],
    "demand.json": [lambda state: state.write_demand({}), lambda state: state.read_demand()],
    "heartbeat": [lambda state: state.heartbeat.touch()],
    "journal.jsonl": [lambda state: state.journal.append([{"a": 1}])],
    "loop.lock": [lambda state: state.loop_lock.acquire(0), lambda state: state.loop_lock.epoch()],
    "recover": [lambda state: state.ask_release()],
}
EACH_USE = pytest.mark.parametrize(
    ("name", "use"),
    [pytest.param(name, use, id=f"{name} {number}") for name in USES for number, use in enumerate(USES[name])],
)


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    (tmp_path / "work" / "seen").mkdir(parents=True)
    return StateDir(tmp_path / "work")


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file of another program, which must be unchanged when the test ends."""
    path = tmp_path / "of-another-program"
    path.write_bytes(CONTENT)
    path.chmod(0o604)
    before = path.stat()
    yield path
    after = path.stat()
    assert path.read_bytes() == CONTENT
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@pytest.fixture(autouse=True)
def end_endless_waits() -> Iterator[None]:
    """End the test after a minute. Opening a FIFO would wait for ever if no other process opens it."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@EACH_USE
@pytest.mark.parametrize("dangling", [False, True], ids=["to a file", "to nothing"])
def test_a_link_in_place_of_a_file_is_refused_by_name_and_not_followed(
    state: StateDir, victim: Path, name: str, use: Callable[[StateDir], object], dangling: bool
) -> None:
    path = Path(state.path) / name
    target = victim.with_name("nothing") if dangling else victim
    path.symlink_to(target)
    with pytest.raises(StateError, match="is a symbolic link") as caught:
        use(state)
    assert str(caught.value).startswith(f"{path}: ")
    assert path.is_symlink()
    assert target.exists() is not dangling


REPLACES = frozenset(
    f"{name} {number}"
    for name, number in [("memory.json", 0), ("status.json", 0), ("hf-inventory.json", 0), ("announced.json", 0)]
) | {"pools.json 0", "demand.json 0", "recover 0"}
"""Uses that replace the file whole without opening it."""


@EACH_USE
def test_a_hard_link_in_place_of_a_file_is_refused_by_name_and_not_opened(
    state: StateDir, victim: Path, name: str, use: Callable[[StateDir], object]
) -> None:
    path = Path(state.path) / name
    os.link(victim, path)
    words = ""
    try:
        use(state)
    except StateError as error:
        words = str(error)
    if words:
        assert words.startswith(f"{path}: has another name (a hard link)")
        assert f"`find DIR -xdev -samefile {path}`" in words
        assert f"`cp -p {path} COPY && mv COPY {path}`" in words
    else:
        assert f"{name} {USES[name].index(use)}" in REPLACES
        assert path.stat().st_nlink == 1


def test_the_message_says_how_to_fix_a_hard_link(state: StateDir, victim: Path) -> None:
    add(state)
    path = Path(state.intent.path)
    path.chmod(0o604)
    os.link(path, victim.with_name("backup"))
    with pytest.raises(StateLinked, match=f"`cp -p {path} COPY && mv COPY {path}`"):
        state.intent.read()
    os.replace(shutil.copy2(path, path.with_name("COPY")), path)
    assert len(state.intent.read().requests) == 1
    os.link(path, victim.with_name("another"))
    with pytest.raises(StateLinked, match=f"Remove the other name, which `find DIR -xdev -samefile {path}`"):
        state.intent.read()
    victim.with_name("another").unlink()
    assert len(state.intent.read().requests) == 1


def test_the_second_name_that_a_killed_writer_left_is_ours(state: StateDir) -> None:
    state.terminal_answers.settle_reported(ID, "{}")
    path = Path(state.terminal_answers.path) / f"{ID}.answer-0"
    os.link(path, f"{path}.17-abcd.new")
    assert state.terminal_answers.settled(ID) is not None
    os.link(path, path.with_name("other.new"))
    with pytest.raises(StateLinked):
        state.terminal_answers.settled(ID)


def test_a_file_is_read_at_each_instant_at_which_it_is_made(tmp_path: Path) -> None:
    """A file must be readable as soon as it appears. Another thread makes one file after the other meanwhile."""
    paths = [str(tmp_path / str(number)) for number in range(200)]
    writer = threading.Thread(target=lambda: [create_whole(path, b"whole") for path in paths])
    writer.start()
    for path in paths:
        until(lambda path=path: os.path.exists(path), 30, every=0, what="the file is made")  # type: ignore[misc]
        assert read_whole(path, "") == b"whole"
    writer.join()


@pytest.fixture
def made_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the path of a file that another host has just made. That host removes the file's temporary name while this
    host reads the link count. As with a cache, an open file keeps its old count."""
    path, aside = tmp_path / "made", tmp_path / "made.17-abcd.new"
    aside.write_bytes(b"whole")
    os.link(aside, path)
    opened, counted, listed = os.open, os.fstat, os.scandir
    counts: dict[int, os.stat_result] = {}

    def open_anew(name: str, *args: int) -> int:
        descriptor = opened(name, *args)
        counts[descriptor] = counted(descriptor)
        return descriptor

    def list_later(directory: str) -> object:
        aside.unlink(missing_ok=True)
        return listed(directory)

    monkeypatch.setattr(os, "open", open_anew)
    monkeypatch.setattr(os, "fstat", lambda descriptor: counts.get(descriptor) or counted(descriptor))
    monkeypatch.setattr(os, "scandir", list_later)
    return str(path)


def test_a_count_from_a_cache_is_asked_for_anew(made_elsewhere: str) -> None:
    assert read_own(made_elsewhere) == b"whole"


def test_a_check_reports_no_other_name_that_a_cache_remembers(made_elsewhere: str) -> None:
    assert refusal_message(made_elsewhere) == ""


def test_a_count_that_a_cache_keeps_for_a_moment_is_awaited(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(state.path) / "made"
    path.write_bytes(b"whole")
    other = path.with_name("other")
    os.link(path, other)
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 3:
            other.unlink()

    monkeypatch.setattr(atomic.time, "sleep", pause)
    assert read_whole(str(path), "") == b"whole"
    assert paused == pauses()[:3]


def test_a_file_that_is_refused_is_closed(state: StateDir, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(directory: str) -> object:
        raise PermissionError(13, directory)

    path = Path(state.path) / "linked"
    os.link(victim, path)
    for listed in (os.scandir, refuse):
        monkeypatch.setattr(os, "scandir", listed)
        before = sorted(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError):
            read_own(str(path))
        assert sorted(os.listdir("/proc/self/fd")) == before


@EACH_USE
def test_a_fifo_in_place_of_a_file_blocks_no_process(
    state: StateDir, name: str, use: Callable[[StateDir], object]
) -> None:
    path = Path(state.path) / name
    os.mkfifo(path)
    words = ""
    try:
        use(state)
    except StateError as error:
        words = str(error)
    if words:
        assert words.startswith(f"{path}: ")
        assert "is no regular file" in words
    else:
        assert path.is_file()  # a file that is replaced whole was never opened


def test_a_linked_directory_may_stay(tmp_path: Path) -> None:
    for name in ("work", "seen"):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
    (tmp_path / "work").symlink_to(tmp_path / "elsewhere" / "work")
    (tmp_path / "work" / "seen").symlink_to(tmp_path / "elsewhere" / "seen")
    state = StateDir(tmp_path / "work")
    add(state)
    state.memory.write(Memory("inst"))
    state.status.write({ID: Answer("{}", True)}, {})
    state.seen.touch(ID)
    state.terminal_answers.settle_reported(ID, "{}")
    state.journal.append([{"a": 1}])
    state.heartbeat.touch()
    assert state.loop_lock.acquire(0)
    assert state.terminal_answers.ids() == {ID}
    assert (tmp_path / "elsewhere" / "seen" / ID).is_file()


def test_a_linked_memory_is_not_taken_for_one_that_may_be_moved_aside(state: StateDir, victim: Path) -> None:
    Path(state.memory.path).symlink_to(victim)
    with pytest.raises(StateLinked):
        state.memory.read()


def test_a_posted_write_that_is_a_link_or_a_fifo_is_left_alone(state: StateDir, victim: Path) -> None:
    link, fifo = (Path(state.path) / f"intent.batch-{name}" for name in ("aaaa", "bbbb"))
    link.symlink_to(victim)
    os.mkfifo(fifo)
    add(state)
    assert link.is_symlink()
    assert fifo.exists()


# --- the scripts ------------------------------------------------------------------------------------------------------


def test_hf_is_answered_where_the_log_is_a_link_and_nothing_is_logged_through_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], victim: Path
) -> None:
    hf = Here(tmp_path, capfd)
    path = Path(log.file_of(Directories(hf.environment)))
    path.unlink(missing_ok=True)
    path.symlink_to(victim)
    assert hf.answer("requestMachines", requesting("T1", 1))["requestId"]


def test_a_call_is_not_recorded_through_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "trace").symlink_to(victim)
    assert not log.record(str(tmp_path / "trace"), "getReturnRequests", {}, "{}")


def test_a_trace_that_is_a_link_or_a_fifo_is_refused_by_name(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "fifo")
    for name, words in (("link", "is a symbolic link"), ("fifo", "is no regular file")):
        with pytest.raises(TraceError, match=words) as caught:
            read_trace(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: ")
