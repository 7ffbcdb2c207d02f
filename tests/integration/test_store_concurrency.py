"""Many processes on one state directory: no failed read, no lost write, each gets its turn."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioner.model import Intent
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError
from tests.support.waiting import PATIENCE

KEPT = 20
"""Requests a writer leaves standing; older ones it trims, so that the file keeps its size."""

FORK = multiprocessing.get_context("fork")


def write_until(directory: str, writer: str, deadline: float, report: Any) -> None:
    """Record requests numbered 1, 2, 3 …, each time checking that all earlier ones are as we left them."""
    state, own = StateDir(directory), list[str]()
    problem = ""
    while time.monotonic() < deadline and not problem:
        try:
            with state.intent.additions() as intent:
                own.append(intent.add_request(writer, len(own) + 1, created_wall=0.0))
            state.intent.remove(own[:-KEPT][-1:])
            there = {key for key, request in state.intent.read().requests.items() if request.template == writer}
            if there != set(own[-KEPT:]):
                problem = f"{writer} lost {len(set(own[-KEPT:]) - there)} writes"
        except StateError as error:
            problem = str(error)
    report.put((writer, len(own), problem))


def read_until(directory: str, reader: str, deadline: float, report: Any) -> None:
    """Read again and again: each intent complete, none older than the one before."""
    state, reads, generation = StateDir(directory), 0, 0
    problem = ""
    while time.monotonic() < deadline and not problem:
        try:
            intent = state.intent.read()
            problem = contradiction(intent, generation)
            generation = intent.generation
        except StateError as error:
            problem = str(error)
        reads += 1
    report.put((reader, reads, problem))


def contradiction(intent: Intent, generation: int) -> str:
    """Why this cannot be what the writers wrote: they number their requests and keep the last, or one more."""
    if intent.generation < generation:
        return f"generation {intent.generation} after {generation}"
    for writer in {request.template for request in intent.requests.values()}:
        counts = sorted(request.count for request in intent.requests.values() if request.template == writer)
        oldest = max(1, counts[-1] - KEPT + 1)
        if counts not in (list(range(start, counts[-1] + 1)) for start in (oldest, max(1, oldest - 1))):
            return f"{writer} has requests {counts}"
    return ""


def hammer(directory: Path, seconds: float, *, writers: int = 2, readers: int = 10) -> dict[str, int]:
    """Writers and readers at once; how much each did. Raises AssertionError with what they complained about."""
    state = StateDir(directory)
    state.intent.create("demo")
    report = FORK.Queue()
    deadline = time.monotonic() + seconds
    roles: list[tuple[Callable[..., None], str]] = [
        *((write_until, f"writer{number}") for number in range(writers)),
        *((read_until, f"reader{number}") for number in range(readers)),
    ]
    crew = [FORK.Process(target=role, args=(str(directory), name, deadline, report)) for role, name in roles]
    for process in crew:
        process.start()
    results = [report.get(timeout=seconds + 30 * PATIENCE) for _ in crew]
    for process in crew:
        process.join()
    problems = [f"{name}: {problem}" for name, _, problem in results if problem]
    assert not problems, "\n".join(problems)
    return {name: done for name, done, _ in results}


@pytest.mark.crowd
def test_two_writers_and_ten_readers_for_ten_seconds(tmp_path: Path) -> None:
    done = hammer(tmp_path, 10)
    intent = StateDir(tmp_path).intent.read()
    written = {name: count for name, count in done.items() if name.startswith("writer")}
    assert 1 < intent.generation <= 1 + 2 * sum(written.values()), "each adds and removes; one write may serve both"
    for writer, count in written.items():
        assert max(request.count for request in intent.requests.values() if request.template == writer) == count
    assert min(done.values()) >= 20, done


def one_request(directory: str, start: Any, report: Any) -> None:
    """Record one request as a script does, when all start at once."""
    start.wait()
    try:
        with StateDir(directory).intent.additions(create_for="demo") as intent:
            request = intent.add_request("T", 1, created_wall=0.0)
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
