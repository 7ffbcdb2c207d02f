"""Looks at all pools and the loop's decisions for a command: without a loop, and without sending an action."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from provisioner.backends import Backend, BackendError
from provisioner.loop.actors import ThreadedActors
from provisioner.loop.clock import LoopClock
from provisioner.loop.cycle import Mandate, Reconciler
from provisioner.model import ErrorClass, Failure, Look, Memory, Snapshot, Unobserved
from provisioner.settings.tree import Settings
from provisioner.state.errors import StateMissing
from provisioner.state.interfaces import State

NOTHING: Mapping[str, Mapping[str, str]] = MappingProxyType({})
LOOK_SECONDS = 30.0
"""Seconds that a command tries to observe the pools."""
SAY_SECONDS = 5.0
"""Seconds between two messages of a command about what it waits for."""
WAITING = "Waiting"
"""The first word of such a message."""

T = TypeVar("T")


def look(
    backends: Mapping[str, Backend],
    now: float,
    seconds: float = LOOK_SECONDS,
    sought: Mapping[str, Mapping[str, str]] = NOTHING,
) -> dict[str, Look]:
    """A complete look at each pool, all at once, or its failure. ``sought``: by pool, as ``Backend.observe`` takes it.

    Within ``seconds`` a look that failed is tried again.
    """
    deadline = time.monotonic() + seconds
    seen = all_at_once(
        {name: partial(_look, backend, now, deadline, sought.get(name, {})) for name, backend in backends.items()},
        "pools",
        max(seconds, LOOK_SECONDS),
    )
    slow = Failure(ErrorClass.TIMEOUT, f"no complete look within {LOOK_SECONDS:.0f} s")
    return {name: seen.get(name) or Unobserved(backend.pool, now, slow) for name, backend in backends.items()}


def all_at_once(calls: Mapping[str, Callable[[], T]], what: str, seconds: float = math.inf) -> dict[str, T]:
    """Make all calls at once; the results, by name, of those that ended within ``seconds``, or what one raises.

    Standard error says now and then what is waited for; ``what``: the plural of its kind, empty to be silent.
    """
    begun, futures = time.monotonic(), {name: Future[T]() for name in calls}
    for name, call in calls.items():
        threading.Thread(target=_settle, args=(futures[name], call), name=f"call {name}", daemon=True).start()
    passed = 0.0
    while left := wait(futures.values(), min(SAY_SECONDS, seconds - passed)).not_done:
        passed = time.monotonic() - begun
        if passed >= seconds:
            break
        if what and sys.stderr:
            names = ", ".join(name for name, future in futures.items() if future in left)
            with suppress(OSError):  # a full or closed standard error must not cost the answer
                print(f"{WAITING} for {what}, {passed:.0f} s so far: {names}", file=sys.stderr, flush=True)
    return {name: future.result() for name, future in futures.items() if future.done()}


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - who waits raises it
        future.set_exception(error)


def _look(backend: Backend, now: float, deadline: float, sought: Mapping[str, str]) -> Look:
    """Look again until the deadline, but only once more after a failure that a person has to mend."""
    refused = 0
    while True:
        try:
            return backend.observe(now, sought)
        except BackendError as error:
            refused += error.failure.error.stays_unseen
            pause = max(1.0, error.retry_after or 0.0)
            if refused > 1 or time.monotonic() + pause >= deadline:
                return Unobserved(backend.pool, now, error.failure)
        time.sleep(pause)


def look_once(settings: Settings, memory: Memory | None) -> Mapping[str, Look]:
    """Observe the pools, with a second look for machines of ``memory`` (None: there is none) that they do not show.

    Raises BackendError when a pool's place cannot be reached by its configuration.
    """
    from provisioner.backends.registry import close, make_backends

    backends = make_backends(settings.pools, settings.site)
    try:
        now = LoopClock().now()
        looks = look(backends, now)
        lacking = _lacking(looks, memory) if memory else {}
        again = look(backends, now, sought=lacking) if lacking else {}
        return {**looks, **{name: one for name, one in again.items() if isinstance(one, Snapshot)}}
    finally:
        close(backends)


def _lacking(looks: Mapping[str, Look], memory: Memory) -> dict[str, dict[str, str]]:
    """By pool: the machines that should be there and are not shown, each with its uid."""
    shown = {name: look.machines for name, look in looks.items() if isinstance(look, Snapshot)}
    lacking: dict[str, dict[str, str]] = {}
    for _, slot in memory.slots:
        if not slot.deletion.gone and slot.submitted is not None and slot.name not in shown.get(slot.pool, {slot.name}):
            lacking.setdefault(slot.pool, {})[slot.name] = slot.observed.fingerprint.uid
    return lacking


def clock_of(state: State) -> LoopClock:
    """Loop time as the next loop would have it."""
    try:
        return LoopClock(state.memory.read())
    except StateMissing:
        return LoopClock()


def reconciler(settings: Settings, state: State, clock: LoopClock, epoch: int = 0) -> Reconciler:
    """A Reconciler that has no pool to act in; it writes as the loop of that ``epoch``."""
    return Reconciler(
        clock=clock,
        state=state,
        actors=ThreadedActors({}, wake=lambda: None),
        limits=settings.limits(),
        provisioner=settings.instance,
        mandate=Mandate(epoch),
    )
