"""What the journal says again and again: a few times in full, then as a count, so that no storm empties it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from provisioner.state.journal import stamp

Line = dict[str, object]

COUNTED_SECONDS = 600.0
"""Seconds that a counted line stands for."""

IN_FULL = 3
"""Lines of a kind that are written before the rest of ten minutes is counted: what happens a few times is told as it
was, and what happens for a week, a thousand times an hour, takes a few hundred kilobytes of the journal's 60 MB."""

NAMED = 20
"""Machines that a counted line names, where the same ones may be met again and again."""

MET_ONCE = frozenset({"close", "troubled"})
"""Events that a machine meets once, or a few times: a counted line names all."""


@dataclass(slots=True)
class _Series:
    """Equal lines of ten minutes."""

    began: float
    written: int = 0
    held: list[Line] = field(default_factory=list)
    """The newest of the lines that were not written; the machines of the others are in ``machines``."""
    times: int = 0
    since: float = 0.0
    """When the first of them came."""
    machines: dict[object, None] = field(default_factory=dict)


class Repeats:
    """Equal lines, by what makes them equal."""

    def __init__(self) -> None:
        self._series: dict[Hashable, _Series] = {}
        self.due_at = float("inf")
        """Epoch seconds from which ``due`` has something to do."""

    def take(self, lines: Iterable[tuple[Hashable, Line]], wall: float) -> Iterator[Line]:
        """Those of a cycle's lines that are to be written; the others are counted. ``wall``: epoch seconds."""
        groups: dict[Hashable, list[Line]] = {}
        for key, line in lines:
            groups.setdefault(key, []).append(line)
        for key, group in groups.items():
            series = self._series.setdefault(key, _Series(wall))
            self.due_at = min(self.due_at, series.began + COUNTED_SECONDS)
            if series.written + len(group) <= IN_FULL:
                series.written += len(group)
                yield from group
                continue
            _hold(series, group, wall)
            if series.written < IN_FULL:
                series.written += 1
                yield _counted(series)

    def due(self, wall: float, *, ending: bool = False) -> Iterator[Line]:
        """The counts of ten minutes that are over; ``ending``: of all, as the loop ends."""
        for key, series in list(self._series.items()):
            if wall < series.began + COUNTED_SECONDS and not ending:
                continue
            if series.times:
                yield _counted(series)
                series.began, series.written = wall, IN_FULL
            else:
                del self._series[key]
        self.due_at = min((one.began + COUNTED_SECONDS for one in self._series.values()), default=float("inf"))


def _hold(series: _Series, group: Sequence[Line], wall: float) -> None:
    if not series.times:
        series.since = wall
    series.times += len(group)
    series.held = [group[-1]]
    for line in group:
        if "machine" in line and (line["event"] in MET_ONCE or len(series.machines) < NAMED):
            series.machines[line["machine"]] = None


def _counted(series: _Series) -> Line:
    """One line for all that were held; none is held after it."""
    line = {name: value for name, value in series.held[0].items() if name != "machine"}
    line |= {"times": series.times, "since": stamp(series.since)}
    if series.machines:
        line["machines"] = list(series.machines)
    series.held, series.times, series.machines = [], 0, {}
    return line
