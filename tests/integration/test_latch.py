"""A signal during a wait, at any line of the waiting code. The signal's handler wakes the main thread, and must not
block it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE

SECONDS = 60.0
"""Seconds within which the process must end. A main thread that waits for itself would not end."""


AT_EACH_LINE = """
import signal, sys
from provisioner.process_end import Latch
from provisioner.loop.wakeups import Wake, Wakeups

def set_latch():
    latch.set()

def wake():
    wakeups.wake(Wake.SIGNAL)

counted, lines, within = [], [], False
latch, wakeups = Latch(), Wakeups(counted.append)

def trace(frame, event, argument):
    global within
    if event == "line" and not within:
        within = True
        lines.append(frame.f_lineno)
        signal.raise_signal(signal.SIGHUP)
        within = False
    return trace

for handler, wait in ((set_latch, lambda: latch.wait(60)), (wake, lambda: wakeups.wait(60, 60, lambda: False))):
    signal.signal(signal.SIGHUP, lambda *_: handler())
    sys.settrace(trace)
    wait()
    sys.settrace(None)
print(latch.is_set(), set(counted) == {Wake.SIGNAL}, len(lines) > 10)
"""


def test_a_signal_at_any_line_of_a_wait_ends_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EACH_LINE],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=SECONDS * PATIENCE,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True True True\n", "")
