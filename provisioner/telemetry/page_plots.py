"""Plots of machines over time, as paths of an SVG picture. Pure: no input, no output, no clock."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provisioner.telemetry.samples import Moment

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
