"""The state directory through two mounts. HostFactory's scripts use one mount, and the loop uses the other.

TEST_NFS_MOUNTS=ONE:TWO names two mounts of one NFS export. Without it, the mounts are two paths to a local directory.
``tests/vm`` runs this module on real NFS, without the shared fixtures of conftest.py.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
import yaml

from provisioner.hostfactory.script_calls import HostFactory
from provisioner.lab.cloud.server import Simulator
from provisioner.state import atomic
from provisioner.state.directory import StateDir
from provisioner.state.loop_lock import LoopLock
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.nfs

SPACE = "symphony"
TIMINGS = {"gke": {"schedule": 0.05, "start": 0.05, "ready": 0.05, "stop": 0.1, "confirm": 0.05}}


@pytest.fixture
def ways(tmp_path: Path) -> tuple[Path, Path]:
    """Return an empty directory of the export, as each side sees it."""
    name = f"hostfactory-{secrets.token_hex(4)}"
    if given := os.environ.get("TEST_NFS_MOUNTS"):
        one, two = (Path(place) / name for place in given.split(":"))
    else:
        (tmp_path / "export").mkdir()
        (tmp_path / "mount").symlink_to("export")
        one, two = tmp_path / "export" / name, tmp_path / "mount" / name
    one.mkdir()
    assert two.is_dir(), f"{one} and {two} are not mounts of one export"
    for content in ("old", "new"):
        (two / "text.new").write_text(content)
        os.replace(two / "text.new", two / "text")
        content = (one / "text").read_text()
    # Two mounts of one version 4.x share their files' delegations: an old file is believed to be the one of that name.
    assert content == "new", (
        f"{one} and {two} are one client to the server: mount one with vers=4.1, the other with 4.2"
    )
    (one / "text").unlink()
    return one, two


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator(namespaces=[SPACE]) as running:
        running.impose(timings=TIMINGS)
        yield running


class Sides:
    """HostFactory's host, and the loop as a process elsewhere."""

    def __init__(self, ways: tuple[Path, Path], simulator: Simulator, directory: Path) -> None:
        conf = directory / "conf"
        conf.mkdir()
        pool = {"kind": "gke", "namespace": SPACE, "pod_spec": "pod.yaml", "kubeconfig": str(simulator.kubeconfig)}
        settings = {"id": "demo", "loop": {"interval_seconds": 1, "floor_seconds": 0.1}, "pools": {"gke-main": pool}}
        (conf / "provisioner.yaml").write_text(yaml.safe_dump(settings))
        (conf / "pod.yaml").write_text("containers: [{name: main, image: busybox}]\n")
        (conf / "demoprov_templates.json").write_text(
            '[{"templateId": "T", "maxNumber": 50, "pools": ["gke-main"], "attributes": {"type": ["String", "X86_64"], '
            '"ncpus": ["Numeric", "1"], "ncores": ["Numeric", "1"], "nram": ["Numeric", "1024"]}}]'
        )
        common = {"HF_PROVIDER_NAME": "demo", "HF_PROVIDER_CONFDIR": str(conf), "HF_PROVIDER_LOGDIR": str(directory)}
        self.hf = HostFactory({**common, "HF_PROVIDER_WORKDIR": str(ways[0]), "HF_PYTHON": sys.executable})
        self._environment = {**os.environ, **common, "HF_PROVIDER_WORKDIR": str(ways[1])}
        self._log = directory / "loop.log"
        self._loop: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "provisioner", "run", "--listen", "127.0.0.1:0"]
        with self._log.open("ab") as log:
            self._loop = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._loop is not None:
            self._loop.send_signal(how)
            self._loop.wait(30 * PATIENCE)

    def complete(self, id_: str) -> list[str]:
        """Wait until a request or return request is complete, and return its machines."""
        until(lambda: self.hf.status(id_)["status"] == "complete", 120, every=0.3, what=f"{id_} is complete")
        return [machine["name"] for machine in self.hf.status(id_)["machines"]]


@pytest.fixture
def sides(ways: tuple[Path, Path], simulator: Simulator, tmp_path: Path) -> Iterator[Sides]:
    made = Sides(ways, simulator, tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_machines_come_and_go_though_the_loop_is_killed_between(sides: Sides, simulator: Simulator) -> None:
    sides.start()
    names = sides.complete(sides.hf.request("T", 3))
    sides.stop(signal.SIGKILL)
    return_id = sides.hf.return_machines(names[:2])
    more = sides.hf.request("T", 1)
    sides.start()
    sides.complete(return_id)
    kept = {*names[2:], *sides.complete(more)}

    until(lambda: len(simulator.state()["machines"]) == len(kept), 60, what="as many are left")
    assert {one["name"] for one in simulator.state()["machines"]} == kept


def test_records_of_one_side_are_read_by_the_other_at_once(ways: tuple[Path, Path]) -> None:
    scripts, loop = StateDir(ways[0]), StateDir(ways[1])
    for number in range(1, 21):
        id_ = scripts.record_request("demo", "T", number, created_wall=0.0, rc_account="").id
        assert loop.intent.read().requests[id_].count == number
    assert len(loop.intent.read().requests) == 20


def test_a_lock_of_one_side_binds_the_other(ways: tuple[Path, Path]) -> None:
    with (ways[0] / "lock").open("w") as ours, (ways[1] / "lock").open("r+") as theirs:
        fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(ours, fcntl.LOCK_UN)
        fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_of_two_links_to_one_name_one_is_refused(ways: tuple[Path, Path]) -> None:
    (ways[0] / "a").write_text("one")
    (ways[1] / "b").write_text("two")
    os.link(ways[0] / "a", ways[0] / "text")

    with pytest.raises(FileExistsError):
        os.link(ways[1] / "b", ways[1] / "text")
    assert (ways[1] / "text").read_text() == "one"


def still_read(file: BinaryIO) -> bytes | None:
    """Return the content of a replaced file; None if the server no longer has it (NFS 3 has no open files)."""
    try:
        return file.read()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return None


def test_a_file_that_one_side_replaces_is_read_whole_by_the_other_that_has_the_old_one_open(
    ways: tuple[Path, Path],
) -> None:
    ours, theirs = (str(way / "state.json") for way in ways)
    atomic.replace(theirs, b"0" * 5000)
    for number in range(1, 10):
        old, new = (str(each).encode() * 5000 for each in (number - 1, number))
        with open(ours, "rb", buffering=0) as file:
            atomic.replace(theirs, new)
            assert still_read(file) in (old, None)
            assert atomic.read_whole(ours, "") == new


HOLD = """
import sys, time
from provisioner.state.loop_lock import LoopLock
lock = LoopLock(sys.argv[1])
assert lock.acquire(0.0)
lock.raise_epoch()
print("held", flush=True)
time.sleep(600)
"""


def test_of_two_loops_one_runs_until_it_is_killed(ways: tuple[Path, Path]) -> None:
    standby = LoopLock(str(ways[0] / "loop.lock"))
    command = [sys.executable, "-c", HOLD, ways[1] / "loop.lock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert standby.is_held()
        assert not standby.acquire(0.0)
        assert standby.holder()["pid"] == holder.pid
        holder.kill()
    try:
        assert standby.acquire(60.0 * PATIENCE)
        assert standby.raise_epoch() == 2
    finally:
        standby.release()
