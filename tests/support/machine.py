"""A host on which the scripts of ``deploy/machine`` run. EGO's programs and the look-up of names are stand-ins."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import IO, Any

import pytest

from tests.support.ego import put_programs
from tests.support.metadata_server import MetadataServer
from tests.support.waiting import until

MACHINE = Path(__file__).parents[2] / "deploy" / "machine"
NAME = "hf-k3v9x2m7qa-000004"

GETENT = """#!/bin/sh
[ ! -e "$EGO/dns-hangs" ] || { echo $$ >"$EGO/asks"; exec sleep 1000; }
grep -qsw -- "$2" "$HF_HOSTS_FILE" || exit 2
"""
"""Stand-in for getent that reads the hosts file of the test, and does not use DNS."""

POWEROFF = """#!/bin/sh
echo "poweroff $*" >>"$EGO/calls"
"""
"""Stand-in for poweroff, so that the test does not switch off its own host."""

CONTAINER = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def container(*, names: dict[str, str], hosts: Path, writable: bool) -> list[str]:
    """Return words to put before a command. The command is then PID 1 of a container.

    In the container, the DNS server has these names, and the hosts file has this content.
    """
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"needs namespaces for users who are not root ({shlex.join(CONTAINER)})")
    resolver = hosts.with_name("resolv.conf")
    resolver.write_text("nameserver 127.0.0.1\n")
    lines = [f"mount --bind {hosts} /etc/hosts", f"mount --bind {resolver} /etc/resolv.conf"]
    lines += [] if writable else ["mount -o remount,bind,ro /etc/hosts"]
    known = ",".join(f"{name}={address}" for name, address in names.items())
    server = [sys.executable, "-I", str(Path(__file__).with_name("name_server.py")), known]
    return [*CONTAINER, "sh", "-ec", "\n".join([*lines, 'exec "$@"']), "container", *server]


def settings(**environment: str) -> dict[str, str]:
    """Return the settings of the machine's scripts.

    A shell computes them from the scripts' library and an environment.
    """
    read = '. "$0"; for name in ${!HF_@}; do printf "%s=%s\\n" "$name" "${!name}"; done'
    given = {"PATH": os.environ["PATH"], **environment}
    words = ["bash", "-c", read, str(MACHINE / "lib.sh")]
    done = subprocess.run(words, env=given, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def environment_of(spec: dict[str, Any]) -> dict[str, str]:
    """Return the environment that a pod's spec gives its one container."""
    (container,) = spec["containers"]
    return {entry["name"]: entry["value"] for entry in container.get("env", ())}


def of_an_instance() -> dict[str, str]:
    """Return the attributes that an instance's metadata server has."""
    attributes = {"hf-machine-lib": (MACHINE / "lib.sh").read_text(), "hf-ego-master": "master2"}
    values = {f"instance/attributes/{name}": value for name, value in attributes.items()}
    return values | {
        "instance/name": NAME,
        "instance/network-interfaces/0/ip": "10.9.8.7",
        "instance/preempted": "FALSE",
    }


