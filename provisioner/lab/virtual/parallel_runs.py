"""The execution of many runs in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from provisioner.lab import deferred_interrupts
from provisioner.lab.virtual.formulas import FORMULAS
from provisioner.lab.virtual.run import Controller, Provisioner, Result, Stage, play
from provisioner.lab.virtual.scenario import Scenario
from provisioner.process_end import interruptible

CONTROLLERS: Mapping[str, Callable[[Stage], Controller]] = {Provisioner.name: Provisioner, **FORMULAS}
"""The controllers by name, the provisioner first."""

MOST_SAMPLES = 480
"""Maximum number of samples of a run that are kept for its picture. The picture can show no more."""


class Run(NamedTuple):
    """The inputs of a run."""

    scenario: Scenario
    seed: int
    controller: str
    is_drawn: bool = False
    """True to keep the run's samples for a picture."""


def play_all(runs: Sequence[Run], jobs: int) -> Generator[Result, None, None]:
    """Yield the results in the order in which the runs end. If the caller closes the generator, the processes end."""
    if min(jobs, len(runs)) <= 1:
        return (played(run) for run in runs)
    return _beside_each_other(runs, jobs)


def played(run: Run) -> Result:
    """Play a run, and return its result. An exception counts as a broken law, so that the other runs can go on."""
    try:
        result = play(run.scenario, run.seed, CONTROLLERS[run.controller])
    except Exception:  # noqa: BLE001 - any exception is reported with the run that raised it
        return _failed(run, traceback.format_exc())
    apart = -(-len(result.samples) // MOST_SAMPLES) or 1
    return replace(result, samples=result.samples[::apart] if run.is_drawn else ())


def _failed(run: Run, text: str) -> Result:
    return Result(run.scenario.name, run.seed, run.controller, {}, (f"the run ended: {text.rstrip()}",), (), ())


def _beside_each_other(runs: Iterable[Run], jobs: int) -> Generator[Result, None, None]:
    waiting, workers = deque(runs), _Workers()
    under_way: dict[Connection, Run] = {}
    with interruptible(workers.kill):
        while waiting or under_way:
            while waiting and len(under_way) < jobs:
                run = waiting.popleft()
                under_way[workers.send(run)] = run
            for ended in wait(list(under_way)):
                assert isinstance(ended, Connection)
                yield workers.result(ended, under_way.pop(ended))


class _Workers:
    """The processes that play runs. A process ends when its connection to the calling process is closed."""

    def __init__(self) -> None:
        self._processes: dict[Connection, BaseProcess] = {}
        self._idle: list[Connection] = []
        self._context = multiprocessing.get_context("spawn")

    def send(self, run: Run) -> Connection:
        """Send a run to an idle process, and return the connection to it. If all processes are busy, start another
        process."""
        worker = self._idle.pop() if self._idle else self._begin()
        with suppress(BrokenPipeError):  # the process has died, and ``result`` will report this
            worker.send(run)
        return worker

    def _begin(self) -> Connection:
        """Start a process that ignores SIGINT, and return the connection to this process.

        Ctrl-C reaches every process of the terminal. Only the calling process handles Ctrl-C and ends the started
        processes.
        """
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,), daemon=True)
        with deferred_interrupts():
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
                self._processes[ours] = process
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return ours

    def result(self, worker: Connection, run: Run) -> Result:
        """Return the result that a process sends. If the process has died, return a result with a broken law."""
        try:
            result: Result = worker.recv()
        except (EOFError, OSError):
            process = self._processes.pop(worker)
            process.join()
            return _failed(run, f"its process died with exit code {process.exitcode}")
        self._idle.append(worker)
        return result

    def kill(self) -> None:
        """Kill all processes."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()


def _work(caller: Connection) -> None:
    """Play each run that comes through the connection, and send back its ``Result``. This function is the main function
    of a worker process."""
    threading.Thread(target=_end_with_caller, daemon=True).start()
    try:
        while True:
            caller.send(played(caller.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the calling process has ended


def _end_with_caller() -> None:
    """Wait until the calling process ends, then end the worker process, because no other process reads its results.
    This function runs in a thread of the worker process."""
    caller = multiprocessing.parent_process()
    if caller is not None:
        caller.join()
        os._exit(1)
