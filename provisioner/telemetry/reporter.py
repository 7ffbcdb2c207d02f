"""What a cycle was, told to Prometheus, the log, the health and status pages and the notes for people."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from provisioner.loop.cycle import CycleReport
from provisioner.model import Memory
from provisioner.settings.reload import Configuration
from provisioner.state.marker_files import SILENT_SECONDS
from provisioner.state.protocols import State
from provisioner.telemetry.config_drift import ConfigWatch
from provisioner.telemetry.cycle_log import CycleLog, RefusalLog
from provisioner.telemetry.cycle_meter import CycleMeter, UsageMeter
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.pool_status import PoolStatusWriter
from provisioner.telemetry.samples import Samples
from provisioner.telemetry.server import Health


class Reporter:
    """Called with each cycle's report, in the loop's thread; all else is asked in the server's."""

    def __init__(self, metrics: Metrics, state: State, configuration: Configuration) -> None:
        self._metrics, self._configuration, self._limits = metrics, configuration, configuration.limits
        metrics.configure(self._limits)
        self.memory: Memory | None = None
        """What the loop remembered after its last cycle."""
        self.samples = Samples()
        self._meter = CycleMeter(metrics, state)
        self._usage = UsageMeter(metrics)
        self._log = CycleLog()
        self._refusals = RefusalLog(metrics)
        self._pool_status_writer = PoolStatusWriter(state, lambda: configuration.refused)
        self._config = ConfigWatch(metrics, state, lambda: configuration.settings.digests)
        self.of_loop = LoopHealth()

    def __call__(self, report: CycleReport) -> None:
        """Take in one cycle."""
        ended, limits = time.monotonic(), self._configuration.limits
        self._metrics.config_ok.set(not self._configuration.refused)
        if limits is not self._limits:
            self._metrics.configure(limits)
            self._limits = limits
        self._meter.take(report, limits)
        self._usage.take(report, limits, time.time())
        self._log.take(report)
        self._refusals.take(report)
        self._pool_status_writer.take(report, limits, time.time())
        self._config.take()
        self.of_loop.take(report, ended)
        self.samples.take(report.memory, report.deferred, time.time())
        self.memory = report.memory


# --- health -----------------------------------------------------------------------------------------------------------


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
            "pools": {name: _facts(report, name) for name in report.observations},
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
