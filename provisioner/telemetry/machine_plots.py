"""Plots of the machines wanted, running and pending, as SVG. The loop takes a sample each minute and keeps it for a
day. The samples are not written to a file, so they are lost when the process ends."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from provisioner.model import Memory, PendingReason
from provisioner.telemetry.machine_rows import count_slots

SAMPLE_SECONDS = 60.0
"""Seconds between two samples. The interval is short enough to show how a burst begins, and a day of samples takes
about 100 kB."""

KEPT_SAMPLES = 1440
"""The number of samples that are kept, which cover a day."""

PlottedSubject = tuple[str, str]
"""The word ``pool`` or ``template``, and its name. Two empty texts stand for all machines."""

ALL: PlottedSubject = ("", "")


class Point(NamedTuple):
    """The numbers of machines in one sample."""

    wanted: int = 0
    running: int = 0
    pending: int = 0


class Moment(NamedTuple):
    """A sample of one pool, one template or all machines: the time in epoch seconds, and the numbers of machines."""

    wall: float
    point: Point


class Samples:
    """The samples of a day. The loop's thread adds them, and the server's threads read them."""

    def __init__(self) -> None:
        self._ring: deque[tuple[float, Mapping[PlottedSubject, Point]]] = deque(maxlen=KEPT_SAMPLES)
        """The time of each sample in epoch seconds, and the numbers of machines by subject."""

    def add(self, memory: Memory | None, deferred: Mapping[tuple[str, str, PendingReason], int], wall: float) -> None:
        """Add a sample if the last sample is ``SAMPLE_SECONDS`` old. Also add a sample if the clock was set back."""
        if memory is not None and not (self._ring and 0 <= wall - self._ring[-1][0] < SAMPLE_SECONDS):
            self._ring.append((wall, points(memory, deferred)))

    def get_moments(self, subject: PlottedSubject) -> Sequence[Moment]:
        """Return the samples of a pool, a template or all machines, the oldest first."""
        return [Moment(wall, points.get(subject, Point())) for wall, points in tuple(self._ring)]


def points(memory: Memory, deferred: Mapping[tuple[str, str, PendingReason], int]) -> Mapping[PlottedSubject, Point]:
    """Count the machines of each pool, of each template, and of all pools together. A machine is wanted if it runs, is
    pending, or is deferred. The function is pure."""
    points = defaultdict[PlottedSubject, Point](Point, {ALL: Point()})

    def add(pool: str, template: str, more: Point) -> None:
        for subject in (ALL, ("pool", pool), ("template", template)):
            points[subject] = Point(*map(sum, zip(points[subject], more, strict=True)))

    for record in memory.requests.values():
        for pool, some in count_slots(record).items():
            add(pool, record.template, Point(some.running + some.pending, some.running, some.pending))
    for (pool, template, _), machines in deferred.items():
        add(pool, template, Point(wanted=machines))
    return dict(points)


# --- plots: no input, no output, no clock -----------------------------------------------------------------------------


WIDTH, HEIGHT = 720, 160
"""Width and height of the picture in SVG units. The page scales the picture."""


@dataclass(frozen=True, slots=True)
class Plot:
    """The lines of machines wanted, running and pending, as SVG paths, with the texts of the picture."""

    wanted: str
    running: str
    pending: str
    area: str
    """Outline of the area below the line of running machines."""
    top: int
    """Number of machines at the upper edge of the picture."""
    begins: str
    """Clock time at the left edge, as text. The right edge is the present."""
    description: str
    """Description of the picture for readers who cannot see it."""


def plot(moments: Sequence[Moment], title: str) -> Plot | None:
    """Return a plot of these moments; None if there are fewer than two moments."""
    if len(moments) < 2:
        return None
    start, end = moments[0].wall, moments[-1].wall
    top = _round_up(max(max(moment.point) for moment in moments))
    lines = {name: _path(moments, [getattr(moment.point, name) for moment in moments], top) for name in Point._fields}
    first, last = moments[0].point, moments[-1].point
    description = (
        f"Machines of {title} from {_clock(start)} to {_clock(end)}: wanted {first.wanted} at first and {last.wanted} "
        f"at last, running {first.running} and {last.running}, pending {first.pending} and {last.pending}; at most "
        f"{max(moment.point.running for moment in moments)} ran."
    )
    area = f"{lines['running']}L{WIDTH},{HEIGHT}L0,{HEIGHT}Z"
    return Plot(**lines, area=area, top=top, begins=_clock(start), description=description)


def _path(moments: Sequence[Moment], machines: Iterable[int], top: int) -> str:
    """Return the SVG path of a line with steps. Each number is drawn until the next sample, because it is valid until
    then."""
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
    """Round ``machines`` up to a number of the series 1, 2, 5, 10, 20, 50, …."""
    if machines < 1:
        return 1
    power = 10 ** math.floor(math.log10(machines))
    return int(next(step * power for step in (1, 2, 5, 10) if step * power >= machines))


def _clock(wall: float) -> str:
    return time.strftime("%H:%M", time.localtime(wall))
