"""Looks at all pools, once and outside of a loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

from provisioner.backends import Backend, BackendError
from provisioner.loop.clock import LoopClock
from provisioner.loop.observers import FOR_PEOPLE
from provisioner.model import Look, Memory, Snapshot, Unobserved
from provisioner.settings.tree import Settings

NOTHING: Mapping[str, Mapping[str, str]] = MappingProxyType({})
LOOK_SECONDS = 30.0
"""How long a command tries to see a pool."""


def look(
    backends: Mapping[str, Backend],
    now: float,
    seconds: float = LOOK_SECONDS,
    sought: Mapping[str, Mapping[str, str]] = NOTHING,
) -> dict[str, Look]:
    """A complete look at each pool, or its failure. ``sought``: by pool, as ``Backend.observe`` takes it."""
    deadline = time.monotonic() + seconds
    return {name: _look(backend, now, deadline, sought.get(name, {})) for name, backend in backends.items()}


def _look(backend: Backend, now: float, deadline: float, sought: Mapping[str, str]) -> Look:
    """Look again until the deadline, but only once more after a failure that a person has to mend."""
    refused = 0
    while True:
        try:
            return backend.observe(now, sought)
        except BackendError as error:
            refused += error.failure.error in FOR_PEOPLE
            if refused > 1 or time.monotonic() + 1 >= deadline:
                return Unobserved(backend.pool, now, error.failure)
        time.sleep(1)


def look_once(settings: Settings, memory: Memory | None) -> Mapping[str, Look]:
    """What the pools hold, also under those names of ``memory`` (None: there is none) that they do not show as ours.

    Raises BackendError when a pool's place cannot be reached by its configuration.
    """
    from provisioner.backends.registry import close, make_backends

    backends = make_backends(settings.pools, settings.site)
    try:
        now = LoopClock().now()
        looks = look(backends, now)
        lacking = _lacking(looks, memory) if memory else {}
        return look(backends, now, sought=lacking) if lacking else looks
    finally:
        close(backends)


def _lacking(looks: Mapping[str, Look], memory: Memory) -> dict[str, dict[str, str]]:
    """By pool: the machines that should be there and are not shown, each with its uid."""
    shown = {name: look.machines for name, look in looks.items() if isinstance(look, Snapshot)}
    lacking: dict[str, dict[str, str]] = {}
    for _, slot in memory.slots:
        if not slot.gone and slot.submitted is not None and slot.name not in shown.get(slot.pool, {slot.name}):
            lacking.setdefault(slot.pool, {})[slot.name] = slot.fingerprint.uid
    return lacking
