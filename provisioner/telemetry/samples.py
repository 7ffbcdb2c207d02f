"""How many machines were wanted, ran and were pending, minute by minute over a day; held in memory alone."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from provisioner.model import Memory, PendingReason
from provisioner.telemetry.machine_rows import by_pool, tally_of

EVERY = 60.0
"""Seconds between two samples: fine enough to see a burst start, and a day of them is a few hundred kilobytes."""

HELD = 1440
"""Samples that are held: a day."""

PlottedSubject = tuple[str, str]
"""``pool`` or ``template``, and a name; two empty words are all machines."""

ALL: PlottedSubject = ("", "")


class Point(NamedTuple):
    """Machines at one moment."""

    wanted: int = 0
    running: int = 0
    pending: int = 0


class Moment(NamedTuple):
    """A point, and its epoch seconds."""

    wall: float
    point: Point


class Samples:
    """Takes in each cycle in the loop's thread; is asked in the server's."""

    def __init__(self) -> None:
        self._ring: deque[tuple[float, Mapping[PlottedSubject, Point]]] = deque(maxlen=HELD)
        """Epoch seconds, and the points at that time."""
        self._memory: Memory | None = None
        """The number of machines that was counted last."""

    def take(self, memory: Memory | None, deferred: Mapping[tuple[str, str, PendingReason], int], wall: float) -> None:
        """Take a sample, where the last one is ``EVERY`` seconds old or the clock was set back."""
        last = self._ring[-1] if self._ring else None
        if memory is None or (last is not None and 0 <= wall - last[0] < EVERY):
            return
        self._ring.append((wall, last[1] if last and memory is self._memory else points(memory, deferred)))
        self._memory = memory

    def of(self, subject: PlottedSubject) -> Sequence[Moment]:
        """The samples of a pool, a template or all machines, the oldest first."""
        return [Moment(wall, points.get(subject, Point())) for wall, points in tuple(self._ring)]


def points(memory: Memory, deferred: Mapping[tuple[str, str, PendingReason], int]) -> Mapping[PlottedSubject, Point]:
    """The machines of all pools and templates; wanted is what runs, is pending or is deferred. Pure."""
    points = defaultdict[PlottedSubject, Point](Point, {ALL: Point()})

    def add(pool: str, template: str, more: Point) -> None:
        for subject in (ALL, ("pool", pool), ("template", template)):
            points[subject] = Point(*map(sum, zip(points[subject], more, strict=True)))

    for record in memory.requests.values():
        for pool, some in by_pool(tally_of(record)).items():
            add(pool, record.template, Point(some.running + some.pending, some.running, some.pending))
    for (pool, template, _), machines in deferred.items():
        add(pool, template, Point(wanted=machines))
    return dict(points)
