"""Scripts, loops and the embedded cloud as processes, disturbed at random. The laws hold, and the world comes to rest.

``CHAOS_SEED`` plays the disturbances of a seed again. ``CHAOS_SECONDS`` (default 100) is the duration of the whole
test.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.chaos.run import Run
from tests.simulation.laws import Law

pytestmark = pytest.mark.chaos

SECONDS = float(os.environ.get("CHAOS_SECONDS", "100"))
ROUND_SECONDS = 100.0
"""Seconds for one world, including the time until it is at rest."""
REST_SHARE = 0.4
"""The part of a round that the world usually needs to come to rest."""


@pytest.mark.timeout(SECONDS + 400)
def test_the_laws_hold_whatever_happens(capsys: pytest.CaptureFixture[str]) -> None:
    first = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**9))
    end, number = time.monotonic() + SECONDS, 0
    while number == 0 or end - time.monotonic() > ROUND_SECONDS / 2:
        with capsys.disabled():
            print(f"\nCHAOS_SEED={first + number}", end=" ", flush=True)
            print(one_round(first + number, min(ROUND_SECONDS, SECONDS) * (1 - REST_SHARE)), flush=True)
        number += 1


@pytest.mark.timeout(400)
def test_a_loop_that_breaks_a_law_on_purpose_is_found_out() -> None:
    """Play up to four runs with a broken loop, and stop after the first run that finds the breach. The test fails only
    if none of the four runs finds the breach."""
    for seed in (5, 6, 7, 8):
        with Run(seed, ("tests.chaos.broken_loop", "slot_numbers_are_used_again")) as run:
            run.disturb(60.0)
            if any(line.startswith(Law.NAMED_ONCE) for line in run.broken()):
                return
            message = failure_message(run, run.broken())
    raise AssertionError(message)


def one_round(seed: int, seconds: float) -> str:
    """Run one world with this seed, and return a summary in one line. If a law is broken, fail with the text that
    explains the breach and the command that repeats the run."""
    with Run(seed) as run:
        run.disturb(seconds)
        run.heal()
        run.come_to_rest()
        run.return_all()
        run.wind_up()
        if broken := run.broken():
            run.arena.kept = True
            pytest.fail(failure_message(run, broken), pytrace=False)
        return run.summary()


def failure_message(run: Run, broken: list[str]) -> str:
    """Return the broken laws, the earlier disturbances, and the command that repeats the run."""
    return "\n".join(
        [
            *broken,
            "",
            "Seconds, and what was done:",
            *run.diary,
            "",
            f"State, logs and the cloud's chronicle are kept in {run.arena.directory}",
            f"Again: CHAOS_SEED={run.seed} make test-chaos",
        ]
    )
