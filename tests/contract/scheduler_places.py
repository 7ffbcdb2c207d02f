"""Pools of the samples of real schedulers: Slurm by its commands, Grid Engine, and task-spooler."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol
from xml.etree import ElementTree

import pytest

from provisioner.model import ErrorClass
from provisioner.testing.place import How
from tests.contract.command_place import CommandPlace, sample
from tests.contract.slurm_place import SCRIPT, OnCluster, environment
from tests.support.schedulers.grid_engine import GridEngine
from tests.support.schedulers.slurm import SlurmCluster

NO_SPOOLER = "needs task-spooler (Debian package task-spooler)"
PILOT = ("/bin/sleep", "1000")
WRAPPER = """#!/bin/sh
verb=$1; shift
echo "$verb" >>{directory}/calls
case $verb-$(cat {directory}/fault) in
    *-hang) exec sleep 3600 ;;
    *-refuse|create-refusal) cat {directory}/words >&2; exit 1 ;;
    create-lost) "$@" >/dev/null; exit ;;
    delete-lost) "$@" >/dev/null; exec sleep 3600 ;;
esac
exec "$@"
"""
"""A program that runs another program, or fails in its place."""


class Commands(Protocol):
    """A way to run the scheduler's commands as its user."""

    def run(self, *argv: str) -> str:
        """Run a command. Return its output."""


class RealPlace(CommandPlace):
    """A pool of a real scheduler. A wrapper around the scheduler's commands plays the faults."""

    refusals: Mapping[ErrorClass, str]
    """The scheduler's words for refusals that the tests cannot provoke."""
    down: str
    """The scheduler's words if it does not answer."""

    def __init__(self, directory: Path, body: dict[str, Any], scheduler: Commands, user: Sequence[str] = ()) -> None:
        """Prepare the place. ``user``: words such as ``setpriv`` with its options. They stand before a command that the
        scheduler's user has to run."""
        self.scheduler, self._directory = scheduler, directory
        wrapper = directory / "wrapper"
        wrapper.write_text(WRAPPER.format(directory=directory))
        wrapper.chmod(0o755)
        (directory / "calls").touch()
        self.heal()
        deletes = {f"delete {name}": argv for name, argv in body["delete"].items() if name != "gone"}
        for verb, argv in {"create": body["create"]["argv"], "list": body["list"]["argv"], **deletes}.items():
            argv[:0] = [str(wrapper), verb.split()[0], *user]
        super().__init__(body)

    def creates(self) -> int:
        return (self._directory / "calls").read_text().split().count("create")

    def fail_creates(self, error: ErrorClass) -> None:
        self._fault("refusal", self.refusals[error])

    def lose_responses(self) -> None:
        self._fault("lost")

    def hang(self) -> None:
        self._fault("hang")

    def black_out(self) -> None:
        self._fault("refuse", self.down)

    def heal(self) -> None:
        self._fault("")

    def _fault(self, fault: str, words: str = "") -> None:
        (self._directory / "words").write_text(words)
        (self._directory / "fault").write_text(fault)


class OthersPlace(RealPlace):
    """A place in which other users submit and end jobs by the scheduler's own commands."""

    def spawn_foreign(self, name: str) -> None:
        self.needs_marks(name)
        self.submit(name)

    def copy(self, name: str, as_name: str) -> None:
        self.needs_marks()
        self.submit(as_name, self.mark(name))

    def stray(self, name: str) -> None:
        self.needs_marks()

    def remove(self, name: str) -> None:
        self.end_job(self.id(name))
        self.until_gone(name)

    def recreate(self, name: str) -> None:
        mark = self.mark(name)
        self.remove(name)
        self.submit(name, mark)

    def double(self, name: str) -> bool:
        self.submit(name, self.mark(name))
        return True

    def present(self) -> list[str]:
        return [*self.jobs().values()]

    @abstractmethod
    def jobs(self) -> dict[str, str]:
        """Return the names of the jobs that have not ended, by id."""

    @abstractmethod
    def submit(self, name: str, mark: str = "") -> None:
        """As another user, submit a job."""

    @abstractmethod
    def end_job(self, number: str) -> None:
        """As another user, end a job."""

    def mark(self, name: str) -> str:
        """Return the mark of a job; empty if the scheduler shows no marks."""
        return ""

    def id(self, name: str) -> str:
        """Return the number of the oldest job of this name."""
        return min((number for number, of in self.jobs().items() if of == name), key=int)


class SlurmCliPlace(OnCluster, RealPlace):
    """A partition of a real Slurm. Slurm itself refuses jobs, so no refusal is simulated."""

    file = "slurm-cli.yaml"
    down = "squeue: error: slurm_receive_msg: Unable to contact slurm controller (connect failure)"

    def __init__(self, cluster: SlurmCluster, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        body = sample(self.file)
        body["user"] = cluster.user
        body["environment"] = {"SLURM_CONF": cluster.daemons.environment["SLURM_CONF"]}
        body["variables"]["cores"] = 1
        argv = body["create"]["argv"]
        argv.remove("--exclusive")
        argv[-1:] = [pilot(cluster.daemons.directory)]
        resolve = socket.getaddrinfo  # The name of the node is in no name server.
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda host, *rest, **more: resolve("127.0.0.1" if host == "n1" else host, *rest, **more),
        )
        super().__init__(cluster, directory, body, cluster, as_user(cluster.user))

    def close(self) -> None:
        """End all jobs."""
        self.heal()
        self.cluster.forget_jobs()

    def heal(self) -> None:
        RealPlace.heal(self)
        self.undo()


