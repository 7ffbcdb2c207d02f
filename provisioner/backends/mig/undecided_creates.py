"""Creates that Compute took and has not decided on: asked for again with the observations, so that none holds up its
pool.

An operation says only whether the group accepted the names; one that is refused late is shown as machines that are
gone, with Compute's words, until they are deleted.
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

GIVE_UP = 1800.0
"""Seconds after which an undecided operation is no longer asked for: its slots' own deadlines have passed."""

MOST = 10
"""Operations that are asked for with one observation: it must not use up the calls that all observations of a project
share."""


@dataclass(frozen=True, slots=True)
class _Undecided:
    names: tuple[str, ...]
    until: float


class Admissions:
    """The undecided creates of one group. Used by several threads at once."""

    def __init__(self, lag: float) -> None:
        """``lag``: seconds that the group's lists may be late."""
        self._lag = lag
        self._lock = threading.Lock()
        self._undecided: dict[str, _Undecided] = {}
        self._refused: dict[str, tuple[float, Machine]] = {}
        """Refused names as machines, each with the monotonic time from which it is shown."""

    def expect(self, operation: str, names: Sequence[str]) -> None:
        """Ask for this operation from the next observation on."""
        with self._lock:
            self._undecided[operation] = _Undecided(tuple(names), time.monotonic() + GIVE_UP)

    def ask(self, read: Callable[[str], Mapping[str, Any] | None], members: Collection[str]) -> None:
        """Ask for some that are undecided, in turn; ``read`` gives an operation, or None when it cannot.

        One whose names are all among ``members`` was accepted, and is not asked for.
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
                self._decided(name, waiting, operation)
            elif time.monotonic() > waiting.until:
                self._decided(name, waiting, {})
            else:  # after the others
                with self._lock:
                    self._undecided[name] = self._undecided.pop(name)

    def refused(self, members: Collection[str]) -> Mapping[str, Machine]:
        """The names that were refused, as machines. One that is a member all the same was asked for twice."""
        now = time.monotonic()
        with self._lock:
            return {name: one for name, (since, one) in self._refused.items() if now >= since and name not in members}

    def forget(self, names: Collection[str]) -> None:
        """The group was asked to delete these names: show them no more."""
        with self._lock:
            for name in names:
                self._refused.pop(name, None)

    def _decided(self, name: str, waiting: _Undecided, operation: Mapping[str, Any]) -> None:
        with self._lock:
            self._undecided.pop(name, None)  # also an operation that is not understood: it would fail each observation
            error = operation_error(operation)
            if error is not None:
                refusal = raised(error)
                # Some of the names are taken; which, the lists will show.
                since = time.monotonic() + (self._lag if isinstance(refusal, AlreadyExists) else 0.0)
                for one in waiting.names:
                    self._refused[one] = since, Machine(one, Phase.GONE, failure=refusal.failure)
