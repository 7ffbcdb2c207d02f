"""Processes that wait for the lock of intent.json to record a request. One write serves all of them. Some of them are
killed, stopped, or run out of time."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError
from provisioner.state.locks import DataLock
from tests.support.hostfactory.provider import ROOT, HostFactory
from tests.support.stores import add_request
from tests.support.waiting import PATIENCE, until

FORK = multiprocessing.get_context("fork")
DOCUMENT = {"template": {"templateId": "T2", "machineCount": 1}}


@pytest.fixture
def hf(tmp_path: Path) -> HostFactory:
    hf = HostFactory(tmp_path)
    hf.state.intent.create(hf.instance)
    return hf


def waiting(hf: HostFactory) -> list[Path]:
    return [path for path in hf.work.glob("intent.batch-*") if not path.name.endswith(".new")]


def test_all_scripts_that_wait_are_served_by_one_write(hf: HostFactory) -> None:
    callers, before = 6, hf.state.intent.read().generation
    command = hf.command("requestMachines", DOCUMENT)
    with ThreadPoolExecutor(callers) as pool:
        with DataLock(hf.state.intent.lock_path):
            calls = [pool.submit(hf.run, command) for _ in range(callers)]
            until(lambda: len(waiting(hf)) == callers, 60, what="all of them wait")
        printed = {call.result().document["requestId"] for call in calls}
    intent = hf.state.intent.read()
    assert intent.requests.keys() == printed
    assert len(printed) == callers
    assert intent.generation == before + 1
    assert list(hf.work.glob("*batch*")) == []


def one_request(directory: str, start: Any, report: Any) -> None:
    """Wait until all processes may start together. Then record one request as a script does."""
    start.wait()
    try:
        request = add_request(StateDir(directory), "T", 1, created_wall=0.0, create_for="demo")
        report.put((request, ""))
    except StateError as error:
        report.put(("", str(error)))


def test_scripts_that_all_make_the_state_at_once_all_record_their_request(tmp_path: Path) -> None:
    start, report = FORK.Event(), FORK.Queue()
    crew = [FORK.Process(target=one_request, args=(str(tmp_path), start, report)) for _ in range(12)]
    for process in crew:
        process.start()
    start.set()
    answers = [report.get(timeout=60 * PATIENCE) for _ in crew]
    for process in crew:
        process.join()
    assert [problem for _, problem in answers if problem] == []
    intent = StateDir(tmp_path).intent.read()
    assert set(intent.requests) == {request for request, _ in answers}
    assert intent.generation <= 12


# --- everything at once -----------------------------------------------------------------------------------------------

WRITERS = 12
SECONDS = 12.0

WRITER = """
import json, random, sys, time
from provisioner.state.errors import LockTimeout, StateUnwritable
from provisioner.state.directory import StateDir
from provisioner.state.new_ids import new_id
state, chance, deadline = StateDir(sys.argv[1]), random.Random(int(sys.argv[2])), time.monotonic() + float(sys.argv[3])
while time.monotonic() < deadline:
    made = new_id()
    document = {"template": "T", "count": 1, "created_wall": 0.0}
    try:
        state.intent.add({"requests": {made: document}}, wait=chance.choice([0.0, 0.01, 0.05, 0.3]))
        print(json.dumps([made, True]), flush=True)
    except (LockTimeout, StateUnwritable):
        print(json.dumps([made, False]), flush=True)
"""


@pytest.mark.crowd
def test_accepted_requests_are_recorded_and_refused_ones_are_not(tmp_path: Path) -> None:
    """Run writers that wait for the lock only for a short time. Stop some of them for a while, and kill some at any
    moment."""
    chance, state = random.Random(4), StateDir(tmp_path)
    state.intent.create("demo")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    files: list[Path] = []

    def start() -> subprocess.Popen[bytes]:
        """Start a writer with its own output file. A killed writer may leave its last line incomplete."""
        files.append(tmp_path / f"{len(files)}.out")
        with files[-1].open("wb") as file:
            command = [sys.executable, "-c", WRITER, str(tmp_path), str(chance.random())[2:10], str(SECONDS)]
            return subprocess.Popen(command, env=environment, stdout=file)

    crew = [start() for _ in range(WRITERS)]
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        number = chance.randrange(WRITERS)
        if chance.random() < 0.2:
            crew[number].kill()
            crew[number].wait()
            crew[number] = start()
        else:
            crew[number].send_signal(signal.SIGSTOP)
            time.sleep(chance.choice([0.01, 0.1, 0.5]))
            crew[number].send_signal(signal.SIGCONT)
    for process in crew:
        process.terminate()
        process.wait()
    printed = [json.loads(line) for file in files for line in file.read_text().splitlines() if line.endswith("]")]
    there = state.intent.read().requests.keys()
    assert {made for made, yes in printed if yes} - there == set(), "accepted, and not recorded"
    assert {made for made, yes in printed if not yes} & there == set(), "refused, and recorded all the same"
    yes = sum(yes for _, yes in printed)
    assert yes > 50
    assert len(printed) - yes > 50
    assert len(there) - yes < 10 * WRITERS, "only a killed writer may have recorded without an answer"
