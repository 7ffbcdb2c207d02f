"""Observations and checks of all pools at once, for commands."""

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

from provisioner.backends import Backend, BackendError, Checkable, Finding, Severity
from provisioner.backends.registry import close, make_backends
from provisioner.loop.clock import LoopClock
from provisioner.model import ErrorClass, Failure, Memory, Observation, ObservationFailed, find_snapshots
from provisioner.settings.definitions import Settings

NOT_SOUGHT: Mapping[str, Mapping[str, str]] = MappingProxyType({})
OBSERVE_SECONDS = 30.0
"""Seconds within which a command repeats a failed observation."""
CHECK_SECONDS = 10.0
"""Seconds within which a backend must have checked the place of its pool. The start of the loop waits no longer,
because the loop would notice a mistake later, too."""
ANSWER_SECONDS = 2.0
"""Seconds to wait for a backend's findings after ``CHECK_SECONDS``. The wait is worth its time, because a finding may
forbid the start of the loop."""
MESSAGE_SECONDS = 5.0
"""Seconds between two messages of a command that waits."""
WAITING = "Waiting"
"""First word of the messages of a command that waits."""

T = TypeVar("T")


def observe(
    backends: Mapping[str, Backend],
    now: float,
    seconds: float = OBSERVE_SECONDS,
    sought: Mapping[str, Mapping[str, str]] = NOT_SOUGHT,
) -> dict[str, Observation]:
    """Observe all pools at once. Return an observation of each pool; for a failed observation, return the failure.

    ``sought``: the machines to pass to ``Backend.observe``, by pool. A failed observation is repeated until ``seconds``
    have passed. After a failure that an operator has to fix, it is repeated only once.
    """
    deadline = time.monotonic() + seconds
    seen = all_at_once(
        {name: partial(_observe, backend, now, deadline, sought.get(name, {})) for name, backend in backends.items()},
        "pools",
        max(seconds, OBSERVE_SECONDS),
    )
    slow = Failure(ErrorClass.TIMEOUT, f"no complete observation within {OBSERVE_SECONDS:.0f} s")
    return {name: seen.get(name) or ObservationFailed(backend.pool, now, slow) for name, backend in backends.items()}


def all_at_once(calls: Mapping[str, Callable[[], T]], noun: str, seconds: float = math.inf) -> dict[str, T]:
    """Run all calls at once. Return the results of the calls that ended within ``seconds``, by the call's name.

    If a call raises an error, raise this error. Every ``MESSAGE_SECONDS``, a message on standard error names the
    unfinished calls. ``noun``: the plural noun for the calls in this message; empty to write no message.
    """
    started_at, futures = time.monotonic(), {name: Future[T]() for name in calls}
    for name, call in calls.items():  # use no executor, because its threads would delay the end of the process
        threading.Thread(target=_settle, args=(futures[name], call), name=f"call {name}", daemon=True).start()
    passed = 0.0
    while unfinished := wait(futures.values(), min(MESSAGE_SECONDS, seconds - passed)).not_done:
        passed = time.monotonic() - started_at
        if passed >= seconds:
            break
        if noun and sys.stderr:
            names = ", ".join(name for name, future in futures.items() if future in unfinished)
            with suppress(OSError):  # a full or closed standard error must not prevent the result
                print(f"{WAITING} for {noun}, {passed:.0f} s so far: {names}", file=sys.stderr, flush=True)
    return {name: future.result() for name, future in futures.items() if future.done()}


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    """Run the call, and store its result or its error in ``future``."""
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - the caller of all_at_once raises the error
        future.set_exception(error)


def live_findings(backends: Mapping[str, Backend], noun: str = "") -> list[Finding]:
    """Return the findings about the places of the pools, from the checks of their backends. ``noun``: see
    ``all_at_once``."""
    checkable = {name: backend for name, backend in backends.items() if isinstance(backend, Checkable)}
    questions = {name: partial(backend.check, CHECK_SECONDS) for name, backend in checkable.items()}
    return ask_all(questions, noun, CHECK_SECONDS + ANSWER_SECONDS)


def ask_all(
    questions: Mapping[str, Callable[[], list[Finding]]], noun: str = "", seconds: float = math.inf
) -> list[Finding]:
    """Call all ``questions`` at once, and return their findings. Each question checks one thing, for example a pool.

    If a question raises BackendError or gives no result in time, return an error as its finding. ``noun`` and
    ``seconds``: see ``all_at_once``.
    """

    def ask(name: str) -> list[Finding]:
        try:
            return questions[name]()
        except BackendError as error:
            return [Finding(name, Severity.ERROR, f"cannot be checked: {error.failure.text}")]

    answers = all_at_once({name: partial(ask, name) for name in questions}, noun, seconds)
    silent = f"cannot be checked: no answer within {seconds:g} s"
    return [finding for name in questions for finding in answers.get(name, [Finding(name, Severity.ERROR, silent)])]


def _observe(backend: Backend, now: float, deadline: float, sought: Mapping[str, str]) -> Observation:
    """Observe a pool again and again until an observation succeeds or the deadline comes. After a failure that an
    operator has to fix, observe only once more."""
    lasting_failures = 0
    while True:
        try:
            return backend.observe(now, sought)
        except BackendError as error:
            lasting_failures += error.failure.error.needs_operator_to_observe
            pause = max(1.0, error.retry_after or 0.0)
            if lasting_failures > 1 or time.monotonic() + pause >= deadline:
                return ObservationFailed(backend.pool, now, error.failure)
        time.sleep(pause)


def observe_once(settings: Settings, memory: Memory | None) -> Mapping[str, Observation]:
    """Observe all pools. If machines of ``memory`` are missing, observe all pools again, and search for these machines
    by name, because the machines may have lost their labels.

    Raises BackendError if the configuration of a pool is wrong or names no reachable place.
    """
    backends = make_backends(settings.pools, settings.site)
    try:
        now = LoopClock().now()
        observations = observe(backends, now)
        missing = _missing_machines(observations, memory) if memory else {}
        again = observe(backends, now, sought=missing) if missing else {}
        return {**observations, **find_snapshots(again)}
    finally:
        close(backends)


def _missing_machines(observations: Mapping[str, Observation], memory: Memory) -> dict[str, dict[str, str]]:
    """Return the machines that memory has and a snapshot lacks, by pool, each with its uid."""
    shown = {name: snapshot.machines for name, snapshot in find_snapshots(observations).items()}
    missing: dict[str, dict[str, str]] = {}
    for _, slot in memory.slots:
        if slot.may_exist and slot.name not in shown.get(slot.pool, {slot.name}):
            missing.setdefault(slot.pool, {})[slot.name] = slot.observed.fingerprint.uid
    return missing
