"""Questions that a command asks the pools' places, all at once: what they hold, and what is wrong with them."""

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
from provisioner.model import ErrorClass, Failure, Look, Memory, Snapshot, Unobserved
from provisioner.settings.tree import Settings

NOTHING: Mapping[str, Mapping[str, str]] = MappingProxyType({})
LOOK_SECONDS = 30.0
"""Seconds that a command tries to observe the pools."""
CHECK_SECONDS = 10.0
"""Seconds for which a place is asked about its settings. A start waits no longer: what is wrong shows itself later."""
ANSWER_SECONDS = 2.0
"""Seconds for which the findings of a place are waited for after its own time is over: one may forbid the start."""
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
    for name, call in calls.items():  # The end of Python would wait for the threads of an executor.
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
    except BaseException as error:  # noqa: BLE001 - the caller of all_at_once raises the error
        future.set_exception(error)


def live_findings(backends: Mapping[str, Backend], what: str = "") -> list[Finding]:
    """Return the findings on the pools' places; ``what`` as of ``all_at_once``."""
    checkable = {name: backend for name, backend in backends.items() if isinstance(backend, Checkable)}
    questions = {name: partial(backend.check, CHECK_SECONDS) for name, backend in checkable.items()}
    return ask_all(questions, what, CHECK_SECONDS + ANSWER_SECONDS)


def ask_all(
    questions: Mapping[str, Callable[[], list[Finding]]], what: str = "", seconds: float = math.inf
) -> list[Finding]:
    """Findings on all pools by name, asked at the same time; one on each that does not answer, too.

    ``what`` and ``seconds`` as of ``all_at_once``.
    """

    def ask(name: str) -> list[Finding]:
        try:
            return questions[name]()
        except BackendError as error:
            return [Finding(name, Severity.ERROR, f"cannot be checked: {error.failure.text}")]

    answers = all_at_once({name: partial(ask, name) for name in questions}, what, seconds)
    silent = f"cannot be checked: no answer within {seconds:g} s"
    return [finding for name in questions for finding in answers.get(name, [Finding(name, Severity.ERROR, silent)])]


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
