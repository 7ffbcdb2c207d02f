"""Looks at all pools, once and outside of a loop."""

from __future__ import annotations

import time
from collections.abc import Mapping

from provisioner.backends import Backend, BackendError
from provisioner.loop.clock import LoopClock
from provisioner.loop.observers import FOR_PEOPLE
from provisioner.model import Look, Unobserved
from provisioner.settings.tree import Settings

LOOK_SECONDS = 30.0
"""How long a command tries to see a pool."""


def look(backends: Mapping[str, Backend], now: float, seconds: float = LOOK_SECONDS) -> dict[str, Look]:
    """A complete look at each pool, or the failure of the look."""
    deadline = time.monotonic() + seconds
    return {name: _look(backend, now, deadline) for name, backend in backends.items()}


def _look(backend: Backend, now: float, deadline: float) -> Look:
    """Look again until the deadline, but only once more after a failure that a person has to mend."""
    refused = 0
    while True:
        try:
            return backend.observe(now, ())
        except BackendError as error:
            refused += error.failure.error in FOR_PEOPLE
            if refused > 1 or time.monotonic() + 1 >= deadline:
                return Unobserved(backend.pool, now, error.failure)
        time.sleep(1)


def look_once(settings: Settings) -> Mapping[str, Look]:
    """What the pools hold. Raises BackendError when a pool's place cannot be reached by its configuration."""
    from provisioner.backends.registry import close, make_backends

    backends = make_backends(settings.pools, settings.site)
    try:
        return look(backends, LoopClock().now())
    finally:
        close(backends)