class Machine:
    """A host with EGO's programs, and a record of the calls of these programs."""

    def __init__(self, directory: Path) -> None:
        self.ego, self.ready, self.hosts = directory / "ego", directory / "run" / "ready", directory / "hosts"
        self.library = directory / "run" / "lib.sh"
        self.log = directory / "log"
        programs = directory / "bin"
        self.ego.mkdir()
        put_programs(programs)
        self.getent = programs / "getent"
        for name, text in (("getent", GETENT), ("poweroff", POWEROFF)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.hosts.write_text("127.0.0.1 localhost\n")
        (self.ego / "calls").touch()
        (self.ego / "name").write_text(NAME)
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "EGO": str(self.ego),
            "HF_EGO_MASTER": "master1",
            "HF_EGO_ADMIN": "",
            "HF_READY_FILE": str(self.ready),
            "HF_HOSTS_FILE": str(self.hosts),
            "HF_LIBRARY": str(self.library),
            "HF_SYSTEMD": "/nowhere",
            "HF_MACHINE_ADDRESS": "10.1.2.3",
            "HF_JOIN_SECONDS": "20",
            "HF_LEAVE_SECONDS": "3",
            "HF_POLL_SECONDS": "0.05",
            "HF_WATCH_SECONDS": "0.05",
            "GCE_METADATA_HOST": "127.0.0.1:1",
            "HTTP_PROXY": "http://127.0.0.1:2",
            "http_proxy": "http://127.0.0.1:2",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def behave(self, *ways: str) -> None:
        """Change the behaviour of EGO's programs from now on. Each of ``ways`` names a behaviour."""
        for way in ways:
            (self.ego / way).touch()

    def tell(self, name: str, text: str) -> None:
        """Replace the content of a file that EGO's stand-ins read. A reader sees the old or the new content, never a
        part."""
        aside = self.ego / f"{name}.new"
        aside.write_text(text)
        aside.rename(self.ego / name)

    @property
    def calls(self) -> list[str]:
        return (self.ego / "calls").read_text().splitlines()

    def start(self, script: str, *within: str, **environment: str) -> subprocess.Popen[bytes]:
        """Run a script in a session of its own, as a container or a service does."""
        command = [*within, *([] if script == "entry.sh" else ["bash"]), str(MACHINE / script)]
        with self.log.open("ab") as log:
            return self._begin(command, environment, stderr=log)

    def start_line(self, line: str) -> subprocess.Popen[bytes]:
        """Run a line of shell."""
        with self.log.open("ab") as log:
            return self._begin(["bash", "-uc", line], {}, stderr=log)

    def start_heard(self, script: str, **environment: str) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        """Start a script as Google's script runner does. Return the process and the reading end of its log's pipe."""
        process = self._begin(["bash", str(MACHINE / script)], environment, stdout=PIPE, stderr=STDOUT)
        assert process.stdout is not None
        return process, process.stdout

    def _begin(self, command: list[str], environment: dict[str, str], **outputs: Any) -> subprocess.Popen[bytes]:
        given = {**self.environment, **environment}
        process = subprocess.Popen(command, env=given, start_new_session=True, **outputs)
        self._started.append(process)
        return process

    def is_ready_as(self, spec: dict[str, Any]) -> bool:
        """Return True if a pod's probe succeeds after the entry point has joined.

        Both use the environment of the pod's spec. Their ready file is in a directory of the test.
        """
        (container,) = spec["containers"]
        (*words, probed) = container["readinessProbe"]["exec"]["command"]
        made = settings(**environment_of(spec))["HF_READY_FILE"]
        root = self.ready.parent
        del self.environment["HF_EGO_MASTER"]
        given = environment_of(spec) | {"HF_READY_FILE": f"{root}{made}", "HOSTNAME": NAME}
        with MetadataServer({"instance/name": "gke-node-1"}) as server:
            self.start("entry.sh", GCE_METADATA_HOST=server.host, **given)
            until((root / made.lstrip("/")).exists, 30, what="it is ready")
        return subprocess.run([*words, f"{root}{probed}"], check=False).returncode == 0

    def inside(self, container: subprocess.Popen[bytes]) -> int:
        """Return the process id that the container's PID 1 has on this host."""
        children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
        (first,) = until(lambda: children.read_text().split(), 30, what="the container has begun")
        return int(first)

    def end(self) -> None:
        (self.ego / "keeps-output").unlink(missing_ok=True)
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def ready(machine: Machine) -> None:
    """Wait until the machine has joined."""
    until(machine.ready.exists, 30, what="the machine is ready")


def log_lines(machine: Machine) -> list[str]:
    """Return the log's lines, without their times."""
    return [line.partition(" hf-machine: ")[2] for line in machine.log.read_text().splitlines()]
