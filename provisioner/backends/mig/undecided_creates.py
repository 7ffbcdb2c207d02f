"""Creates that Compute has received but not decided soon. Observations read the operations of these creates, so that
the pool does not have to wait for the decision.

An operation shows only whether the group accepted the names. If the group refuses a name late, snapshots show its
machine as gone until the loop deletes it. This machine has Compute's message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from provisioner.backends.mig.errors import AlreadyExists, operation_error, raised
from provisioner.model import Machine, Phase

GIVE_UP_SECONDS = 1800.0
"""Seconds after which an undecided operation is no longer read. By then, the slots of the create have passed their boot
deadlines."""

MOST = 10
"""Number of operations that one observation reads. More reads might use up the calls that all observations of a project
share."""


@dataclass(frozen=True, slots=True)
class _Undecided:
    names: tuple[str, ...]
    until: float


class UndecidedCreates:
    """The undecided creates of one group. Thread-safe."""

    def __init__(self, lag: float) -> None:
        """Store no creates yet. ``lag``: seconds by which the lists of the group may be late."""
        self._lag = lag
        self._lock = threading.Lock()
        self._undecided: dict[str, _Undecided] = {}
        self._refused: dict[str, tuple[float, Machine]] = {}
        """By refused name, the machine that shows the refusal, and the monotonic time from which it is shown."""

    def expect(self, operation: str, names: Sequence[str]) -> None:
        """Store the operation of a create, so that the next observations read the operation."""
        with self._lock:
            self._undecided[operation] = _Undecided(tuple(names), time.monotonic() + GIVE_UP_SECONDS)

    def read_operations(self, read: Callable[[str], Mapping[str, Any] | None], members: Collection[str]) -> None:
        """Read the first ``MOST`` undecided operations. An operation that stays undecided then moves behind the others.
        ``read`` returns an operation; None if it is unreadable.

        An operation whose names are all among ``members`` was accepted and is not read.
        """
        with self._lock:
            self._undecided = {
                name: waiting
                for name, waiting in self._undecided.items()
                if not all(one in members for one in waiting.names)
            }
            undecided = dict(islice(self._undecided.items(), MOST))
        for name, waiting in undecided.items():
            operation = read(name)
            if operation is not None and operation.get("status") == "DONE":
                self._note_decision(name, waiting, operation)
            elif time.monotonic() > waiting.until:
                self._note_decision(name, waiting, {})
            else:  # move the operation behind the others
                with self._lock:
                    self._undecided[name] = self._undecided.pop(name)

    def refused_machines(self, members: Collection[str]) -> Mapping[str, Machine]:
        """Return the refused names as machines. A refused name that is a member is left out, because the group accepted
        its first create and refused only its second."""
        now = time.monotonic()
        with self._lock:
            return {name: one for name, (since, one) in self._refused.items() if now >= since and name not in members}

    def forget(self, names: Collection[str]) -> None:
        """Forget these refused names, because the group was asked to delete them."""
        with self._lock:
            for name in names:
                self._refused.pop(name, None)

    def _note_decision(self, name: str, waiting: _Undecided, operation: Mapping[str, Any]) -> None:
        with self._lock:
            self._undecided.pop(name, None)  # even if the operation cannot be parsed and fails this observation
            error = operation_error(operation)
            if error is not None:
                refusal = raised(error)
                # Some of the names exist already. The lists will show which.
                since = time.monotonic() + (self._lag if isinstance(refusal, AlreadyExists) else 0.0)
                for one in waiting.names:
                    self._refused[one] = since, Machine(one, Phase.GONE, failure=refusal.failure)
