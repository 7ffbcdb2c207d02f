"""A poll against the cancel of a request that HF seemed to have forgotten: one of the two always notices the other.

The poll is a process that is stopped where it matters; the loop's two halves (it says that it cancels; it looks again
and cancels) are cycles in virtual time, on the same files.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.clouds.virtual_site import PACE, VirtualSite, succeeded
from tests.support.hostfactory.provider import HostFactory
from tests.support.strace import NEEDS_STRACE, STRACE
from tests.support.waiting import PATIENCE, until

LISTS = 200.0
"""World seconds between two lists of HF: it does not count as away."""


pytestmark = NEEDS_STRACE


class Race:
    """A complete request that HF never polled while it made other calls; with its next call the cancel is due."""

    def __init__(self, site: VirtualSite, hf: HostFactory, *, polled_before: bool) -> None:
        self.site, self.hf = site, hf
        self.request = site.request(2)
        if polled_before:
            site.hf.seen.touch(self.request)
        began = site.now()
        site.run(PACE, polls=False)
        due = site.limits.cancel_after + PACE
        while site.now() + LISTS <= began + due:
            self._list()
            site.run(LISTS, polls=False)
        site.run(began + due - site.now(), polls=False)
        assert len(succeeded(site.answer(self.request))) == 2
        self.machines = site.phases().keys()

    def _list(self) -> None:
        """HF calls a script for something else."""
        self.site.hf.inventory.write(["other"])
        moment = int(self.site.now() * 1e9)
        os.utime(self.site.hf.inventory.path, ns=(moment, moment))

    def halves(self, count: int) -> None:
        """The loop goes on by so many cycles, while HF calls for other things."""
        for _ in range(count):
            self._list()
            self.site.run(PACE, polls=False)

    def lives(self) -> bool:
        """True when the machines run some time later."""
        self.site.run(10 * PACE, polls=False)
        phases = self.site.phases()
        return [phases.get(name) for name in self.machines] == ["running", "running"]

    def poll(self) -> dict[str, Any]:
        """getRequestStatus, undisturbed."""
        return self.hf.status(self.request)[0]

    @contextmanager
    def stopped(self, path: Path, nth: int) -> Iterator[list[dict[str, Any]]]:
        """getRequestStatus, stopped when it has opened a file for the nth time; ends with the block, and is listed."""
        assert STRACE
        trace, python = self.hf.input.with_name("trace"), self.hf.input.with_name("python")
        stop = ["-P", str(path), "-e", "trace=openat", "-e", f"inject=openat:signal=SIGSTOP:when={nth}"]
        python.write_text(f'#!/bin/sh\nexec {shlex.join([STRACE, "-o", str(trace), *stop, sys.executable])} "$@"\n')
        python.chmod(0o755)
        command = self.hf.command("getRequestStatus", {"requests": [{"requestId": self.request}]})
        environment = self.hf.environment | {"HF_PYTHON": str(python)}
        said: list[dict[str, Any]] = []
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            try:
                until(lambda: trace.exists() and "stopped by SIGSTOP" in trace.read_text(), 30, what="it stops")
                yield said
            finally:
                for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGCONT)
            out, _ = process.communicate(timeout=30 * PATIENCE)
        assert process.returncode == 0, out
        said += json.loads(out)["requests"]


@contextmanager
def race(directory: Path, *, polled_before: bool = False) -> Iterator[Race]:
    hf = HostFactory(directory)
    with VirtualSite(hf.work) as site:
        yield Race(site, hf, polled_before=polled_before)


@pytest.mark.parametrize(
    ("before", "status", "message", "lives"),
    [
        pytest.param(0, "complete", "", True, id="before both halves", marks=pytest.mark.slow),
        pytest.param(1, "running", "cancelling", True, id="between the two"),
        pytest.param(2, "complete_with_error", "Cancelled", False, id="after both", marks=pytest.mark.slow),
    ],
)
def test_a_poll_at_the_time_of_the_cancel(tmp_path: Path, before: int, status: str, message: str, lives: bool) -> None:
    with race(tmp_path) as one:
        one.halves(before)
        told = one.poll()
        assert (told["status"], message in told["message"]) == (status, True), told
        one.halves(2)
        assert one.lives() is lives
        assert bool(succeeded(one.poll())) is lives


@pytest.mark.parametrize(
    ("polled_before", "nth"),
    [
        pytest.param(False, 1, id="first poll, before its mark"),
        pytest.param(False, 2, id="first poll, after its mark"),
        pytest.param(True, 1, id="later poll, after its mark", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("before", "during"),
    [pytest.param(0, 1, marks=pytest.mark.slow), (0, 2), pytest.param(1, 1, marks=pytest.mark.slow)],
)
def test_hf_is_never_told_of_machines_that_a_cancel_under_way_deletes(
    tmp_path: Path, polled_before: bool, nth: int, before: int, during: int
) -> None:
    """Stopped at its ``nth`` look at the answers, after ``before`` halves and until ``during`` more have passed."""
    marked = polled_before or nth == 2
    with race(tmp_path, polled_before=polled_before) as one:
        one.halves(before)
        with one.stopped(Path(one.hf.state.status.path), nth) as said:
            one.halves(during)
        one.halves(2)
        [told] = said
        lives = one.lives()
        assert lives is (marked or before + during < 2), "only before its mark a poll is not noticed"
        assert (told["status"] == "complete_with_error" and not succeeded(told)) is not lives, told
