"""Scripts at the same time, and beside a writer that does not let go: reads never wait, writes wait a bounded time."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from provisioner.hostfactory.answer import Answer
from provisioner.state.locks import LOCK_WAIT, DataLock
from tests.support.hostfactory.provider import COMMANDS, ROOT, SCRIPTS, HostFactory
from tests.support.hostfactory.schemas import check_output
from tests.support.waiting import PATIENCE, until

CALLERS = 50
LONGEST_CALL = LOCK_WAIT + 20 * PATIENCE
"""Seconds: the wait for the lock, and what a process takes to start while fifty others do."""

HOLDER = """
import sys, time
from provisioner.state.locks import DataLock
from provisioner.state.directory import StateDir
with DataLock(StateDir(sys.argv[1]).intent.lock_path):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def hf(tmp_path: Path) -> HostFactory:
    return HostFactory(tmp_path)


def test_no_read_waits_for_a_writer(hf: HostFactory) -> None:
    request = hf.request()
    with DataLock(hf.state.intent.lock_path):
        for name, document in (
            ("getAvailableTemplates", {}),
            ("getRequestStatus", {"requests": [{"requestId": request}]}),
            ("getReturnRequests", {"machines": [{"name": "a"}]}),
        ):
            hf.call(name, document)  # one that waits is refused after LOCK_WAIT


@pytest.mark.slow
def test_a_lock_held_by_a_stopped_process_is_waited_for_and_its_holder_named(hf: HostFactory) -> None:
    hf.request()
    before = (hf.work / "intent.json").read_bytes()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(hf.work)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        document = {"template": {"templateId": "T1", "machineCount": 1}}
        refusal = hf.run(hf.command("requestMachines", document), seconds=LONGEST_CALL).refusal
        assert refusal.startswith(str(hf.work))
        assert str(holder.pid) in refusal
        assert (hf.work / "intent.json").read_bytes() == before
    finally:
        holder.kill()
        holder.wait()
    assert hf.request() in hf.state.intent.read().requests


@pytest.mark.crowd
def test_fifty_mixed_calls_at_once_for_a_minute(hf: HostFactory) -> None:
    """Beside a loop's part: it publishes and trims all the time."""
    request = hf.request("T2", 1)
    inputs: dict[str, object] = {
        "getAvailableTemplates": {},
        "requestMachines": {"template": {"templateId": "T2", "machineCount": 1}},
        "getRequestStatus": {"requests": [{"requestId": request}]},
        "requestReturnMachines": {"machines": [{"name": "a"}, {"name": "b"}]},
        "getReturnRequests": {"machines": [{"name": "a"}]},
    }
    files = {name: hf.input.with_name(name) for name in COMMANDS}
    for name, file in files.items():
        file.write_text(json.dumps(inputs[name]))
    deadline = time.monotonic() + 60
    turns = itertools.count()

    def caller(_: int) -> list[str]:
        printed = []
        while time.monotonic() < deadline:
            name = COMMANDS[next(turns) % len(COMMANDS)]
            called = hf.run([str(SCRIPTS / f"{name}.sh"), "-f", str(files[name])], seconds=LONGEST_CALL)
            check_output(name, called.document)
            printed += [called.document["requestId"]] if name.startswith("request") else []
        return printed

    trimmed: list[str] = []
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(0.1):
            requests = list(hf.state.intent.read().requests)
            hf.state.status.write({id_: Answer(json.dumps(_entry(id_)), False) for id_ in requests}, {})
            if len(requests) > 20:
                hf.state.intent.remove(requests[1:5])
                trimmed.extend(requests[1:5])

    with ThreadPoolExecutor(CALLERS + 1) as pool:
        looping = pool.submit(loop)
        try:
            printed = [id_ for ids in pool.map(caller, range(CALLERS)) for id_ in ids]
        finally:
            ended.set()
        looping.result()
    intent = hf.state.intent.read()
    assert len(printed) == len(set(printed)) > CALLERS
    assert {*intent.requests, *intent.returns, *trimmed} == {*printed, request}
    assert intent.generation <= 1 + len(printed) + len(trimmed) // 4, "one write may serve many"
    until(lambda: not list(hf.work.glob("*.new")), 5, what="nothing is left aside")


def _entry(request: str) -> dict[str, object]:
    return {"requestId": request, "status": "running", "message": "", "machines": []}
