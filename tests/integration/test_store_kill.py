"""A real process, killed by the kernel at each system call of its write: the state is then the old or the new one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioner.model import Memory
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError, StateMissing

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace: not installed")

REPOSITORY = Path(__file__).parents[2]

CALLS = ("flock", "pwrite64", "fchmod", "write", "fsync", "rename")
"""What changes anything in the state directory; a kill between two of them is a kill at the second."""

WRITER = """
import json, sys
from provisioner.state.directory import StateDir
state = StateDir(sys.argv[1])
if sys.argv[2] == "memory":
    from provisioner.model import Memory
    state.memory.write(Memory("demo", epoch=2))
else:
    with state.intent.additions(create_for="demo") as intent:
        request = intent.add_request("T", 1, created_wall=1.0)
    print(json.dumps(request), flush=True)
"""

TRUNCATING = """
import os
from provisioner.state import database
def in_place(path, content, **_):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o660)
    os.write(descriptor, content)
    os.fsync(descriptor)
    os.close(descriptor)
database.replace = in_place
"""

ANSWERING_EARLY = """
import os
from provisioner.state import database
real = database.replace
def after_the_answer(path, content, **options):
    os.write(1, content[:0] + b'"early"\\n')
    real(path, content, **options)
database.replace = after_the_answer
"""


def traced(directory: Path, write: str, code: str, *options: str) -> tuple[list[str], str]:
    """Run the writer under strace; the calls it made, in order, and what it printed."""
    log = directory / "strace.log"
    command = ["strace", "-f", "-o", str(log), "-e", f"trace={','.join(CALLS)}", *options, sys.executable, "-c", code]
    run = subprocess.run(
        [*command, str(directory / "state"), write],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    calls = re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE)
    if not options:
        assert run.returncode == 0, run.stderr
    return calls, run.stdout


def seen_by_readers(directory: Path) -> tuple[Any, Any]:
    """Intent's requests and memory's epoch; None for what is not there."""
    state = StateDir(directory / "state")
    try:
        requests = set(state.intent.read().requests)
    except StateMissing:
        requests = None
    try:
        epoch = state.memory.read().epoch
    except StateMissing:
        epoch = None
    return requests, epoch


def prepare(directory: Path, *, filled: bool) -> None:
    shutil.rmtree(directory / "state", ignore_errors=True)
    (directory / "state").mkdir()
    if filled:
        state = StateDir(directory / "state")
        with state.intent.additions(create_for="demo") as intent:
            intent.add_request("T", 1, created_wall=1.0)
        state.memory.write(Memory("demo", epoch=1))


def kill_everywhere(directory: Path, write: str, *, filled: bool, code: str = WRITER) -> int:
    """Kill one writer at each of its calls; returns how many were killed. Raises when a rule did not hold."""
    prepare(directory, filled=filled)
    calls, _ = traced(directory, write, code)
    points = [(name, number) for name in CALLS for number in range(1, calls.count(name) + 1)]
    for name, number in points:
        prepare(directory, filled=filled)
        requests, epoch = seen_by_readers(directory)
        _, printed = traced(directory, write, code, "-e", f"inject={name}:signal=SIGKILL:when={number}")
        check(directory, requests, epoch, printed)
    return len(points)


def check(directory: Path, requests: set[str] | None, epoch: int | None, printed: str) -> None:
    """Old or new; what was printed is recorded; what was killed left neither lock nor harm."""
    now_requests, now_epoch = seen_by_readers(directory)
    assert now_epoch in (epoch, 2)
    fresh = (now_requests or set()) - (requests or set())
    assert (requests or set()) <= (now_requests or set())
    assert len(fresh) <= 1
    for line in printed.splitlines():
        assert {json.loads(line)} == fresh, "an id was printed that is not recorded"
    state = StateDir(directory / "state")
    with state.intent.additions(wait=0, create_for="demo") as intent:
        intent.add_request("T", 1, created_wall=1.0)
    state.memory.write(Memory("demo", epoch=3))
    assert not state.intent.is_older()
    assert not state.memory.is_older()


@pytest.mark.parametrize(
    ("write", "filled"),
    [
        pytest.param("intent", False, id="the first request", marks=pytest.mark.slow),
        pytest.param("intent", True, id="another request"),
        pytest.param("memory", True, id="memory", marks=pytest.mark.slow),
    ],
)
def test_a_writer_killed_at_any_call_leaves_the_old_or_the_new_state(tmp_path: Path, write: str, filled: bool) -> None:
    assert kill_everywhere(tmp_path, write, filled=filled) >= 8


@pytest.mark.parametrize("patch", [TRUNCATING, ANSWERING_EARLY], ids=["truncates in place", "answers too early"])
def test_a_broken_store_is_found(tmp_path: Path, patch: str) -> None:
    prepare(tmp_path, filled=True)
    traced(tmp_path, "intent", patch + WRITER)  # it does its work where nobody kills it
    with pytest.raises((AssertionError, StateError)):
        kill_everywhere(tmp_path, "intent", filled=True, code=patch + WRITER)
