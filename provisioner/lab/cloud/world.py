"""The parts that the whole embedded cloud shares: clock, random numbers, pending events, faults and call counters.

Time advances only in :meth:`World.advance`. Only one thread may use a world at a time.

The world itself has one fault mode, for all targets.

* ``clock_skew``: every time in a response, also in the header ``Date``, is wrong by ``seconds`` (3600)
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A fault of the embedded cloud. The fault strikes machines, groups, namespaces or calls whose name matches
    ``target``."""

    mode: str
    """The mode of the fault. Each API documents its modes."""
    target: str = ".*"
    """Regular expression, which must match the whole name of a target, such as a namespace, a MIG, a machine or a
    method."""
    rate: float = 1.0
    """Probability of a strike at each chance. A chance is a moment at which the fault could strike."""
    after: int = 0
    """Number of chances at the beginning at which the fault does not strike."""
    limit: int | None = None
    """Maximum number of strikes; None: no limit."""
    start: float = 0.0
    """Simulated time in seconds before which the fault does not strike."""
    end: float = math.inf
    params: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Fault:
        """Parse a fault from JSON. Raise ValueError with the field's name for a mistake."""
        names = {"mode", "target", "rate", "after", "limit", "start", "end", "params"}
        unknown = sorted(set(document) - names)
        if unknown:
            raise ValueError(f"{unknown[0]}: unknown field of a fault; known: {', '.join(sorted(names))}")
        if not isinstance(document.get("mode"), str):
            raise ValueError(f"mode: expected a name, got {document.get('mode')!r}")
        try:
            re.compile(document.get("target", ".*"))
        except re.error as error:
            raise ValueError(f"target: not a regular expression: {error}") from error
        return cls(**document)


class World:
    """The shared state of the embedded cloud. World time is its simulated time."""

    def __init__(self, *, seed: int = 0, start_wall: float = 1_700_000_000.0) -> None:
        self.now = 0.0
        """World time: simulated seconds since the start of the embedded cloud."""
        self.start_wall = start_wall
        """Epoch seconds at world time 0. Timestamps in responses are ``start_wall + now``."""
        self.seed = seed
        self.random = random.Random(seed)
        self.calls: Counter[str] = Counter()
        """API calls by method, e.g. ``pods.create``, ``instanceGroupManagers.createInstances``."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._faults: list[Fault] = []
        self._skews: list[Fault] = []
        self._chances: Counter[int] = Counter()
        self._strikes: Counter[int] = Counter()

    def wall(self) -> float:
        """Return the simulated time in epoch seconds. While a fault ``clock_skew`` is active, this time is wrong."""
        return self.start_wall + self.now + self.skew()

    def skew(self) -> float:
        """Return the seconds by which faults now make the simulated clock wrong."""
        active = (fault for fault in self._skews if fault.start <= self.now < fault.end)
        return sum(float(fault.params.get("seconds", 3600.0)) for fault in active)

    def after(self, delay: float, event: Callable[[], None]) -> None:
        """Schedule ``event`` in ``delay`` simulated seconds. The event itself has to check at that time whether it
        still applies."""
        heapq.heappush(self._events, (self.now + delay, next(self._order), event))

    def next_event(self) -> float | None:
        """Return the world time of the next pending event; None if there is none."""
        return self._events[0][0] if self._events else None

    def advance(self, to: float) -> None:
        """Advance to world time ``to``, and run every event that is due until then."""
        while self._events and self._events[0][0] <= to:
            at, _, event = heapq.heappop(self._events)
            self.now = max(self.now, at)
            event()
        self.now = max(self.now, to)

    def lognormal(self, median: float, p95: float, *, chance: random.Random | None = None) -> float:
        """Return a random delay in seconds from the distribution with this median and 95th percentile. ``chance``: the
        random generator (None: the world's own)."""
        if median <= 0:
            return 0.0
        return median * math.exp((chance or self.random).gauss(0.0, math.log(p95 / median) / 1.645))

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace all faults. Effects of the old faults stay."""
        self._faults = list(faults)
        self._skews = [fault for fault in faults if fault.mode == "clock_skew"]
        self._chances.clear()
        self._strikes.clear()

    def strikes(self, mode: str, *targets: str, chance: random.Random | None = None) -> Fault | None:
        """Return the fault of this mode that strikes one of ``targets`` now; None if no fault strikes.

        The method tries the matching faults in order, until a fault strikes. A fault strikes with the probability
        ``rate``. ``chance``: the random generator; None for the world's own generator.
        """
        for number, fault in enumerate(self._faults):
            if fault.mode != mode or not fault.start <= self.now < fault.end:
                continue
            if not any(re.fullmatch(fault.target, target) for target in targets):
                continue
            self._chances[number] += 1
            if self._chances[number] <= fault.after or self._strikes[number] == fault.limit:
                continue
            if fault.rate < 1.0 and (chance or self.random).random() >= fault.rate:
                continue
            self._strikes[number] += 1
            return fault
        return None
