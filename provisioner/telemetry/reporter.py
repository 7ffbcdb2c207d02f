"""What a cycle was, told to Prometheus, the log, the health and status pages and the notes for people."""

from __future__ import annotations

import time

from provisioner.loop.cycle import CycleReport
from provisioner.model import Memory
from provisioner.settings.reload import Configuration
from provisioner.state.interfaces import State
from provisioner.telemetry.config_watch import ConfigWatch
from provisioner.telemetry.cycle_log import CycleLog
from provisioner.telemetry.cycle_meter import CycleMeter, UsageMeter
from provisioner.telemetry.health import LoopHealth
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.notes import Notebook
from provisioner.telemetry.refusal_log import RefusalLog
from provisioner.telemetry.samples import Samples


class Reporter:
    """Called with each cycle's report, in the loop's thread; all else is asked in the server's."""

    def __init__(self, metrics: Metrics, state: State, configuration: Configuration) -> None:
        self._metrics, self._configuration, self._limits = metrics, configuration, configuration.limits
        metrics.configure(self._limits)
        self.memory: Memory | None = None
        """What the loop remembered after its last cycle."""
        self.samples = Samples()
        self._meter = CycleMeter(metrics, state)
        self._usage = UsageMeter(metrics.usage)
        self._log = CycleLog()
        self._refusals = RefusalLog(metrics)
        self._notebook = Notebook(state, lambda: configuration.refused)
        self._config = ConfigWatch(metrics.loop, state, lambda: configuration.settings.digests)
        self.of_loop = LoopHealth()

    def __call__(self, report: CycleReport) -> None:
        """Take in one cycle."""
        ended, limits = time.monotonic(), self._configuration.limits
        self._metrics.loop.config_ok.set(not self._configuration.refused)
        if limits is not self._limits:
            self._metrics.configure(limits)
            self._limits = limits
        self._meter.take(report, limits)
        self._usage.take(report, limits, time.time())
        self._log.take(report)
        self._refusals.take(report)
        self._notebook.take(report, limits, time.time())
        self._config.take()
        self.of_loop.take(report, ended)
        self.samples.take(report.memory, report.deferred, time.time())
        self.memory = report.memory
