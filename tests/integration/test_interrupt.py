"""Ctrl-C at any moment of any command. The command ends with exit code 130, without a traceback, and leaves no process
and no temporary directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioner.state.directory import StateDir
from provisioner.state.locks import DataLock
from tests.support.hostfactory.provider import SCRIPTS, HostFactory, requesting
from tests.support.waiting import PATIENCE, until

EXAMPLE = Path(__file__).parents[2] / "config" / "demoinst"
WAIT = 60.0
"""Seconds that any step may take. The tests do not judge speed by this limit."""

BEGIN = """
import os
from provisioner import __main__, process_end
ignore_signals = process_end.ignore_signals
def last():
    ignore_signals()
    os.write(2, b"follows no more\\n")
process_end.ignore_signals = last
process_end.follow()
os.write(2, b"follows\\n")
__main__.main()
"""
"""A program like ``python -m provisioner``. It writes a line once it follows Ctrl-C, because Python's own start is not
tested. It writes another line when its work is done and it ignores Ctrl-C. It does not use ``print``, because Ctrl-C
could interrupt ``print``."""


@dataclass
class Site:
    directory: Path

    @property
    def temporary(self) -> Path:
        return self.directory / "tmp"

    @property
    def environment(self) -> dict[str, str]:
        places = {name: str(self.directory / place) for name, place in PLACES.items()}
        return {**os.environ, **places, "HF_PROVIDER_NAME": "demoinst", "TMPDIR": str(self.temporary)}

    def begin(self, *command: str) -> subprocess.Popen[str]:
        """Start a command. Return its process once the command can be interrupted by Ctrl-C."""
        process = subprocess.Popen(
            [sys.executable, "-c", BEGIN, *command],
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stderr is not None
        assert process.stderr.readline() == "follows\n"
        return process

    def left(self) -> list[str]:
        """Return the command lines of processes that the test has started and that still run. The environment marks
        these processes."""
        mark = f"TMPDIR={self.temporary}".encode()
        commands = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (place / "environ").read_bytes().split(b"\0"):
                    commands.append((place / "cmdline").read_text())
            except OSError:
                continue
        return commands


PLACES = {"HF_PROVIDER_CONFDIR": "conf", "HF_PROVIDER_WORKDIR": "work", "HF_PROVIDER_LOGDIR": "log"}

COMMANDS = {
    "run": ["run", "--listen", "127.0.0.1:0"],
    "run --dry-run": ["run", "--dry-run"],
    "check --live": ["check", "--live"],
    "plan": ["plan"],
    "status": ["status"],
    "recover": ["recover"],
    "events": ["events"],
    "replay": ["replay", "trace.jsonl"],
    "simulator": ["simulator"],
    "simulate": ["simulate", "soak", "step", "--seeds", "50", "--jobs", "2"],
    "demo": ["demo"],
    "demo --keep": ["demo", "--keep"],
}
MOMENTS = (0.0, 0.4, 2.5)
"""Seconds from the time at which a command can be interrupted until Ctrl-C. The command then imports, connects, waits
or cleans up."""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    shutil.copytree(EXAMPLE, tmp_path / "conf")
    for name in ("work", "log", "tmp"):
        (tmp_path / name).mkdir()
    text = (tmp_path / "conf" / "provisioner.yaml").read_text()
    kubeconfig = tmp_path / "conf" / "kubeconfig"
    plugin = tmp_path / "plugin"
    plugin.write_text("#!/bin/sh\nsleep 300\n")
    plugin.chmod(0o755)
    kubeconfig.write_text(KUBECONFIG.replace("PLUGIN", str(plugin)))
    text = text.replace("kind: gke\n", f"kind: gke\n    kubeconfig: {kubeconfig}\n")
    text += "\nevents: {project: demo-project, subscription: s}\n" if "events:" not in text else ""
    (tmp_path / "conf" / "provisioner.yaml").write_text(text)
    call = '{"time": %d, "command": "getReturnRequests", "input": {}, "output": ""}\n'
    (tmp_path / "trace.jsonl").write_text("".join(call % at for at in range(0, 4000, 2)))
    return Site(tmp_path)


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users:
- name: u
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: PLUGIN, interactiveMode: Never}
"""


