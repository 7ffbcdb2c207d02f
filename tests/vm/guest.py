"""A guest: an emulated Debian with its own kernel and systemd. Tests drive it through QEMU's guest agent."""

from __future__ import annotations

import base64
import json
import shlex
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.waiting import PATIENCE, until

START_SECONDS = 240
"""Deadline of a start, which takes half a minute, and two minutes on a busy machine."""

SECONDS = 120
"""Deadline of a command that names none."""

CHANNEL = "org.qemu.guest_agent.0"


class GuestError(AssertionError):
    """A failure of the guest or of a command in it. The text is the command's output."""


class Ended(NamedTuple):
    """The result of a command in the guest."""

    code: int
    text: str
    """Output of the command, on both streams."""


class Guest:
    """A guest that forgets all its writes when it ends. A context manager.

    ``disk`` comes from tests.vm.build. ``drive`` is an ext4 image that the guest mounts at /opt. The processor is an
    old model, because on a newer one programs choose wide vector instructions, whose emulation costs a fifth more.
    """

    def __init__(self, disk: Path, drive: Path, directory: Path) -> None:
        self._console = directory / "console.log"
        self._socket = directory / "agent"
        self._command = [
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", "2", "-m", "2048"),
            *("-nodefaults", "-display", "none", "-no-reboot", "-serial", f"file:{self._console}"),
            *("-kernel", str(disk / "vmlinuz")),
            *("-append", "root=/dev/nvme0n1 rw console=ttyS0 quiet mitigations=off audit=0"),
            *("-drive", f"if=none,id=root,file={disk / 'root.ext4'},format=raw,snapshot=on,cache=unsafe"),
            *("-device", "nvme,drive=root,serial=root"),
            *("-drive", f"if=none,id=opt,file={drive},format=raw,snapshot=on,cache=unsafe"),
            *("-device", "virtio-blk-pci,drive=opt", "-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
            *("-chardev", f"socket,id=agent,path={self._socket},server=on,wait=off"),
            *("-device", f"virtserialport,chardev=agent,name={CHANNEL}"),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._agent = socket.socket(socket.AF_UNIX)
        self._unread = b""

    def __enter__(self) -> Self:
        """Start the guest; :meth:`serve` waits for its agent."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        return self

    def serve(self) -> None:
        """Wait until the guest has started, drop the drive's blocks from the guest's cache, and mount the drive."""
        until(self._socket.exists, START_SECONDS, what="QEMU started")
        self._agent.connect(str(self._socket))
        self._ask("guest-ping", START_SECONDS)
        self.run("blockdev --flushbufs /dev/vda && mount /dev/vda /opt")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._agent.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def call(self, script: str, *, user: str = "root", seconds: float = SECONDS) -> Ended:
        """Run a line of shell. Raises GuestError if it has not ended in time."""
        line = f"exec 2>&1; {script}"
        command = ["/bin/sh", "-c", line] if user == "root" else ["/sbin/runuser", "-u", user, "--", "sh", "-c", line]
        asked = {"path": command[0], "arg": command[1:], "capture-output": True}
        pid = self._ask("guest-exec", SECONDS, asked)["pid"]
        deadline, pause = time.monotonic() + seconds * PATIENCE, 0.05
        while not (ended := self._ask("guest-exec-status", SECONDS, {"pid": pid}))["exited"]:
            if time.monotonic() > deadline:
                raise GuestError(f"{script}\nhas not ended within {seconds} s; {self.console()}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)
        text = base64.b64decode(ended.get("out-data", "")).decode(errors="replace")
        return Ended(ended.get("exitcode", -ended.get("signal", 0)), text)

    def run(self, script: str, *, user: str = "root", seconds: float = SECONDS) -> str:
        """Run a line of shell, and return its output. Raises GuestError if the line fails or has not ended in time."""
        ended = self.call(script, user=user, seconds=seconds)
        if ended.code:
            raise GuestError(f"{script}\nended with {ended.code}:\n{ended.text}\n{self.console()}")
        return ended.text.strip()

    def write(self, path: str, text: str) -> None:
        """Write a file of the guest, readable for all."""
        self.run(f"printf %s {shlex.quote(text)} > {path} && chmod 644 {path}")

    def until(self, condition: Callable[[], object], seconds: float = SECONDS, *, what: str) -> None:
        """Wait for a condition, at a pace that leaves the guest time for its own work."""
        until(condition, seconds, every=1, what=what)

    def console(self) -> str:
        """Return the end of the guest's console."""
        text = self._console.read_text(errors="replace") if self._console.exists() else ""
        return "the guest's console:\n" + "\n".join(text.splitlines()[-40:])

    def _ask(self, command: str, seconds: float, arguments: dict[str, Any] | None = None) -> Any:
        """Send a command to the agent, and return its result.

        Raises GuestError if it does not answer in time, or refuses.
        """
        request = {"execute": command, **({"arguments": arguments} if arguments else {})}
        self._agent.settimeout(seconds * PATIENCE)
        try:
            self._agent.sendall(json.dumps(request).encode() + b"\n")
            while b"\n" not in self._unread:
                if not (read := self._agent.recv(1 << 16)):
                    raise GuestError(f"QEMU ended; {self.console()}")
                self._unread += read
        except TimeoutError as error:
            raise GuestError(f"no answer to {command} within {seconds} s; {self.console()}") from error
        line, _, self._unread = self._unread.partition(b"\n")
        response = json.loads(line)
        if "return" not in response:
            raise GuestError(f"{command}: {response}")
        return response["return"]
