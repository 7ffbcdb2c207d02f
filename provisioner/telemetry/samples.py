"""How many machines were wanted, ran and were pending, minute by minute over a day; held in memory alone; and
plots of them, as paths of an SVG picture."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from provisioner.model import Memory, PendingReason
from provisioner.telemetry.machine_rows import counts_of

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

    def take(self, memory: Memory | None, deferred: Mapping[tuple[str, str, PendingReason], int], wall: float) -> None:
        """Take a sample, where the last one is ``EVERY`` seconds old or the clock was set back."""
        if memory is not None and not (self._ring and 0 <= wall - self._ring[-1][0] < EVERY):
            self._ring.append((wall, points(memory, deferred)))

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
        for pool, some in counts_of(record).items():
            add(pool, record.template, Point(some.running + some.pending, some.running, some.pending))
    for (pool, template, _), machines in deferred.items():
        add(pool, template, Point(wanted=machines))
    return dict(points)


# --- plots: no input, no output, no clock -----------------------------------------------------------------------------


WIDTH, HEIGHT = 720, 160
"""Width and height of the picture in its own units; the page stretches it."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines of machines wanted, running and pending, and what stands beside and below the picture."""

    wanted: str
    running: str
    pending: str
    area: str
    """The outline of the area below the line of running machines."""
    top: int
    """Machines at the upper edge."""
    begins: str
    """The time at the left edge; the right edge is now."""
    words: str
    """What the picture shows, as text for readers who cannot see it."""


def plot(moments: Sequence[Moment], what: str) -> Plot | None:
    """A plot of these moments; None while they are fewer than two."""
    if len(moments) < 2:
        return None
    start, end = moments[0].wall, moments[-1].wall
    top = _round_up(max(max(moment.point) for moment in moments))
    lines = {
        name: _path(moments, [getattr(moment.point, name) for moment in moments], top)
        for name in ("wanted", "running", "pending")
    }
    first, last = moments[0].point, moments[-1].point
    words = (
        f"Machines of {what} from {_clock(start)} to {_clock(end)}: wanted {first.wanted} at first and {last.wanted} "
        f"at last, running {first.running} and {last.running}, pending {first.pending} and {last.pending}; at most "
        f"{max(moment.point.running for moment in moments)} ran."
    )
    area = f"{lines['running']}L{WIDTH},{HEIGHT}L0,{HEIGHT}Z"
    return Plot(**lines, area=area, top=top, begins=_clock(start), words=words)


def _path(moments: Sequence[Moment], machines: Iterable[int], top: int) -> str:
    """A line in steps: a number holds until the next sample."""
    start, span = moments[0].wall, max(moments[-1].wall - moments[0].wall, 1.0)
    steps: list[str] = []
    before = -1
    for moment, number in zip(moments, machines, strict=True):
        if number != before:
            x, y = WIDTH * (moment.wall - start) / span, HEIGHT * (1 - number / top)
            steps.append(f"H{x:.1f}V{y:.1f}" if steps else f"M{x:.1f},{y:.1f}")
        before = number
    return f"{''.join(steps)}H{WIDTH}"


def _round_up(machines: int) -> int:
    """The next number of the form 1, 2, 5, 10, 20, 50, …"""
    if machines < 1:
        return 1
    power = 10 ** math.floor(math.log10(machines))
    return int(next(step * power for step in (1, 2, 5, 10) if step * power >= machines))


def _clock(wall: float) -> str:
    return time.strftime("%H:%M", time.localtime(wall))
