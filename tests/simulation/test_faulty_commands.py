"""The kind ``command`` with programs that lie, hang and fail by chance.

No machine is doubled or wrongly deleted, and every request ends. A failure names its seed. ``COMMAND_SEED=N pytest -k
faulty_commands`` plays that seed again.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch
from xml.sax.saxutils import escape

import pytest
import yaml

from provisioner.backends import BackendError, call_budget, names_not_unique
from provisioner.backends.command import backend, commands
from provisioner.backends.command.backend import CommandBackend
from provisioner.backends.command.settings import CommandPool
from provisioner.backends.names_not_unique import UncertainCreates
from provisioner.backends.processes import Finished
from provisioner.lab.virtual.scenario import PROVISIONER
from tests.simulation.faulty_queue import LAG, PACE, POOL, PREFIX, Job, Queue, Run
from tests.simulation.test_broken_laws import Break

SAMPLES = Path(__file__).parents[2] / "config" / "places"
CHANGES = {"lag_seconds": LAG, "observe_seconds": PACE, "calls_per_minute": 1_000_000}
ONE = os.environ.get("COMMAND_SEED", "")
BATCH = 25
BATCHES = range(0, BATCH if ONE else 1000, BATCH)
SEEDS = [pytest.param(first, marks=[pytest.mark.slow] * (first > 0)) for first in BATCHES]
DOWN = {"lsf": "LSF is down. Please wait ...", "gridengine": "error: unable to contact qmaster", "lancium": "503"}


class Program:
    """The commands of one sample configuration, in memory. ``run`` replaces the function ``run_program``."""

    def __init__(self, sample: str, queue: Queue) -> None:
        self._queue = queue
        self._said, self._list, self._cut = FORMS[sample]
        self._down, self._keeps = DOWN[sample], sample == "lancium"
        self._calls = {"bsub": self._create, "bjobs": self._read, "bkill": self._delete, "qsub": self._create}
        self._calls |= {"qstat": self._read, "qdel": self._delete}
        self._calls |= {"run": self._create, "show": self._read, "delete": self._delete}

    def run(self, argv: Sequence[str], environment: Mapping[str, str], *, seconds: float, **limits: Any) -> Finished:
        """Run a command, which may fail or hang."""
        program = argv[2] if argv[0] == "lcli" else Path(argv[0]).name
        try:
            return self._calls[program](argv, seconds)
        except TimeoutError:
            self._queue.pass_time(seconds)
            raise TimeoutError(f"did not end within {seconds:g} s") from None

    def _refusal(self) -> Finished:
        words = self._down if self._queue.chance(0.5) else "Segmentation fault"
        return Finished(255, b"", words.encode())

    def _create(self, argv: Sequence[str], seconds: float) -> Finished:
        queue, marks = self._queue, [argv[at + 1] for at, one in enumerate(argv) if one == "-Jd"]
        name = next(argv[at + 1] for at, one in enumerate(argv) if one in ("-J", "-N", "--name"))
        mark = marks[0] if marks else ""
        fault = queue.fault("refuse", "hang", "hang, later", "hang, done", "silent", "killed", "fails, done")
        if fault == "refuse":
            return self._refusal()
        if fault == "hang":
            raise TimeoutError
        if fault == "hang, later":
            queue.submit_late(name, mark, seconds)
            raise TimeoutError
        number = queue.submit(name, mark)
        if fault == "hang, done":
            raise TimeoutError
        if fault == "killed":
            return Finished(-9, b"", b"")
        if fault == "fails, done":
            return self._refusal()
        return Finished(0, b"" if fault else self._said.format(number).encode(), b"")

    def _read(self, argv: Sequence[str], seconds: float) -> Finished:
        queue = self._queue
        fault = queue.fault("nothing", "old", "hang", "refuse", *(("half",) if self._cut else ()))
        if fault == "hang":
            raise TimeoutError
        if fault == "refuse":
            return self._refusal()
        if fault == "nothing":
            return Finished(0, b"", b"")
        text = self._list(queue, queue.moment(old=fault == "old"))
        if not text:
            return Finished(255, b"", b"No matching job found")
        return Finished(0, (text[: len(text) // 2] if fault == "half" else text).encode(), b"")

    def _delete(self, argv: Sequence[str], seconds: float) -> Finished:
        queue, number = self._queue, int(argv[-1])
        fault = queue.fault("refuse", "hang", "hang, done", "silent")
        if fault == "refuse":
            return self._refusal()
        if fault == "hang":
            raise TimeoutError
        known = queue.cancel(number) or (self._keeps and queue.forget(number))
        if fault == "hang, done":
            raise TimeoutError
        unknown = f"Job <{number}>: already finished; job does not exist; no job".encode()
        return Finished(0, b"", b"") if known else Finished(1 if argv[0] != "bkill" else 255, b"", unknown)


def lsf(queue: Queue, at: float) -> str:
    """Return what bjobs prints; empty for no jobs."""
    words = {"waiting": "PEND", "running": "RUN", "ended": "EXIT"}

    def record(job: Job) -> Mapping[str, str]:
        state = job.state(at)
        since = time.strftime("%b %d %H:%M:%S %Y", time.localtime(queue.world.start_wall + job.made_at))
        host = "" if state == "waiting" else "127.0.0.1"
        return {"JOBID": str(job.number), "STAT": words[state], "JOB_NAME": job.name, "EXEC_HOST": host,
                "PEND_REASON": "", "JOB_DESCRIPTION": job.mark, "SUBMIT_TIME": since}  # fmt: skip

    records = [record(job) for job in queue.shown(at) if job.name.startswith(PREFIX)]
    return json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}) if records else ""


def grid_engine(queue: Queue, at: float) -> str:
    """Return what qstat prints. It shows no jobs that have ended."""
    words = {"waiting": "qw", "running": "r"}
    lines = [
        f"<job_list><JB_job_number>{job.number}</JB_job_number><JB_name>{escape(job.name)}</JB_name>"
        f"<state>{words[job.state(at)]}</state><queue_name>grid@127.0.0.1</queue_name></job_list>"
        for job in queue.shown(at)
        if job.state(at) != "ended"
    ]
    return f"<job_info><queue_info>{''.join(lines)}</queue_info></job_info>"


def lancium(queue: Queue, at: float) -> str:
    """Return what lcli prints."""
    words = {"waiting": "queued", "running": "running", "ended": "finished"}
    lines = [f"{job.number},{job.name},{words[job.state(at)]}" for job in queue.shown(at)]
    return "\n".join(["id,name,status", *lines]) + "\n"


FORMS: Mapping[str, tuple[str, Callable[[Queue, float], str], bool]] = {
    "lsf": ("Job <{}> is submitted to queue <grid>.", lsf, True),
    "gridengine": ("{}", grid_engine, True),
    "lancium": ("{}", lancium, False),
}
"""By sample, what its create prints, what its list prints, and whether a part of a list shows that it is cut."""


def play(seed: int, **changes: Any) -> tuple[Run, list[str]]:
    """Play a run. Return it, and the problems at its end."""
    sample = list(FORMS)[seed % len(FORMS)]
    (body,) = yaml.safe_load((SAMPLES / f"{sample}.yaml").read_text())["pools"].values()
    body["create"]["at_once"] = 1  # one after the other, so that a seed is always the same run
    body.pop("credentials", None)
    pool = CommandPool.model_validate({"name": POOL, "user": "grid", **body, **CHANGES, **changes})
    queue = Queue(seed, keeps=1e9 if pool.cleanup else 120.0)
    queue.submit("theirs", "")
    with (
        patch.object(commands, "run_program", Program(sample, queue).run),
        patch.object(backend, "time", queue),
        patch.object(call_budget, "time", queue),
        patch.object(names_not_unique, "time", queue),
    ):
        run = Run(queue, lambda: CommandBackend(pool, provisioner=PROVISIONER, prefix=PREFIX))
        return run, run.play()


def search(seeds: Iterable[int]) -> dict[int, list[str]]:
    """Return the problems of each seed that has some."""
    return {seed: broken for seed in seeds if (broken := play(seed)[1])}


@pytest.mark.parametrize("first", SEEDS)
def test_no_fault_doubles_a_machine_deletes_one_wrongly_or_keeps_a_request_open(first: int) -> None:
    found = search([int(ONE)] if ONE else range(first, first + BATCH))
    assert not found, f"COMMAND_SEED={min(found)} plays the first again: {found}"


def lists_that_cannot_be_read_are_empty() -> Break:
    read = CommandBackend._read_list

    def broken(self: CommandBackend) -> object:
        try:
            return read(self)
        except BackendError:
            return {}

    return patch.object(CommandBackend, "_read_list", broken)


def creates_are_repeated_at_once() -> Break:
    return patch.object(UncertainCreates, "check", lambda *_: None)


def old_lists_prove_an_absence() -> Break:
    return patch.dict(CHANGES, {"lag_seconds": 10.0})


def all_jobs_are_ours() -> Break:
    return patch.object(CommandBackend, "_is_own", lambda *_: True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lists_that_cannot_be_read_are_empty, "was reported as lost"),
        (creates_are_repeated_at_once, "doubled"),
        (old_lists_prove_an_absence, "doubled"),
        (all_jobs_are_ours, "not ours|brake"),
    ],
)
def test_the_search_finds_that(broken: Callable[[], Break], words: str) -> None:
    with broken():
        found = next((broken for seed in range(200) if (broken := play(seed)[1])), [])
    assert re.search(words, " ".join(found))
