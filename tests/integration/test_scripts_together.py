"""Scripts at the same time, beside a loop: each answer is right, and all that was printed is recorded."""

from __future__ import annotations

import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from provisioner.hostfactory.answer import Answer
from provisioner.state.locks import LOCK_WAIT
from tests.support.hostfactory.provider import COMMANDS, SCRIPTS, HostFactory
from tests.support.hostfactory.schemas import check_output
from tests.support.waiting import PATIENCE, until

CALLERS = 50
LONGEST_CALL = LOCK_WAIT + 20 * PATIENCE
"""Seconds: the wait for the lock, and what a process takes to start while fifty others do."""


@pytest.fixture
def hf(tmp_path: Path) -> HostFactory:
    return HostFactory(tmp_path)


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
