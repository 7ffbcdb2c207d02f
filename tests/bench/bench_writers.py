"""The number of writers that the state directory supports: ``requestMachines.sh`` compared with a script without locks.

    python tests/bench/bench_writers.py [--rounds N]

The other script only imports tinydb and fsyncs its own file. This is the least cost of a durable request. Both scripts
are measured in turn, in the same run.

Goals: if eight copies of our script run at a time, they reach 70 % of the rate that eight copies of the other script
reach. If fifty copies start at once, 95 % of ours answer within 1.5 times the time in which 95 % of the others answer.
Exits 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.hostfactory.provider import HostFactory

STEADY, CALLS = 8, 80
"""The number of writers that run at the same time, and the number of calls in a round."""
BURST = 50
"""Writers that are started at once."""
GOAL_RATE = 0.70
GOAL_P95 = 1.5
MACHINES = 100
"""Number of machines in a request. HF itself sends no larger batches."""

LOCK_FREE = """#!/bin/sh
exec {python} -I -c '
import os, tinydb
file = os.open("{directory}/" + str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o660)
os.write(file, b"1")
os.fsync(file)'
"""


class Script(NamedTuple):
    """A script that takes part in the comparison: its command line and environment."""

    command: list[str]
    environment: Mapping[str, str]

    def call(self) -> float:
        """Call the script once, and return the seconds until it ended."""
        began = time.perf_counter()
        quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        process = os.posix_spawn(self.command[0], self.command, self.environment, file_actions=quiet)
        _, status = os.waitpid(process, 0)
        if status:
            raise SystemExit(f"{self.command[0]}: ended with {os.waitstatus_to_exitcode(status)}")
        return time.perf_counter() - began


def together(script: Script, writers: int, calls: int) -> tuple[float, list[float]]:
    """Call the script ``calls`` times, ``writers`` calls at a time. Return the seconds of all calls together, and of
    each call."""
    began = time.perf_counter()
    with ThreadPoolExecutor(writers) as pool:
        taken = list(pool.map(Script.call, repeat(script, calls)))
    return time.perf_counter() - began, taken


def p95(taken: list[float]) -> float:
    """Return the time within which 95 % of the calls ended."""
    return sorted(taken)[math.ceil(0.95 * len(taken)) - 1]


def scripts(directory: Path) -> tuple[Script, Script]:
    """Return our script, and a script without a lock."""
    hf = HostFactory(directory)
    hf.state.intent.create(hf.instance)
    hf.state.heartbeat.touch()
    document = {"template": {"templateId": "T2", "machineCount": MACHINES}}
    free = directory / "lock_free.sh"
    free.write_text(LOCK_FREE.format(python=sys.executable, directory=hf.logs))
    free.chmod(0o755)
    return Script(hf.command("requestMachines", document), hf.environment), Script([str(free)], hf.environment)


def verdict(what: str, missed: bool) -> bool:
    """Print one line of the result, with a mark if ``missed`` is True. Return ``missed``."""
    print(what + ("  MISSED" if missed else ""), flush=True)
    return missed


def steady(ours: Script, free: Script, rounds: int) -> bool:
    """Measure both scripts with eight calls at a time. Return True if our script misses its goal."""
    rates = [[CALLS / together(script, STEADY, CALLS)[0] for script in (ours, free)] for _ in range(rounds)]
    mine, other = (statistics.median(each) for each in zip(*rates, strict=True))
    text = f"{STEADY} at a time: {mine:.1f} a second, lock-free {other:.1f}: {mine / other:.0%} (goal {GOAL_RATE:.0%})"
    return verdict(text, mine / other < GOAL_RATE)


def burst(ours: Script, free: Script, rounds: int) -> bool:
    """Measure both scripts with fifty calls that start at once. Return True if our script misses its goal."""
    taken = [[p95(together(script, BURST, BURST)[1]) for script in (ours, free)] for _ in range(rounds)]
    mine, other = (statistics.median(each) for each in zip(*taken, strict=True))
    text = f"{BURST} at once: p95 {mine:.2f} s, lock-free {other:.2f} s: {mine / other:.2f} x (goal {GOAL_P95} x)"
    return verdict(text, mine / other > GOAL_P95)


def main() -> int:
    """Print two lines, and return 1 if a goal is missed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5, help="rounds of each measurement, default 5")
    rounds = arguments.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        ours, free = scripts(Path(directory))
        results = [steady(ours, free, rounds), burst(ours, free, rounds)]
    print(f"medians of {rounds} rounds in turn")
    return int(any(results))


if __name__ == "__main__":
    raise SystemExit(main())
