"""How the loop is, by the cycles that have ended: alive, ready, and the last cycle in a few numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from provisioner.loop.cycle import CycleReport
from provisioner.state.markers import SILENT_SECONDS
from provisioner.telemetry.server import Health


class LoopHealth:
    """Takes in each cycle, in the loop's thread; is asked in the server's."""

    def __init__(self) -> None:
        self._report: CycleReport | None = None
        self._complete = False
        self._ended = time.monotonic()
        self._failing: float | None = None
        """Since when no cycle could do its work, by the monotonic clock."""

    def take(self, report: CycleReport, ended: float) -> None:
        """Take in one cycle, which ended then by the monotonic clock."""
        self._ended = ended
        if not report.problem:
            self._failing = None
            self._complete |= not report.unseen
        elif self._failing is None:
            self._failing = ended
        self._report = report

    def health(self) -> Health:
        """Alive while cycles end; ready once one was complete and while the last one could do its work. A loop that
        waits, for a pool or for a person, stays alive: a restart would only wait anew.
        """
        report = self._report
        if report is None:
            return Health(True, False, "No cycle has ended yet: the loop starts, or stands by for another one.")
        silent = time.monotonic() - self._ended
        if silent > SILENT_SECONDS:
            return Health(False, self._complete, f"No cycle has ended for {silent:.0f} s.")
        if report.problem and self._failing is not None:
            words = f"Nothing has been planned for {time.monotonic() - self._failing:.0f} s: {report.problem}"
            return Health(True, False, words + _blind(report))
        if not self._complete:
            return Health(True, False, "No cycle has seen every pool yet." + _blind(report))
        return Health(True, True, f"The last cycle ended {silent:.1f} s ago.")

    def status(self) -> Mapping[str, Any]:
        """The last cycle, in a few numbers."""
        report = self._report
        if report is None:
            return {"cycle": 0}
        return {
            "cycle": report.number,
            "result": report.result,
            "problem": report.problem,
            "seconds": round(report.seconds, 4),
            "pools": {name: _facts(report, name) for name in report.looks},
            "deferred": [
                {"pool": pool, "template": template, "reason": str(reason), "machines": count}
                for (pool, template, reason), count in report.deferred.items()
            ],
        }


def _facts(report: CycleReport, pool: str) -> Mapping[str, Any]:
    if pool in report.unseen:
        return report.unseen[pool].facts
    return {**report.shown[pool].facts, "problems": list(report.problems[pool])}


def _blind(report: CycleReport) -> str:
    """Which pools cannot be seen, and why: sentences that follow another."""
    return "".join(f" Pool {name} cannot be seen: {failure.text}" for name, failure in report.unseen.items())
