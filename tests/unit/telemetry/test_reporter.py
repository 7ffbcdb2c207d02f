"""A cycle's report reaches metrics, pool status, health, log, samples and the page."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from provisioner.hostfactory.provider_config import Digests
from provisioner.loop.cycle_report import CycleReport
from provisioner.model import PendingReason, Plan, Verdict
from provisioner.settings.reload import Configuration
from provisioner.state.directory import StateDir
from provisioner.telemetry.machine_plots import ALL
from provisioner.telemetry.metrics import Metrics
from provisioner.telemetry.reporter import Reporter
from tests.support.parts import alter
from tests.unit.core import NOW, STOCKOUT, limits, memory, pool, record, running, slot, snapshot, transitions

PRICED = limits(pool("a", price_per_hour=2.0), pool("b", is_paused=True))


def test_a_cycle_reaches_all_reports(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    metrics, state = Metrics(CollectorRegistry()), StateDir(tmp_path)
    loop, scripts = Digests("0" * 8, "1" * 8), Digests("0" * 8, "2" * 8)
    state.config.note("scripts", loop)
    state.config.note("scripts", scripts)
    later = time.time() + 10.0
    os.utime(Path(state.config.path, "-".join(("scripts", *scripts))), (later, later))
    configuration = SimpleNamespace(limits=PRICED, refused="no YAML", note="/n", settings=SimpleNamespace(digests=loop))
    reporter = Reporter(metrics, state, cast(Configuration, configuration))
    remembered = memory(record(running(0), slot(1), count=3))
    refused = alter(remembered.requests["aaaaaaaaaa"].slots[1], verdict=Verdict.FAILED, failure=STOCKOUT, is_gone=True)
    report = CycleReport(
        1, NOW, 0.5, {"a": snapshot()}, remembered, Plan(remembered), {("a", "T", PendingReason.CAP): 1}
    )
    later_memory = memory(record(running(0), refused, count=3))
    changed = transitions(remembered, later_memory)
    for one in (report, replace(report, number=2, memory=later_memory, transitions=changed)):
        reporter(one)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"hf_provisioner_{name}", labels)

    assert value("machines_desired", pool="a", template="T") == 1
    assert value("refusals_total", pool="a", error="stockout") == 1
    assert value("cost_per_hour") == 2.0
    assert (value("config_ok"), value("config_differs", file="templates")) == (0, None)
    assert "Configuration differs" not in caplog.messages, "the loop refuses the newer content"
    assert (reporter.of_loop.health().ready, reporter.of_loop.status()["cycle"]) == (True, 2)
    assert reporter.memory
    assert state.pool_status.read()["paused"] == ["b"]
    assert state.pool_status.read()["note"] == "/n"
    assert state.pool_status.read()["configuration"]["text"] == "no YAML"
    assert reporter.samples.get_moments(ALL)[0].point.running == 1
    configuration.limits, configuration.refused = limits(pool("a"), pool("c")), ""
    reporter(replace(report, number=3, memory=later_memory))
    assert value("config_differs", file="templates") == 1
    assert "Configuration differs" in caplog.messages
    assert (value("config_ok"), value("creates_total", pool="c", result="ok")) == (1, 0), "new limits have their series"
    assert {"Cycle", "Machines are refused"} <= set(caplog.messages)
