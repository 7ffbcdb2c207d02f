"""Windows: each limits the pending machines of one template in one pool. Back-off and probes are part of a window.

The window grows with each machine that runs. The window is halved if most machines of a round fail.

* A round has as many machines as the window's size at the round's start, but at most ``ROUND``. The round is complete
  when this number of machines have run or failed. Until then, failed machines count as pending. An unproven pool
  therefore never gets more requests than the window.
* If a machine is lost in its first minutes, the window loses the growth that the machine gave. If most machines are
  lost so early, the window closes. While a window is closed, only one machine is requested at a time. The window opens
  when a machine outlives its first minutes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from provisioner.model import ErrorClass, Failure, Limits, PoolLimits, Window

ROUND = 100
"""Largest number of machines that run or fail in one round. So even a wide window is halved after at most this many
machines if most of them fail."""

GROWTH = 2
"""Number of machines by which the window grows for each machine that runs. So the window of an unproven pool triples
when all its pending machines have run."""


def update(window: Window | None, pool: PoolLimits, spec: str) -> Window:
    """Return the given window, or a new window.

    The window is new if the pool had no window, or if the pool's pod spec or instance template has changed. ``spec``:
    the fingerprint of this pod spec or instance template.
    """
    if window is None or (spec and window.spec and spec != window.spec):
        return Window(window=min(pool.initial_window, pool.max_pending), spec=spec)
    return replace(window, spec=spec) if spec and not window.spec else window


def is_blocked(window: Window, now: float) -> bool:
    """Return whether the window backs off, so that no create may be sent before ``retry_at``."""
    return now < window.retry_at


def get_pending_limit(window: Window) -> int:
    """Return how many machines may be pending at once. The limit is 1 while the window is probing."""
    return 1 if window.is_probing else window.window


def room(window: Window, pending: int, probes: int) -> int:
    """Return how many more machines may be requested.

    ``pending``: the number of requested machines that do not run yet. ``probes``: the number of machines that were
    requested after the back-off began and that have not yet proven the pool.
    """
    return max(0, 1 - probes if window.is_probing else window.window - window.failed - pending)


def after_create(window: Window, submitted: float) -> Window:
    """Return the window after a create call succeeded.

    If a failed call caused the back-off, and the create was sent after the back-off began, the back-off ends.
    """
    if window.level == 0 or submitted < window.blocked_at or window.failure is None or window.is_boot_failure:
        return window
    return _end_back_off(window) if window.failure.error.is_of_call else window


def after_runs(
    window: Window, pool: PoolLimits, submitted: float, now: float, limits: Limits, *, machines: int = 1
) -> Window:
    """Return the window after machines began to run. The window grows with each machine. A back-off ends if the newest
    machine was requested (``submitted``) after the back-off began."""
    if window.level and submitted >= window.blocked_at:
        window = _end_back_off(window)
    grown = replace(window, window=min(window.window + GROWTH * machines, pool.max_pending), ran=window.ran + machines)
    return _end_round(grown, now, limits)


@dataclass(frozen=True, slots=True)
class Losses:
    """Early losses: machines that ran in one pool for one template and were lost in their first minutes."""

    fates: Sequence[bool]
    """A flag for each machine of the template that ran in the pool, from the newest to the oldest. True: the machine
    was lost early."""
    failure: Failure
    """Failure of the latest early loss."""
    submitted: float
    """Moment at which the newest of the lost machines was requested."""
    machines: int = 1
    """Number of lost machines that are new in this plan."""


def after_early_losses(window: Window, losses: Losses, now: float, limits: Limits) -> Window:
    """Return the window after early losses. The window loses the growth that the lost machines gave.

    If most of the newest machines were lost early, the window closes. A closed window backs off again if a probe is
    lost. The window opens when a machine has outlived its first minutes. A younger machine proves nothing about the
    pool.
    """
    failure = losses.failure
    shrunk = replace(window, window=max(1, window.window - GROWTH * losses.machines))
    is_older = window.level > 0 and losses.submitted < window.blocked_at
    if shrunk.early_loss is None:
        newest = max(1, window.window - losses.machines)
        if 2 * sum(losses.fates[:newest]) <= newest:
            return shrunk
        halved = max(1, shrunk.window // 2)
        shrunk = replace(shrunk, window=halved, ran=0, failed=0, is_probing=True, early_loss=failure)
    return shrunk if is_older else back_off(replace(shrunk, early_loss=failure), failure, now, limits, boot=True)


def after_outlived(window: Window, submitted: float) -> Window:
    """Return the window after a machine has outlived its first minutes. If early losses closed the window before the
    machine was requested, the window opens."""
    if window.early_loss is None or submitted < window.blocked_at:
        return window
    return _end_back_off(replace(window, early_loss=None))


def after_failure(
    window: Window, failure: Failure, submitted: float, now: float, limits: Limits, *, boot: bool = False
) -> Window:
    """Return the window after a failed create. With ``boot``, the create was accepted and its machine failed later.

    The window backs off at once if a probe fails, or if the next create would fail in the same way. A create that was
    sent before the back-off began starts no further back-off.
    """
    counted = window if failure.error.has_no_room else replace(window, failed=window.failed + 1)
    is_older = window.level > 0 and submitted < window.blocked_at
    if not (is_older and window.is_probing):
        counted = replace(counted, failure=failure, is_boot_failure=boot)
    if not is_older and (window.is_probing or failure.error.backs_off):
        counted = back_off(counted, failure, now, limits, boot=boot)
    return _end_round(counted, now, limits)


def back_off(window: Window, failure: Failure, now: float, limits: Limits, *, boot: bool = False) -> Window:
    """Return the window with a back-off, because the pool takes no creates now.

    A window that already backs off does not change. Several failures at the same moment therefore count as one.
    """
    if is_blocked(window, now):
        return window
    level = window.level + 1
    return replace(
        window,
        failure=failure,
        is_boot_failure=boot,
        level=level,
        is_probing=window.is_probing or failure.error is not ErrorClass.THROTTLED,
        blocked_at=now,
        retry_at=now + backoff_seconds(level, limits, f"{limits.prefix}/{window.spec}/{now}", failure.error),
    )


def back_off_for(window: Window, failure: Failure, wait: float, now: float) -> Window:
    """Honour the pool's Retry-After: back off for ``wait`` seconds.

    If the window already backs off for another reason, this back-off and its probes stay.
    """
    later = replace(window, retry_at=max(window.retry_at, now + wait))
    backing_off = window.backs_off_from
    if backing_off is not None and backing_off.error is not ErrorClass.THROTTLED:
        return later
    return replace(later, failure=failure, is_boot_failure=False, level=max(1, window.level), blocked_at=now)


def is_pausing(window: Window) -> bool:
    """Return whether the window backs off only because calls were throttled or got no response. The pool may then
    soon take creates again."""
    if window.failure is None or window.level == 0 or window.is_boot_failure:
        return False
    return window.failure.error is ErrorClass.THROTTLED or window.failure.error.is_ambiguous


def backoff_seconds(level: int, limits: Limits, seed: str, error: ErrorClass) -> float:
    """Return the seconds of a back-off, which grow exponentially with ``level`` (1, 2, …). Up to a fifth is random,
    so that pools do not retry at the same moment."""
    last = limits.backoff.no_room_seconds if error.has_no_room else limits.backoff.last_seconds
    step = min(last, limits.backoff.first_seconds * 2.0 ** min(level - 1, 32))
    return step * random.Random(seed).uniform(0.8, 1.0)


def _end_back_off(window: Window) -> Window:
    """Return the window after the end of its back-off.

    If early losses closed the window, creates may be sent again. But the pool gets one machine at a time until a
    machine outlives its first minutes.
    """
    if window.early_loss is not None:
        return replace(window, retry_at=0.0, failure=window.early_loss, is_boot_failure=True)
    return replace(window, level=0, is_probing=False, retry_at=0.0, failure=None, is_boot_failure=False)


def _end_round(window: Window, now: float, limits: Limits) -> Window:
    """Return the window. If the present round is complete, a new round begins.

    If most machines of the complete round failed, the window is halved and backs off. A window that is probing does not
    back off here, because only the probe decides.
    """
    began_with = min(ROUND, max(1, window.window - GROWTH * window.ran))
    if window.ran + window.failed < began_with:
        return window
    over = replace(window, ran=0, failed=0)
    if window.failed <= window.ran or window.failure is None:
        return over
    halved = replace(over, window=max(1, window.window // 2))
    return halved if halved.is_probing else back_off(halved, window.failure, now, limits, boot=window.is_boot_failure)
