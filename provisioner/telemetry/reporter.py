"""The distribution of a cycle's report to metrics, log, health, status page and pool status."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from provisioner.hostfactory import SILENT_SECONDS
from provisioner.loop.cycle_report import CycleReport
from provisioner.model import Memory
from provisioner.settings.reload import Configuration
from provisioner.state.protocols import State
from provisioner.telemetry.config_drift import ConfigDrift
from provisioner.telemetry.cycle_log import CycleLog, RefusalLog
from provisioner.telemetry.cycle_metrics import CycleMeter, UsageMeter
from provisioner.telemetry.machine_plots import Samples
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.pool_status import PoolStatusWriter
from provisioner.telemetry.server import Health


class Reporter:
    """The receiver of each cycle's report, in the loop's thread. The HTTP server's threads read the receiver's
    attributes."""

    def __init__(self, metrics: Metrics, state: State, configuration: Configuration) -> None:
        self._metrics, self._configuration = metrics, configuration
        metrics.configure(configuration.limits)
        self.memory: Memory | None = None
        """The loop's memory after the last cycle; None before the first cycle."""
        self.samples = Samples()
        self._meter = CycleMeter(metrics, state)
        self._usage = UsageMeter(metrics)
        self._log = CycleLog()
        self._refusals = RefusalLog(metrics)
        self._pool_status_writer = PoolStatusWriter(state, lambda: configuration.refused, configuration.note)
        self._config_drift = ConfigDrift(metrics, state, lambda: configuration.settings.digests)
        self.of_loop = LoopHealth()

    def __call__(self, report: CycleReport) -> None:
        """Pass the report of one cycle to all its readers."""
        ended, configuration = time.monotonic(), self._configuration
        limits = configuration.limits
        self._metrics.config_ok.set(not configuration.refused)
        self._metrics.configure(limits)
        self._meter.record_cycle(report, limits)
        self._usage.record_cycle(report, limits, time.time())
        self._log.record_cycle(report)
        self._refusals.record_cycle(report)
        self._pool_status_writer.record_cycle(report, limits, time.time())
        self._config_drift.compare(refused=bool(configuration.refused))
        self.of_loop.record_cycle(report, ended)
        self.samples.add(report.memory, report.deferred, time.time())
        self.memory = report.memory


# --- health -----------------------------------------------------------------------------------------------------------


class LoopHealth:
    """The health of the loop. The loop's thread sets it, and the server's threads read it."""

    def __init__(self) -> None:
        self._report: CycleReport | None = None
        self._complete = False
        self._ended = time.monotonic()
        self._stands_by = False
        self._failing: float | None = None
        """The monotonic time since which no cycle could plan; None if the last cycle could plan."""

    def stand_by(self) -> None:
        """Record that this loop is a standby: it waits for another loop to end, and is ready to take over."""
        self._stands_by = True

    def record_cycle(self, report: CycleReport, ended: float) -> None:
        """Record one cycle. ``ended``: its end in seconds of the monotonic clock."""
        self._ended = ended
        if not report.problem:
            self._failing = None
            self._complete |= not report.unseen
        elif self._failing is None:
            self._failing = ended
        self._report = report

    def health(self) -> Health:
        """Return the health. The loop is alive while cycles end. The loop is ready if some cycle has observed every
        pool, and the last cycle could plan. A standby is ready, too. A loop that waits for a pool or an operator is
        alive, because a restart would not help it."""
        report = self._report
        if report is None:
            activity = "stands by for another loop" if self._stands_by else "starts"
            return Health(True, self._stands_by, f"No cycle has ended yet: the loop {activity}.")
        silent = time.monotonic() - self._ended
        if silent > SILENT_SECONDS:
            return Health(False, self._complete, f"No cycle has ended for {silent:.0f} s.")
        if report.problem and self._failing is not None:
            message = f"No cycle has planned for {time.monotonic() - self._failing:.0f} s: {report.problem}"
            return Health(True, False, message + _format_unseen(report))
        if not self._complete:
            return Health(True, False, "No cycle has seen every pool yet." + _format_unseen(report))
        return Health(True, True, f"The last cycle ended {silent:.1f} s ago.")

    def status(self) -> Mapping[str, Any]:
        """Return result, pools and deferrals of the last cycle, for the path /status."""
        report = self._report
        if report is None:
            return {"cycle": 0}
        return {
            "cycle": report.number,
            "result": report.result,
            "problem": report.problem,
            "seconds": round(report.seconds, 4),
            "pools": {name: _pool_facts(report, name) for name in report.observations},
            "deferred": [
                {"pool": pool, "template": template, "reason": str(reason), "machines": count}
                for (pool, template, reason), count in report.deferred.items()
            ],
        }


def _pool_facts(report: CycleReport, pool: str) -> Mapping[str, Any]:
    if pool in report.unseen:
        return report.unseen[pool].log_fields
    return {**report.own_snapshots[pool].log_fields, "problems": list(report.problems[pool])}


def _format_unseen(report: CycleReport) -> str:
    """Return a sentence for each pool that cannot be observed, with its reason. Each sentence begins with a space, so
    that it can be appended to another sentence."""
    return "".join(f" Pool {name} cannot be seen: {failure.text}" for name, failure in report.unseen.items())
