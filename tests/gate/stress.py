"""Run one test many times while other processes occupy every processor: ``make stress TEST=tests/…::test_x N=20``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.gate.stages import ROOT

BUSY = "while True: pass"


@contextmanager
def load() -> Iterator[None]:
    """Run two busy processes for each processor, so that a test gets a third of a processor."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(times: int, tests: list[str]) -> int:
    """Print the output of each run that fails, and the number of failed runs. Return 1 if a run failed."""
    failed = 0
    with load():
        for number in range(1, times + 1):
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                failed += 1
                print(done.stdout + done.stderr)
            print(f"run {number} of {times}: {'failed' if done.returncode else 'passed'}; {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
