"""The metrics of ``provisioner demand``."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge

from provisioner.demand.service import Report
from provisioner.telemetry.metric_collectors import CountedTable, Group, Metric, Table


class DemandMetrics(Group):
    """The numbers of the last step."""

    # fmt: off
    wanted = Metric(Table[str], "hf_demand_wanted", {"template": ()}, "Machines that the sources want.")
    asked = Metric(Table[str], "hf_demand_asked", {"template": ()},
        "Machines that were requested and run or are on their way.")
    running = Metric(Table[str], "hf_demand_running", {"template": ()}, "Machines that run.")
    idle = Metric(Table[str], "hf_demand_idle", {"template": ()},
        "Running machines without work, by the sources that name the idle machines.")
    age = Metric(Table[str], "hf_demand_source_age_seconds", {"source": ()},
        "Seconds since the last complete reading of the source, or since the start of the process.")
    failures = Metric(CountedTable[str], "hf_demand_source_failures_total", {"source": ()},
        "Failed readings of the source.")
    steps = Metric(Counter, "hf_demand_steps_total", {}, "Steps that have read each source once.")
    unfit = Metric(Table[str], "hf_demand_unfit_jobs", {"source": ()}, "Jobs of the source that fit no template.")
    last_step = Metric(Gauge, "hf_demand_last_step_timestamp_seconds", {},
        "End of the last step without a problem; begins with the start of the process.")
    interval = Metric(Gauge, "hf_demand_interval_seconds", {}, "Seconds between two steps; 0 before the first step.")
    # fmt: on

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics."""
        super().__init__(registry)
        self.started, self.latest = time.time(), Report(0.0)
        """Epoch seconds of the start of the process; the report of the last step, which has no numbers before the first
        step."""
        self._read_at: dict[str, float] = {}
        self.last_step.set(self.started)
        self.age.follow(lambda: {name: time.time() - read_at for name, read_at in self._read_at.items()})

    def show(self, report: Report) -> None:
        """Show the numbers of a step. If the step failed before it had numbers, the earlier numbers stay."""
        self.latest = report
        self.interval.set((report.next_at or report.at) - report.at)
        if not report.problem:
            self.last_step.set(time.time())
        if not report.sources:
            return
        self.steps.inc()
        for key in ("wanted", "asked", "running", "idle"):
            getattr(self, key).replace({template: numbers[key] for template, numbers in report.templates.items()})
        self._read_at = {name: source["read_at"] or self.started for name, source in report.sources.items()}
        self.failures.replace({name: source["failures"] for name, source in report.sources.items()})
        self.unfit.replace({name: sum(source["unfit"].values()) for name, source in report.sources.items()})