class GridEnginePlace(OthersPlace):
    """A queue of a real Grid Engine."""

    file = "gridengine.yaml"
    down = "error: commlib error: got select error (Connection refused)\nunable to send message to qmaster using port"
    refusals: ClassVar = {
        ErrorClass.QUOTA: "Unable to run job: job rejected: Only 1 jobs are allowed per user (current job count: 1)",
        ErrorClass.DENIED: "Unable to run job: user nobody has no access to queue grid: denied: host is no submit host",
    }

    def __init__(self, cell: GridEngine, directory: Path) -> None:
        body = sample(self.file)
        body["user"] = cell.user
        own = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT")
        body["environment"] = {name: cell.daemons.environment[name] for name in own}
        argv = body["create"]["argv"]
        at = argv.index("exclusive=true")  # which needs a complex that Debian's configuration lacks
        del argv[at - 1 : at + 1]
        argv[-1:] = [pilot(cell.daemons.directory)]
        self._cell = cell
        super().__init__(directory, body, cell, as_user(cell.user))

    def close(self) -> None:
        """End all jobs."""
        self.release()
        self._cell.forget_jobs()

    def jobs(self) -> dict[str, str]:
        root = ElementTree.fromstring(self.scheduler.run("qstat", "-xml"))
        return {_text(job, "JB_job_number"): _text(job, "JB_name") for job in root.iter("job_list")}

    def environment(self, name: str) -> Mapping[str, str]:
        return environment(self._cell.daemons.directory, self.id(name))

    def submit(self, name: str, mark: str = "") -> None:
        self.scheduler.run("qsub", "-terse", "-b", "y", "-wd", "/tmp", "-N", name, "-o", "/dev/null", *PILOT)

    def end_job(self, number: str) -> None:
        self.scheduler.run("qdel", number)

    def end(self, name: str, how: How) -> bool:
        if how is How.KILL:
            self.end_job(self.id(name))
        return how is How.KILL

    def hold(self) -> bool:
        self.scheduler.run("qmod", "-d", "grid")
        return True

    def release(self) -> None:
        self.scheduler.run("qmod", "-e", "grid")

    def fail_creates(self, error: ErrorClass) -> None:
        if error is ErrorClass.INVALID:
            self.settings.variables["queue"] = "nosuch"  # type: ignore[index]
        else:
            super().fail_creates(error)


class SpoolerPlace(OthersPlace):
    """A task-spooler with a socket of its own."""

    file = "task-spooler.yaml"
    down = "The server didn't come up."

    def __init__(self, directory: Path) -> None:
        body = sample(self.file)
        self._own = {"TS_SOCKET": f"{directory}/s", "TMPDIR": str(directory), "TS_SLOTS": "64", "TS_MAXFINISHED": "20"}
        body["environment"] = self._own
        body["create"]["argv"][-1:] = PILOT
        self._holds = False
        super().__init__(directory, body, self)

    def run(self, *argv: str) -> str:
        """Run tsp."""
        environment = {**os.environ, **self._own}
        return subprocess.run(argv, capture_output=True, text=True, check=True, env=environment).stdout.strip()

    def close(self) -> None:
        """End all jobs and the server."""
        for number, state, _ in self._rows():
            if state == "queued":
                self.run("tsp", "-r", number)
        for number, state, _ in self._rows():
            if state == "running":
                self.run("tsp", "-k", number)
        self.run("tsp", "-K")

    def jobs(self) -> dict[str, str]:
        return {number: name for number, state, name in self._rows() if state != "finished" and name != "blocker"}

    def environment(self, name: str) -> Mapping[str, str]:
        block = Path(f"/proc/{self.run('tsp', '-p', self.id(name))}/environ").read_text()
        return dict(one.split("=", 1) for one in block.split("\0") if "=" in one)

    def submit(self, name: str, mark: str = "") -> None:
        self.run("tsp", "-L", name, *PILOT)

    def end_job(self, number: str) -> None:
        self.run("tsp", "-k", number)

    def end(self, name: str, how: How) -> bool:
        if how is How.EXIT:
            os.kill(int(self.run("tsp", "-p", self.id(name))), signal.SIGTERM)
        elif how is How.KILL:
            self.end_job(self.id(name))
        return how in (How.EXIT, How.KILL)

    def hold(self) -> bool:
        self.run("tsp", "-S", "1")
        self.submit("blocker")
        return True

    def release(self) -> None:
        self.run("tsp", "-S", "64")

    def fail_creates(self, error: ErrorClass) -> None:
        pytest.skip("the place has no refusals")

    def _rows(self) -> list[tuple[str, str, str]]:
        lines = [line.split() for line in self.run("tsp").splitlines()[1:]]
        return [(line[0], line[1], line[-2].partition("[")[2].partition("]")[0]) for line in lines]


def pilot(directory: Path) -> str:
    """Write the script of the jobs into a directory that the scheduler's user may read and write."""
    file = directory / "pilot.sh"
    file.write_text(SCRIPT.format(directory))
    file.chmod(0o755)
    return str(file)


def as_user(user: str) -> list[str]:
    """Return the words that stand before a command so that another user runs it. Return an empty list if the tests do
    not run as root."""
    if os.geteuid() != 0:
        return []
    return [shutil.which("setpriv") or "setpriv", f"--reuid={user}", "--regid=nogroup", "--clear-groups"]


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(name) or ""
