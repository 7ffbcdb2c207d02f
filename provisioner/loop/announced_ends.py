"""Early notices: a place has said, through its events, that a machine will end, before an observation can show it.

They only add to what an observation shows of a machine, and are never state: an observation begun after the announced
end says by itself what became of the machine. No I/O, no clock, no logger."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from provisioner.model import Machine, Notice, Observation, Phase, Snapshot

FORGOTTEN_AFTER = 600.0
"""Seconds after its end that a notice is forgotten, whether or not an observation was possible: longer than any list
lags."""

ALIVE = frozenset({Phase.RUNNING, Phase.STOPPING})
"""Phases of which a notice says something: what does not run yet fails if it ends, and what is gone has ended."""


class Notices:
    """What was announced, by machine. Heard from any thread; read by one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, Notice] = {}
        """In the order in which they were heard, which is about that of their ends."""
        self._shown: dict[str, tuple[Mapping[str, Machine], Mapping[str, Machine], Mapping[str, Machine]]] = {}
        """By pool: the machines of a snapshot, those that a notice was added to, and the two together."""

    def hear(self, name: str, notice: Notice, now: float) -> None:
        """A machine will end; of two announcements of one machine the first stands."""
        with self._lock:
            while self._held and _forgotten(next(iter(self._held.values())), now):
                del self._held[next(iter(self._held))]
            if name in self._held and _forgotten(self._held[name], now):
                del self._held[name]
            self._held.setdefault(name, notice)

    def added_to(self, observation: Observation, lag: float) -> Observation:
        """The observation with these notices; the very same machines as last time when nothing changed.

        A notice counts until an observation begins ``lag`` seconds (how old lists may be) after its end.
        """
        with self._lock:
            held = self._held.copy()
        if not held or not isinstance(observation, Snapshot):
            return observation
        noticed = {
            name: replace(machine, notice=notice)
            for name, notice in held.items()
            if (machine := observation.machines.get(name)) is not None
            and machine.phase in ALIVE
            and observation.began <= notice.ends + lag
            and (machine.notice is None or notice.ends < machine.notice.ends)
        }
        return replace(observation, machines=self._together(observation, noticed)) if noticed else observation

    def _together(self, observation: Snapshot, noticed: Mapping[str, Machine]) -> Mapping[str, Machine]:
        machines, before, together = self._shown.get(observation.pool, ({}, {}, {}))
        if machines is not observation.machines or before != noticed:
            together = {**observation.machines, **noticed}
            self._shown[observation.pool] = (observation.machines, noticed, together)
        return together


def _forgotten(notice: Notice, now: float) -> bool:
    return notice.ends + FORGOTTEN_AFTER <= now
