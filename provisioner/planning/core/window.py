"""How much may be asked of one pool for one template: window, back-off, probes.

The window bounds what is pending, grows with each machine that runs and halves when most of a round fails.

* A round is as many results as the window was wide when it began, at most ``ROUND``. What failed in it keeps its room
  until the round is over, so that an unproven pool is never asked for more than the window.
* A machine that is lost in its first minutes takes its growth back. Where most are, one at a time is tried until one
  outlives them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from provisioner.model import ErrorClass, Failure, Limits, PoolLimits, Window

ROUND = 100
"""Most results of a round: a wide window, too, closes when most of so many fail."""

GROWTH = 2
"""By how much the window grows with each machine that runs: an unproven pool triples in each boot time."""


def current(window: Window | None, pool: PoolLimits, spec: str) -> Window:
    """Return the window; a new one if there was none, or if the pod spec or instance template changed."""
    if window is None or (spec and window.spec and spec != window.spec):
        return Window(window=min(pool.initial_window, pool.max_pending), spec=spec)
    return replace(window, spec=spec) if spec and not window.spec else window


def blocked(window: Window, now: float) -> bool:
    """Backing off: no create before ``retry_at``."""
    return now < window.retry_at


def width(window: Window) -> int:
    """Return how many machines may be pending at once: one while the window is probing."""
    return 1 if window.probing else window.window


def room(window: Window, pending: int, probes: int) -> int:
    """How many more machines may be asked for.

    ``pending`` counts machines asked for that do not run yet, ``probes`` those of them asked for since the
    back-off began.
    """
    if window.probing:
        return max(0, 1 - probes)
    return max(0, window.window - window.failed - pending)


def accepted(window: Window, submitted: float) -> Window:
    """A create call was answered with success."""
    if window.level == 0 or submitted < window.blocked_at or window.failure is None or window.boot:
        return window
    return _recovered(window) if window.failure.error.is_of_call else window


def ran(window: Window, pool: PoolLimits, submitted: float, now: float, limits: Limits, *, machines: int = 1) -> Window:
    """Machines reached running: the window grows with each, and a back-off that one of them outlived ends."""
    if window.level and submitted >= window.blocked_at:
        window = _recovered(window)
    grown = replace(window, window=min(window.window + GROWTH * machines, pool.max_pending), ran=window.ran + machines)
    return _judged(grown, now, limits)


@dataclass(frozen=True, slots=True)
class Losses:
    """Machines that ran in one pool for one template and were lost in their first minutes."""

    fates: Sequence[bool]
    """Of every machine that ran there, from the newest on: was it lost so?"""
    failure: Failure
    """How the last of them ended."""
    submitted: float
    """When the newest of them was asked for."""
    machines: int = 1
    """How many of them are news."""


def lost_early(window: Window, losses: Losses, now: float, limits: Limits) -> Window:
    """The window gives back what it grew by them, and closes when they are a probe or most of its newest machines.

    Until a machine has outlived its first minutes, one that runs is no proof.
    """
    failure = losses.failure
    shrunk = replace(window, window=max(1, window.window - GROWTH * losses.machines))
    old = window.level > 0 and losses.submitted < window.blocked_at
    if shrunk.early_loss is None:
        newest = max(1, window.window - losses.machines)
        if 2 * sum(losses.fates[:newest]) <= newest:
            return shrunk
        shrunk = replace(shrunk, window=max(1, shrunk.window // 2), ran=0, failed=0, probing=True, early_loss=failure)
    return shrunk if old else refused(replace(shrunk, early_loss=failure), failure, now, limits, boot=True)


def outlived(window: Window, submitted: float) -> Window:
    """A machine has outlived its first minutes. One asked for since early losses closed the window opens it."""
    if window.early_loss is None or submitted < window.blocked_at:
        return window
    return _recovered(replace(window, early_loss=None))


def failed(
    window: Window, failure: Failure, submitted: float, now: float, limits: Limits, *, boot: bool = False
) -> Window:
    """A create failed, or (``boot``) a machine whose create was taken.

    A failed probe, and a class that the next create would meet again, block at once; what was asked for before a series
    of back-offs began says nothing new about the pool.
    """
    counted = window if failure.error.has_no_room else replace(window, failed=window.failed + 1)
    old = window.level > 0 and submitted < window.blocked_at
    if not (old and window.probing):
        counted = replace(counted, failure=failure, boot=boot)
    if not old and (window.probing or failure.error.backs_off):
        counted = refused(counted, failure, now, limits, boot=boot)
    return _judged(counted, now, limits)


def refused(window: Window, failure: Failure, now: float, limits: Limits, *, boot: bool = False) -> Window:
    """The pool does not take creates now: back off, once for all failures of one instant."""
    if blocked(window, now):
        return window
    level = window.level + 1
    return replace(
        window,
        failure=failure,
        boot=boot,
        level=level,
        probing=window.probing or failure.error is not ErrorClass.THROTTLED,
        blocked_at=now,
        retry_at=now + backoff_seconds(level, limits, f"{limits.prefix}/{window.spec}/{now}", failure.error),
    )


def throttled(window: Window, failure: Failure, wait: float, now: float) -> Window:
    """The pool said for how many seconds it wants no calls: back off for ``wait``, and no longer.

    Any other back-off goes on, with its own probes.
    """
    later = replace(window, retry_at=max(window.retry_at, now + wait))
    backing_off = window.backs_off_from
    if backing_off is not None and backing_off.error is not ErrorClass.THROTTLED:
        return later
    return replace(later, failure=failure, boot=False, level=max(1, window.level), blocked_at=now)


def pausing(window: Window) -> bool:
    """The back-off is only for calls that came too often or were not answered: it may soon take them all again."""
    if window.failure is None or window.level == 0 or window.boot:
        return False
    return window.failure.error is ErrorClass.THROTTLED or window.failure.error.is_ambiguous


def backoff_seconds(level: int, limits: Limits, seed: str, error: ErrorClass) -> float:
    """Exponential in ``level`` (1, 2, …), a fifth of each step by chance so that pools do not retry in step."""
    last = limits.backoff.no_room if error.has_no_room else limits.backoff.last
    step = min(last, limits.backoff.first * 2.0 ** min(level - 1, 32))
    return step * random.Random(seed).uniform(0.8, 1.0)


def _recovered(window: Window) -> Window:
    """The back-off ends, unless it is for early losses, which no accepted create and no running machine clears."""
    if window.early_loss is not None:
        return replace(window, retry_at=0.0, failure=window.early_loss, boot=True)
    return replace(window, level=0, probing=False, retry_at=0.0, failure=None, boot=False)


def _judged(window: Window, now: float, limits: Limits) -> Window:
    """At the end of a round: halve if most of it failed, and back off, unless a probe is to tell of the pool."""
    began_with = min(ROUND, max(1, window.window - GROWTH * window.ran))
    if window.ran + window.failed < began_with:
        return window
    over = replace(window, ran=0, failed=0)
    if window.failed <= window.ran or window.failure is None:
        return over
    halved = replace(over, window=max(1, window.window // 2))
    return halved if halved.probing else refused(halved, window.failure, now, limits, boot=window.boot)