def interrupted(site: Site, process: subprocess.Popen[str], *, times: int = 1) -> tuple[int, str]:
    """Send Ctrl-C, and check the rules that hold for every command. Return exit code and error output."""
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=WAIT * PATIENCE)
    until(lambda: not site.left(), WAIT, what=f"no process is left of {site.left()}")
    for text in (out, errors):
        assert "Traceback" not in text
        assert "KeyboardInterrupt" not in text
        assert "Exception ignored" not in text
    assert not list(site.temporary.iterdir())
    return process.returncode, errors


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_ctrl_c_ends_a_command_at_any_moment(site: Site, command: list[str], moment: float) -> None:
    process = site.begin(*command)
    time.sleep(moment)
    code, errors = interrupted(site, process)
    # In its last moment, when all is done, Python follows no signal itself: a shell says 130 of -2, too.
    assert code in (130, -signal.SIGINT) or ("follows no more\n" in errors and code in (0, 1, 2)), errors


def running(site: Site) -> bool:
    return any("\0run\0" in command for command in site.left())


READY: dict[str, Callable[[Site], object]] = {
    "run": lambda site: (site.directory / "work" / "heartbeat").exists(),
    "simulator": lambda site: list(site.temporary.glob("simulator-*/kubeconfig")),
    "demo": running,
    "demo --keep": running,
    "simulate": lambda site: sum("spawn_main" in command for command in site.left()) == 2,
    "check --live": lambda site: any("/plugin" in command for command in site.left()),
}


@pytest.mark.parametrize(
    "command", ["simulate", *(pytest.param(name, marks=pytest.mark.slow) for name in READY if name != "simulate")]
)
def test_ctrl_c_again_and_again_ends_a_command_that_has_others_under_way(site: Site, command: str) -> None:
    process = site.begin(*COMMANDS[command])
    until(lambda: READY[command](site), WAIT, what=f"{command} is under way")
    assert interrupted(site, process, times=1 if command == "run" else 20)[0] == 130
    if command == "run":
        assert StateDir(site.directory / "work").loop_lock.holder()["ended"], "a successor need not wait"


def test_no_process_outlives_a_simulation_that_was_killed(site: Site) -> None:
    process = site.begin(*COMMANDS["simulate"])
    until(lambda: READY["simulate"](site), WAIT, what="simulate is under way")
    process.kill()
    process.communicate(timeout=WAIT * PATIENCE)
    until(lambda: not site.left(), 20.0, what=f"no process is left of {site.left()}")
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_sigterm_ends_a_playground_that_is_kept_cleanly(site: Site) -> None:
    process = site.begin("demo", "--keep")
    assert process.stdout is not None
    while "Ctrl-C ends cloud and loop" not in process.stdout.readline():
        pass
    process.terminate()
    process.communicate(timeout=WAIT * PATIENCE)
    assert (process.returncode, site.left(), list(site.temporary.iterdir())) == (0, [], [])


# --- HostFactory's scripts, called by hand ----------------------------------------------------------------------------


def called(hf: HostFactory, *command: str) -> subprocess.Popen[str]:
    """Start a script in a new session, as a shell on a terminal would."""
    return subprocess.Popen(
        [str(SCRIPTS / command[0]), *command[1:]],
        env=hf.environment | {"PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_ctrl_c_ends_a_script_that_waits_for_a_lock_and_nothing_is_recorded(tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    hf.state.intent.create(hf.instance)
    with DataLock(hf.state.intent.lock_path):
        process = called(hf, *hf.command("requestMachines", requesting("T1", 1)))
        until(lambda: list(hf.work.glob("intent.batch-*")), WAIT, what="it waits for the lock")
        os.killpg(process.pid, signal.SIGINT)
        assert (process.communicate(timeout=WAIT * PATIENCE), process.returncode) == (("", ""), 130)
    assert hf.state.intent.read().requests == {}


def test_ctrl_c_ends_the_check_of_an_installation(tmp_path: Path) -> None:
    hf = HostFactory(tmp_path)
    process = called(hf, "python", "check_install")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("fine: ")
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=WAIT * PATIENCE)[1]
    assert (errors, process.returncode) == ("", 130)
    assert not list(hf.work.iterdir())


STARTING = """
import os, signal, subprocess, threading
from provisioner import process_end
from provisioner.backends.processes import run_program

ending, ignore_signals, start = threading.Event(), process_end.ignore_signals, subprocess.Popen

def slow_start(*arguments, **options):
    process = start(*arguments, **options)
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    ending.wait()  # this process is ending, and run_program does not know the program's process yet
    return process

process_end.ignore_signals = lambda: (ignore_signals(), ending.set())
subprocess.Popen = slow_start
process_end.follow()
threading.Thread(target=run_program, args=(["sleep", "300"], {}), kwargs={"seconds": 300, "most_bytes": 1}).start()
threading.Event().wait()
"""


def test_ctrl_c_ends_a_program_that_a_thread_is_starting() -> None:
    done = subprocess.run([sys.executable, "-c", STARTING], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 130
    until(lambda: not Path(f"/proc/{int(done.stdout)}").exists(), 10.0, what="the program has ended")
