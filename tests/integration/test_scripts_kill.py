"""A script that is killed at a write, fsync, rename or lock. It leaves the old or the new state."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest

from provisioner.state.locks import DataLock
from tests.support.hostfactory.provider import HostFactory
from tests.support.strace import NEEDS_STRACE, STRACE
from tests.support.waiting import PATIENCE

CALLS = ("write", "pwrite64", "fsync", "fdatasync", "rename", "renameat", "renameat2", "flock", "utimensat", "unlink")
LINE = re.compile(r"^(\w+)\((.*)", re.MULTILINE)
NAME, DOCUMENT = "requestMachines", {"template": {"templateId": "T1", "machineCount": 3}}


class Step(NamedTuple):
    """A system call of the script's Python. ``nth``: its number among the calls of the same name."""

    call: str
    nth: int
    arguments: str


def strace(hf: HostFactory, options: list[str], command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run the whole script with its Python under strace; programs that the shell starts before do not count."""
    assert STRACE
    python = hf.input.with_name("python")
    python.write_text(f'#!/bin/sh\nexec {shlex.join([STRACE, "-qq", *options, sys.executable])} "$@"\n')
    python.chmod(0o755)
    return subprocess.run(
        command,
        env=hf.environment | {"HF_PYTHON": str(python)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30 * PATIENCE,
        check=False,
    )


pytestmark = NEEDS_STRACE


def steps(hf: HostFactory, command: list[str], trace: Path) -> list[Step]:
    """Run the command once. Return its system calls on the state directory or stdout, in order."""
    done = strace(hf, ["-y", "-o", str(trace), "-e", f"trace={','.join(CALLS)}"], command)
    assert done.returncode == 0, done
    counts: Counter[str] = Counter()
    traced = []
    for call, arguments in LINE.findall(trace.read_text()):
        counts[call] += 1
        if str(hf.work) in arguments or arguments.startswith("1<"):
            traced.append(Step(call, counts[call], arguments))
    return traced


def recorded(hf: HostFactory) -> list[str]:
    """Return the ids in intent; an empty list if intent was not written yet."""
    if not hf.state.intent.exists():
        return []
    intent = hf.state.intent.read()
    return [*intent.requests, *intent.returns]


def killed_at(hf: HostFactory, step: Step, command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run the command, and kill it as it enters the step."""
    kill = f"inject={step.call}:signal=SIGKILL:when={step.nth}"
    return strace(hf, ["-o", "/dev/null", "-e", f"trace={step.call}", "-e", kill], command)


@contextmanager
def another_writing(hf: HostFactory) -> Iterator[None]:
    """Hold the lock until another process waits for it, or until the ``with`` block ends."""
    ended = threading.Event()
    lock = DataLock(hf.state.intent.lock_path)
    assert lock.acquire()

    def let_go() -> None:
        while not ended.wait(0.01) and not list(hf.work.glob("intent.batch-*[0-9a-f]")):
            pass
        lock.release()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(let_go)
        try:
            yield
        finally:
            ended.set()


@pytest.mark.parametrize("waits", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["first of all", "waiting"])
def test_killed_at_any_step_a_script_leaves_the_old_or_the_new_state(tmp_path: Path, waits: bool) -> None:
    def fresh(number: int) -> HostFactory:
        hf = HostFactory(tmp_path / str(number))
        if waits:
            hf.state.intent.create(hf.instance)
        return hf

    beside = another_writing if waits else nullcontext
    hf = fresh(0)
    with beside(hf):
        traced = steps(hf, hf.command(NAME, DOCUMENT), tmp_path / "trace")
    assert {step.call for step in traced} >= {"flock", "write", "fsync", "rename"}
    if waits:
        assert len([step for step in traced if step.call == "rename"]) == 2, (
            "that of the posted write, and that of the data"
        )
        traced = [step for step in traced if step.call != "flock"]  # asked for again and again: their number varies
    ends = []
    for number, step in enumerate(traced, 1):
        hf = fresh(number)
        with beside(hf):
            done = killed_at(hf, step, hf.command(NAME, DOCUMENT))
        assert done.returncode == -signal.SIGKILL, step
        ends.append(len(recorded(hf)))
        if done.stdout:
            assert recorded(hf) == [json.loads(done.stdout)["requestId"]], "an id was printed that is not recorded"
        after = hf.call(NAME, DOCUMENT)["requestId"]
        assert after in recorded(hf)
        assert len(recorded(hf)) == ends[-1] + 1, step
    assert ends == sorted(ends), "once recorded, always recorded"
    assert set(ends) == {0, 1}, "some steps come before the record, some after"
    assert ends[-1] == 1, "the id is printed last"
