"""The cost of the first report of a terminal answer: the time of the script, and the size of the file with the answer.

    python tests/bench/bench_answers.py [--rounds N]

When getRequestStatus prints a terminal answer for the first time, it first stores the answer durably. A later call
stores nothing. So the time of a later call is the least possible time. For comparison, the script also prints the time
to write the same number of bytes.

Goal: at most twice the time of a later call for up to 1,000 machines in one answer, and three times for 10,000. Exits 1
if the goal is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from provisioner.hostfactory import Answer
from provisioner.names import machine_name
from provisioner.state.atomic import create_whole
from tests.bench.bench_scripts import call, entry, measure
from tests.support.hostfactory.in_process import entry as answer_of
from tests.support.hostfactory.provider import HostFactory
from tests.support.stores import add_request

GOALS = {1: 2.0, 100: 2.0, 1_000: 2.0, 10_000: 3.0}
"""Goal by number of machines in the answer: the largest ratio of a first call's wall time to a later call's."""


def first_and_later(machines: int, rounds: int) -> tuple[float, float, float, int]:
    """Return three median times in seconds: of the first call, of a later call, and of a plain write of the answer.
    Return also the size in bytes of the file that stores the answer."""
    with tempfile.TemporaryDirectory() as directory:
        hf = HostFactory(Path(directory))
        hf.state.intent.create(hf.instance)
        id_ = add_request(hf.state, "T2", machines, created_wall=0.0)
        names = [machine_name("hf", id_, number) for number in range(machines)]
        text = answer_of(id_, "complete", machines=[entry(name) for name in names])
        hf.state.status.write({id_: Answer(text, True)}, {})
        hf.state.heartbeat.touch()
        commands = {"status": call(hf, "getRequestStatus", {"requests": [{"requestId": id_}]})}
        first, later, bare = [], [], []
        for turn in range(rounds):
            hf.state.terminal_answers.forget([id_])
            first.append(measure(hf, commands, 1)["status"].seconds)
            later.append(measure(hf, commands, 1)["status"].seconds)
            bare.append(_written(os.path.join(directory, f"floor-{turn}"), text.encode()))
        size = sum(path.stat().st_size for path in Path(hf.state.seen.path).glob("*.answer-*"))
    return statistics.median(first), statistics.median(later), statistics.median(bare), size


def _written(path: str, content: bytes) -> float:
    began = time.perf_counter()
    assert create_whole(path, content)
    return time.perf_counter() - began


def main() -> int:
    """Print the table, and return 1 if a goal is missed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=15, help="calls of each kind, default 15")
    rounds = arguments.parse_args().rounds
    print("machines   first call   later call   bare write   beside a later one       entry")
    missed = False
    for machines, goal in GOALS.items():
        first, later, bare, size = first_and_later(machines, rounds)
        ratio = first / later
        missed |= ratio > goal
        times = f"{1000 * first:>9.1f} ms {1000 * later:>9.1f} ms {1000 * bare:>9.1f} ms"
        end = f"{ratio:>8.2f} x (goal {goal:.0f} x) {size:>9,} bytes"
        print(f"{machines:>8,} {times} {end}" + ("  MISSED" if ratio > goal else ""), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
