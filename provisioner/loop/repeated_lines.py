"""Repeated lines of the journal. The first few lines are written in full, and the rest are counted.

A storm of equal lines therefore cannot fill the journal.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from provisioner.state.journal import format_time

Line = dict[str, object]

COUNTED_SECONDS = 600.0
"""Seconds (ten minutes) that one counted line covers. A counted line stands for all lines that were not written."""

IN_FULL = 3
"""Number of lines of a series that are written in full. Within ``COUNTED_SECONDS``, further lines are only counted. So
all lines of a rare event are kept. An event that occurs a thousand times an hour takes about a megabyte a week;
the whole journal may take 60 MB."""

NAMED = 20
"""Maximum number of machines that a counted line names if its event may occur to the same machine again and again."""

MET_ONCE = frozenset({"close", "troubled"})
"""Events that occur only a few times to each machine. A counted line of such an event names all its machines."""


@dataclass(slots=True)
class _Series:
    """The repeated lines with one key within ten minutes."""

    began_at: float
    """Epoch seconds at which the ten minutes of the series began."""
    written: int = 0
    """Number of lines written in full."""
    unwritten: list[Line] = field(default_factory=list)
    """The newest line that was not written, in a list; empty if there is none."""
    times: int = 0
    """Number of lines that were not written."""
    since: float = 0.0
    """Epoch seconds of the first line that was not written."""
    machines: dict[object, None] = field(default_factory=dict)


class Repeats:
    """Counter of repeated lines, with a series for each key."""

    def __init__(self) -> None:
        self._series: dict[Hashable, _Series] = {}
        self.due_at = float("inf")
        """Epoch seconds at which the next series is complete; infinite if there is no series."""

    def filter_lines(self, lines: Iterable[tuple[Hashable, Line]], wall: float) -> Iterator[Line]:
        """Yield the lines of a cycle that are written now, and count the rest. ``wall``: epoch seconds."""
        groups: dict[Hashable, list[Line]] = {}
        for key, line in lines:
            groups.setdefault(key, []).append(line)
        for key, group in groups.items():
            series = self._series.setdefault(key, _Series(wall))
            self.due_at = min(self.due_at, series.began_at + COUNTED_SECONDS)
            if series.written + len(group) <= IN_FULL:
                series.written += len(group)
                yield from group
                continue
            _count(series, group, wall)
            if series.written < IN_FULL:
                series.written += 1
                yield _counted(series)

    def get_due_counts(self, wall: float, *, ending: bool = False) -> Iterator[Line]:
        """Yield a counted line for each series whose ten minutes are over. If the loop is ``ending``, all series are
        due."""
        for key, series in list(self._series.items()):
            if wall < series.began_at + COUNTED_SECONDS and not ending:
                continue
            if series.times:
                yield _counted(series)
                series.began_at, series.written = wall, IN_FULL
            else:
                del self._series[key]
        self.due_at = min((one.began_at + COUNTED_SECONDS for one in self._series.values()), default=float("inf"))


def _count(series: _Series, group: Sequence[Line], wall: float) -> None:
    if not series.times:
        series.since = wall
    series.times += len(group)
    series.unwritten = [group[-1]]
    for line in group:
        if "machine" in line and (line["event"] in MET_ONCE or len(series.machines) < NAMED):
            series.machines[line["machine"]] = None


def _counted(series: _Series) -> Line:
    """Return one line for all unwritten lines of a series, and reset its count."""
    line = {name: value for name, value in series.unwritten[0].items() if name != "machine"}
    line |= {"times": series.times, "since": format_time(series.since)}
    if series.machines:
        line["machines"] = list(series.machines)
    series.unwritten, series.times, series.machines = [], 0, {}
    return line
