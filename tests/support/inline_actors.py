"""Actors that carry out batches at once, for virtual time and for tests that go step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from provisioner.backends import Backend
from provisioner.loop.batch_threads import Batch, Results, carry_out


class InlineActors:
    """Actors that carry out each batch at once, in the thread of the caller."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = backends
        self._ended: list[Results] = []

    def busy(self) -> Set[str]:
        """Return an empty set, because no actor is ever busy."""
        return frozenset()

    def submit(self, batch: Batch, may_start: Callable[[], bool]) -> None:
        """Carry out the whole batch now. ``may_start`` is ignored, because it follows the real clock: on a busy
        machine, only a part of the batch would be carried out."""
        self._ended.append(carry_out(batch, self._backends[batch.pool], lambda: True))

    def collect(self) -> list[Results]:
        """Return the results since the last call."""
        ended, self._ended = self._ended, []
        return ended
