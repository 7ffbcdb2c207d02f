"""The cost of an attack to the attacked process: its descriptors, its memory, and the time until it answers probes."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

from tests.hostile.figures import PROBE_SECONDS
from tests.support.processes import cpu_seconds, mebibytes
from tests.support.waiting import PATIENCE

EVERY = 0.25
"""Seconds between two probes."""


@dataclass
class Damage:
    """The cost of an attack so far."""

    descriptors: int = 0
    """The largest number of open descriptors."""
    threads: int = 0
    """The largest number of threads."""
    mebibytes: float = 0.0
    """The largest growth of memory since the attack began."""
    cpu: float = 0.0
    """Processor seconds since the attack began."""
    probes: list[float] = field(default_factory=list)
    """Seconds of each probe that was answered."""
    failed: list[str] = field(default_factory=list)
    """The reasons why probes were not answered."""

    def __str__(self) -> str:
        slowest = max(self.probes, default=0)
        return (
            f"{self.descriptors} descriptors, {self.threads} threads, +{self.mebibytes:.0f} MiB, "
            f"{self.cpu:.0f} s of CPU, {len(self.probes)} probes answered, the slowest in {slowest:.2f} s, "
            f"{len(self.failed)} not {sorted(set(self.failed)) or ''}"
        )


def probe(port: int, tls: bool, path: str = "/readyz") -> int:
    """Return the status of the response to a probe. Raises OSError."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = (
        HTTPSConnection("127.0.0.1", port, timeout=PROBE_SECONDS * PATIENCE, context=context)
        if tls
        else HTTPConnection("127.0.0.1", port, timeout=PROBE_SECONDS * PATIENCE)
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@contextmanager
def attacked(name: str, connections: int, pid: int, port: int, *, tls: bool = False) -> Iterator[Damage]:
    """Attack a server from another process. Yield the cost to the server's process, which is updated during the
    attack."""
    damage, ended = Damage(), threading.Event()
    start_mebibytes, used = mebibytes(pid, "VmRSS"), cpu_seconds(pid)

    def measure() -> None:
        while not ended.wait(0.1):
            damage.descriptors = max(damage.descriptors, len(os.listdir(f"/proc/{pid}/fd")))
            damage.threads = max(damage.threads, len(os.listdir(f"/proc/{pid}/task")))
            damage.mebibytes = max(damage.mebibytes, mebibytes(pid, "VmRSS") - start_mebibytes)
            damage.cpu = cpu_seconds(pid) - used

    def ask() -> None:
        while not ended.wait(EVERY):
            asked = time.monotonic()
            try:
                status = probe(port, tls)
            except OSError as error:
                damage.failed.append(type(error).__name__)
            else:
                damage.failed += [] if status == 200 else [str(status)]
                damage.probes += [time.monotonic() - asked] if status == 200 else []

    script = Path(__file__).with_name("attacks.py")
    words = [sys.executable, script, name, str(connections), str(port), *(["tls"] if tls else [])]
    threads = [threading.Thread(target=work) for work in (measure, ask)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as attackers:
        try:
            assert attackers.stdout is not None
            assert attackers.stdout.readline() == b"under way\n"
            for thread in threads:
                thread.start()
            yield damage
        finally:
            ended.set()
            attackers.kill()
            for thread in threads:
                thread.join()
