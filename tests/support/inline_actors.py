"""Who carries out batches where time is virtual, or a test wants one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from provisioner.backends import Backend
from provisioner.loop.batch_threads import Batch, Results, carry_out


class InlineActors:
    """Carries a batch out at once: one step after the other, as virtual time needs it."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = backends
        self._ended: list[Results] = []

    def busy(self) -> Set[str]:
        """Return an empty set, because no actor is ever busy."""
        return frozenset()

    def submit(self, batch: Batch, may_start: Callable[[], bool]) -> None:
        """Do it now, whole. ``may_start`` is ignored: it asks the real clock, by which a busy machine sends a part."""
        self._ended.append(carry_out(batch, self._backends[batch.pool], lambda: True))

    def collect(self) -> list[Results]:
        """Return the results since the last call."""
        ended, self._ended = self._ended, []
        return ended
