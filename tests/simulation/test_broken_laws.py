"""That the stories can fail: for each law the loop is broken on purpose, and a story finds it.

Each variant tells only what may bring its break to light, so that it is found in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from provisioner import demand, draft, housekeeping, model, plan, pressure, reconcile, reflect, returns, status
from provisioner.acting import Actors
from provisioner.model import Look, Machine, Snapshot, Unobserved, Verdict
from provisioner.reconcile import Reconciler
from tests.simulation import story
from tests.simulation.test_laws import Laws, Telling

BOUNDED = settings(
    max_examples=150,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


@dataclass(frozen=True)
class Broken:
    """One law broken in one way."""

    rule: str
    law: str
    """How the judge's words begin."""
    happenings: tuple[str, ...]
    """Rules of the stories that may show it."""
    patches: Callable[[], Sequence[Any]]


def told_with(*happenings: str) -> type[Telling]:
    """Stories in which only these things happen, after a first request."""
    return type("Focused", (Telling,), {name: vars(Laws)[name] for name in ("first_request", *happenings)})


# --- the breaks -------------------------------------------------------------------------------------------------------


def act_before_record() -> Sequence[Any]:
    """The plan's memory is written one cycle late."""
    record = Reconciler._record

    def late(self: Reconciler, memory: model.Memory, now: float) -> None:
        due = getattr(self._last, "held_back", None)
        del due
        record(self, HELD.get(id(self), memory), now)
        HELD[id(self)] = memory
        self.memory = memory

    HELD: dict[int, model.Memory] = {}
    return [patch.object(Reconciler, "_record", late)]
