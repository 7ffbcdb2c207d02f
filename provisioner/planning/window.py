"""How much may be asked of one pool for one template: window, back-off, probes.

The window bounds what is pending, grows with each machine that runs and halves when most of a round fails.
A round is as many results as the window is wide. A machine that is lost in its first minutes takes its growth back;
where most are, one at a time is tried until one outlives them. Pure: no I/O, no clock, no logger.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from provisioner.model import AMBIGUOUS_ERRORS, ErrorClass, Failure, Limits, PoolLimits, Pressure

CALL_ERRORS = AMBIGUOUS_ERRORS | {ErrorClass.THROTTLED, ErrorClass.DENIED, ErrorClass.INVALID, ErrorClass.NOT_FOUND}
"""Errors of the call itself: an accepted create shows that they are over; of the others only a machine that runs."""

ROUND_ERRORS = frozenset({ErrorClass.OTHER, ErrorClass.TIMEOUT})
"""Errors of one machine (a time-out is that of its boot): they count against the round, and the round decides."""


def fresh(pool: PoolLimits, spec: str) -> Pressure:
    """Nothing is known yet of this template in this pool."""
    return Pressure(window=min(pool.initial_window, pool.max_pending), spec=spec)


def respecified(pressure: Pressure, pool: PoolLimits, spec: str) -> Pressure:
    """The same, or forgotten when the pod spec or instance template changed."""
    if not spec or spec == pressure.spec:
        return pressure
    if not pressure.spec:
        return replace(pressure, spec=spec)
    return fresh(pool, spec)


def blocked(pressure: Pressure, now: float) -> bool:
    """Backing off: no create before ``retry_at``."""
    return now < pressure.retry_at


def room(pressure: Pressure, pending: int, probes: int) -> int:
    """How many more machines may be asked for.

    ``pending`` counts machines asked for that do not run yet, ``probes`` those of them asked for since the
    back-off began.
    """
    if pressure.probing:
        return max(0, 1 - probes)
    return max(0, pressure.window - pending)


def accepted(pressure: Pressure, submitted: float) -> Pressure:
    """A create call was answered with success."""
    if pressure.level == 0 or submitted < pressure.blocked_at or pressure.failure is None or pressure.boot:
        return pressure
    return _recovered(pressure) if pressure.failure.error in CALL_ERRORS else pressure


def ran(
    pressure: Pressure, pool: PoolLimits, submitted: float, now: float, limits: Limits, *, machines: int = 1
) -> Pressure:
    """Machines reached running: the window grows by one for each, and a back-off that one of them outlived ends."""
    if pressure.level and submitted >= pressure.blocked_at:
        pressure = _recovered(pressure)
    grown = replace(pressure, window=min(pressure.window + machines, pool.max_pending), ran=pressure.ran + machines)
    return _judged(grown, now, limits)


def lost_early(
    pressure: Pressure,
    fates: Sequence[bool],
    failure: Failure,
    submitted: float,
    now: float,
    limits: Limits,
    *,
    machines: int = 1,
) -> Pressure:
    """Machines that ran were lost in their first minutes: the window gives back what it grew by them.

    ``fates`` says of the machines that ran here, from the newest on, which were so lost. When that is most of as many
    as the window is wide, or a probe, it closes: until a machine has outlived these minutes, one that runs is no proof.
    """
    known = replace(pressure, window=max(1, pressure.window - machines))
    old = pressure.level > 0 and submitted < pressure.blocked_at
    if known.early_loss is None:
        if 2 * sum(fates[: known.window]) <= known.window:
            return known
        known = replace(known, window=max(1, known.window // 2), ran=0, failed=0, probing=True, early_loss=failure)
    return known if old else refused(replace(known, early_loss=failure), failure, now, limits, boot=True)


def outlived(pressure: Pressure, submitted: float) -> Pressure:
    """A machine has outlived its first minutes: asked for since early losses closed the window, it shows that they are
    over."""
    if pressure.early_loss is None or submitted < pressure.blocked_at:
        return pressure
    return _recovered(replace(pressure, early_loss=None))


def failed(
    pressure: Pressure, failure: Failure, submitted: float, now: float, limits: Limits, *, boot: bool = False
) -> Pressure:
    """A create failed, or (``boot``) a machine whose create was taken.

    Of a class that the next create would meet again, or as a probe, it blocks at once. What was asked for before a
    series of back-offs began says nothing new about the pool.
    """
    counted = replace(pressure, failed=pressure.failed + 1)
    old = pressure.level > 0 and submitted < pressure.blocked_at
    if not (old and pressure.probing):
        counted = replace(counted, failure=failure, boot=boot)
    if not old and (pressure.probing or failure.error not in ROUND_ERRORS):
        counted = refused(counted, failure, now, limits, boot=boot)
    return _judged(counted, now, limits)


def refused(pressure: Pressure, failure: Failure, now: float, limits: Limits, *, boot: bool = False) -> Pressure:
    """The pool does not take creates now: back off, once for all failures of one instant."""
    if blocked(pressure, now):
        return pressure
    level = pressure.level + 1
    return replace(
        pressure,
        failure=failure,
        boot=boot,
        level=level,
        probing=pressure.probing or failure.error is not ErrorClass.THROTTLED,
        blocked_at=now,
        retry_at=now + backoff_seconds(level, limits, f"{limits.prefix}/{pressure.spec}/{now}"),
    )


def throttled(pressure: Pressure, failure: Failure, wait: float, now: float) -> Pressure:
    """The pool is too busy, and said how long it wants to be left alone: that long, and no more.

    Whatever else it backs off from goes on, with its own probes.
    """
    later = replace(pressure, retry_at=max(pressure.retry_at, now + wait))
    backing_off = pressure.failure if pressure.level > 0 else None
    if backing_off is not None and backing_off.error is not ErrorClass.THROTTLED:
        return later
    return replace(later, failure=failure, boot=False, level=max(1, pressure.level), blocked_at=now)


def pausing(pressure: Pressure) -> bool:
    """Backing off only because calls came too often or were not answered: it may take them all again soon."""
    error = pressure.failure.error if pressure.failure else None
    return pressure.level > 0 and not pressure.boot and (error is ErrorClass.THROTTLED or error in AMBIGUOUS_ERRORS)


def backoff_seconds(level: int, limits: Limits, seed: str) -> float:
    """Exponential in ``level`` (1, 2, …), from half to the whole of each step so that pools do not retry in step."""
    step = min(limits.backoff_last, limits.backoff_first * 2.0 ** min(level - 1, 32))
    return step * random.Random(seed).uniform(0.5, 1.0)


def _recovered(pressure: Pressure) -> Pressure:
    """What it backed off from is over; but of early losses neither a create that is taken nor a machine that runs says
    anything."""
    if pressure.early_loss is not None:
        return replace(pressure, retry_at=0.0, failure=pressure.early_loss, boot=True)
    return replace(pressure, level=0, probing=False, retry_at=0.0, failure=None, boot=False)


def _judged(pressure: Pressure, now: float, limits: Limits) -> Pressure:
    """At the end of a round: halve if most of it failed, and back off, unless a probe is to tell of the pool."""
    if pressure.ran + pressure.failed < pressure.window:
        return pressure
    over = replace(pressure, ran=0, failed=0)
    if pressure.failed <= pressure.ran or pressure.failure is None:
        return over
    halved = replace(over, window=max(1, pressure.window // 2))
    return halved if halved.probing else refused(halved, pressure.failure, now, limits, boot=pressure.boot)
