"""SIGTERM ends a loop in order, whatever the loop is doing at that moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.stage import SECONDS, Case, Grid, stage
from tests.support.waiting import until

ROUNDS = int(os.environ.get("SIGTERM_ROUNDS", "12"))
SEED = int(os.environ.get("SIGTERM_SEED", "1"))
LINES = 20
"""The number of lines of a loop's log after one of which SIGTERM comes. They include the start and the first cycles
with work."""
BEGIN = """
import sys
from provisioner import __main__
sys.setswitchinterval(1e-5)
sys.argv = ["provisioner", "--log-level", "DEBUG", "run", "--listen", "127.0.0.1:0"]
__main__.main()
"""
"""A program that runs a loop whose threads alternate much more often than usual."""


class Loop:
    """A loop, and the lines that it has logged so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(process.stderr or ()), daemon=True)
        self._reader.start()

    def end(self) -> tuple[int, str]:
        """Send SIGTERM. Return the exit code and all logged lines."""
        self.process.send_signal(signal.SIGTERM)
        until(lambda: self.process.poll() is not None, SECONDS, what="SIGTERM ends the loop")
        self._reader.join()
        return self.process.returncode, "".join(self.lines)


@contextmanager
def running(environment: dict[str, str]) -> Iterator[Loop]:
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN], env=environment, stderr=subprocess.PIPE, bufsize=1, text=True
    ) as process:
        try:
            yield Loop(process)
        finally:
            process.kill()


@pytest.mark.slow
def test_sigterm_ends_a_loop_under_load_in_order_at_any_moment(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    ends: dict[str, int] = {}
    with stage() as cloud, Grid(tmp_path, cloud, Case(54, "", lambda _: None, loop=False)) as hf:
        endpoints = {"KUBECONFIG": str(cloud.kubeconfig), "PROVISIONER_COMPUTE_ENDPOINT": cloud.compute}
        environment = {**os.environ, **hf.environment, **endpoints}
        for number in range(ROUNDS):
            hf.request("T2", 10)
            with running(environment) as loop:
                moment = chance.randrange(2, LINES)
                until(lambda loop=loop, moment=moment: len(loop.lines) >= moment, 4 * SECONDS, what=f"line {moment}")  # type: ignore[misc]
                last = loop.lines[-1]
                code, errors = loop.end()
            ends[last[:80]] = ends.get(last[:80], 0) + 1
            assert code == 0, f"round {number}, SIGTERM_SEED={SEED}, after {last}:\n{errors}"
            for words in ("Traceback", "cannot schedule", "Exception ignored", "Ended with work under way"):
                assert words not in errors, f"round {number}, SIGTERM_SEED={SEED}, after {last}:\n{errors}"
