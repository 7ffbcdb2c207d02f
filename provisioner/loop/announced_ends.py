"""Announced ends: an event may announce the end of a machine before an observation can show the end.

Such an announcement (a notice) is added to the observed machine and is never stored. An observation that begins after
the announced end shows whether the machine has ended. The notice then no longer matters.

The module uses no I/O, clock or logger.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from provisioner.model import Machine, Notice, Observation, Phase, Snapshot

RETENTION_SECONDS = 600.0
"""Seconds for which a notice is kept after the announced end if no observation was possible meanwhile. Every list is
younger than this, so an older notice has no use."""

ALIVE = frozenset({Phase.RUNNING, Phase.STOPPING})
"""Phases to which a notice applies. A machine that does not run yet needs no notice, because its end is a failure. A
machine that is gone has already ended."""


class Notices:
    """Announced ends, by machine name. Any thread may add a notice, but only one thread reads the notices."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notices: dict[str, Notice] = {}
        """Notices in the order of their arrival, which is roughly the order of their ends."""
        self._merged: dict[str, tuple[Mapping[str, Machine], Mapping[str, Machine], Mapping[str, Machine]]] = {}
        """For each pool, three mappings of the last merge: the snapshot's machines, the machines with a notice, and the
        merged mapping."""

    def add(self, name: str, notice: Notice, now: float) -> None:
        """Add the notice that a machine will end. While a notice for the machine is valid, further notices for it are
        ignored."""
        with self._lock:
            while self._notices and _is_expired(next(iter(self._notices.values())), now):
                del self._notices[next(iter(self._notices))]
            if name in self._notices and _is_expired(self._notices[name], now):
                del self._notices[name]
            self._notices.setdefault(name, notice)

    def add_to(self, observation: Observation, lag: float) -> Observation:
        """Return the observation with the notices added. If neither machines nor notices have changed, the mapping of
        machines is the same object as at the previous call.

        ``lag``: the greatest age of a list in seconds. A notice is ignored if the observation begins more than ``lag``
        after the announced end.
        """
        with self._lock:
            notices = self._notices.copy()
        if not notices or not isinstance(observation, Snapshot):
            return observation
        noticed = {
            name: replace(machine, notice=notice)
            for name, notice in notices.items()
            if (machine := observation.machines.get(name)) is not None
            and machine.phase in ALIVE
            and observation.began_at <= notice.ends_at + lag
            and (machine.notice is None or notice.ends_at < machine.notice.ends_at)
        }
        return replace(observation, machines=self._merge(observation, noticed)) if noticed else observation

    def _merge(self, observation: Snapshot, noticed: Mapping[str, Machine]) -> Mapping[str, Machine]:
        machines, before, merged = self._merged.get(observation.pool, ({}, {}, {}))
        if machines is not observation.machines or before != noticed:
            merged = {**observation.machines, **noticed}
            self._merged[observation.pool] = (observation.machines, noticed, merged)
        return merged


def _is_expired(notice: Notice, now: float) -> bool:
    return notice.ends_at + RETENTION_SECONDS <= now
