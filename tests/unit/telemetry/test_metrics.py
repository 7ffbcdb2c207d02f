"""The metrics have the names that docs/metrics.md promises, and some series begin as zero."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from provisioner.commands.demand_metrics import DemandMetrics
from provisioner.demand.service import Report
from provisioner.files.version import full_version
from provisioner.model import Limits, Phase, PoolLimits, TemplateLimits
from provisioner.state.directory import StateDir
from provisioner.state.errors import StateError
from provisioner.telemetry import status_inputs
from provisioner.telemetry.metrics import OPERATIONS, EventMetrics, Metrics
from provisioner.telemetry.status_inputs import last_calls
from tests.support.every_metric import work
from tests.unit.core import REQUEST, limits, pool

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
SOURCE = Path(__file__).parents[3] / "provisioner" / "telemetry" / "metrics.py"
LIMITS = limits(pool("a", initial_window=7), pool("b", initial_window=3))
LIMITS = replace(LIMITS, templates={**LIMITS.templates, "U": TemplateLimits("U", ("a",))})


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_types_and_labels_are_those_that_the_page_promises(metrics: Metrics) -> None:
    EventMetrics(metrics.registry, {("worth",): [("notice",)]})
    metrics.configure(LIMITS)
    work(metrics, "a", "T")
    numbers = {"wanted": 5, "asked": 4, "running": 3, "idle": 1}
    source = {"wanted": {"T": 5}, "read_at": 1e9, "problem": "", "failures": 2, "unfit": {"8 GPUs": 1}}
    DemandMetrics(metrics.registry).show(Report(1e9, templates={"T": numbers}, sources={"pool": source}))
    families = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        if not name.startswith("process_"):
            families[name] = (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
    rows = re.findall(r"^\| `(hf_\w+)` \| (\w+) \| ([\w, ]*?) ?\| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert families == {name: (kind, set(labels.split(", ")) - {""}) for name, kind, labels, _ in rows}
    assert len(rows) == len(families), "each once"


def test_each_full_name_stands_in_the_code_once_and_in_one_piece() -> None:
    literals = re.findall(r'"(hf_provisioner_\w+)"', SOURCE.read_text())
    listed = re.findall(r"^\| `(hf_provisioner_\w+)` ", PAGE.read_text(), re.MULTILINE)
    assert sorted(literals) == sorted(listed)


def test_no_series_beyond_510_with_ten_templates_and_four_pools(metrics: Metrics) -> None:
    pools = [f"pool-{number}" for number in range(4)]
    templates = {f"T{n}": TemplateLimits(f"T{n}", tuple(pools[n % 4 :] + pools[: n % 4])) for n in range(10)}
    metrics.configure(Limits(prefix="hf", pools={one: PoolLimits(one) for one in pools}, templates=templates))
    for template in templates.values():
        metrics.startup.labels(template.pools[0], template.id).observe(1)
    metrics.per_hour.replace({(): 1})
    metrics.month.replace({(): 1})
    metrics.budget.replace({"hour": 1, "month": 1})
    for one in pools:
        metrics.shutdown.labels(one).observe(1)
        for operation in OPERATIONS:
            metrics.calls.labels(one, operation).observe(1)
    metrics.observed.replace({(t.pools[0], t.id, phase): 1 for t in templates.values() for phase in Phase})
    metrics.seconds.replace(dict.fromkeys(pools, 1))
    metrics.bytes.replace(dict.fromkeys(("intent.json", "memory.json", "status.json", "journal.jsonl"), 1))
    assert sum(len(family.samples) for family in metrics.registry.collect()) <= 510


ZERO = """
cycles_total result=failed
machines_desired pool=b template=T
machines pool=b template=T phase=running
machines_deferred pool=a template=U reason=window
window pool=b
creates_total pool=b result=failed
deletes_total pool=b reason=orphaned result=ok
brake_engaged pool= reason=memory_lost
machines_lost_total pool=a template=U cause=node
refusals_total pool=b error=stockout
backend_errors_total pool=a operation=delete error=denied
machines_unlisted pool=b
machines_stuck pool=b
requests kind=return status=complete
wakeups_total source=pubsub
"""
SECOND = [*ZERO.strip().splitlines()[1:3], "machines_lost_total pool=b template=T cause=node"]


def series(metrics: Metrics, text: str) -> float | None:
    name, *labels = text.split()
    return value(metrics, f"hf_provisioner_{name}", **dict(label.split("=") for label in labels))


@pytest.mark.parametrize("text", ZERO.strip().splitlines())
def test_known_series_are_there_as_zero(metrics: Metrics, text: str) -> None:
    metrics.configure(LIMITS)
    metrics.use_pairs({("b", "T")})
    assert series(metrics, text) == 0


@pytest.mark.parametrize("text", SECOND)
def test_a_pool_that_a_template_names_second_has_its_series_once_it_is_used(metrics: Metrics, text: str) -> None:
    metrics.configure(LIMITS)
    named = series(metrics, text)
    metrics.use_pairs({("b", "T"), ("left", "T")})
    used = series(metrics, text)
    metrics.configure(LIMITS)
    assert (named, used, series(metrics, text)) == (None, 0, 0)
    assert series(metrics, text.replace("=b", "=left")) is None, "not in the configuration"


def test_messages_are_counted_by_worth_from_zero_on_if_there_is_a_subscription(metrics: Metrics) -> None:
    assert value(metrics, "hf_provisioner_events_total", worth="notice") is None
    events = EventMetrics(metrics.registry, {("worth",): [("notice",), ("malformed",)]})
    events.events.labels("notice").inc()
    events.breaks.inc()
    assert value(metrics, "hf_provisioner_events_total", worth="notice") == 1
    assert value(metrics, "hf_provisioner_events_total", worth="malformed") == 0
    assert value(metrics, "hf_provisioner_event_stream_breaks_total") == 1


def test_unseen_times_count_from_the_start_of_the_process(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    fresh = Metrics(CollectorRegistry())
    fresh.configure(LIMITS)
    assert value(fresh, "hf_provisioner_last_success_timestamp_seconds") == 1000
    assert value(fresh, "hf_provisioner_observation_timestamp_seconds", pool="a") == 1000
    assert math.isnan(value(fresh, "hf_provisioner_oldest_unmet_timestamp_seconds", template="T") or 0)
    assert value(fresh, "hf_provisioner_build_info", version=full_version()) == 1


def test_a_pool_that_was_never_seen_counts_from_its_first_configuration(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    for now, pools in ((1000.0, ("a",)), (2000.0, ("a", "b")), (3000.0, ("a", "b"))):
        monkeypatch.setattr("time.time", partial(float, now))
        metrics.configure(replace(LIMITS, pools={name: LIMITS.pools[name] for name in pools}))
    times = [value(metrics, "hf_provisioner_observation_timestamp_seconds", pool=name) for name in ("a", "b")]
    assert times == [1000, 2000]


def test_a_process_is_the_loop_of_its_provisioner_from_its_first_cycle_on() -> None:
    metrics = Metrics(CollectorRegistry(), "grid-a")
    standing_by = value(metrics, "hf_provisioner_active", provisioner="grid-a")
    metrics.count_cycle("failed", 0.1, 50)
    assert (standing_by, value(metrics, "hf_provisioner_active", provisioner="grid-a")) == (0, 1)


def test_only_an_ok_cycle_moves_the_last_success(metrics: Metrics) -> None:
    metrics.count_cycle("ok", 0.1, 50)
    metrics.count_cycle("partial", 0.1, 60)
    metrics.count_cycle("failed", 0.1, 70)
    assert value(metrics, "hf_provisioner_last_success_timestamp_seconds") == 50
    assert value(metrics, "hf_provisioner_cycles_total", result="partial") == 1
    assert value(metrics, "hf_provisioner_cycle_duration_seconds_count") == 3


# --- values that are read at each scrape ------------------------------------------------------------------------------


def test_a_count_in_files_is_read_at_each_scrape_and_stays_while_they_cannot_be_read(metrics: Metrics) -> None:
    """While the files cannot be read, the metric must keep its last value. Prometheus would take a lower value for a
    restart of the counter, and count everything again."""
    counts = iter([{"requestMachines": 7}, None, {"requestMachines": 8}])

    def read() -> dict[str, float]:
        if (count := next(counts)) is None:
            raise StateError
        return count

    metrics.refused_calls.follow(read)
    name = "hf_provisioner_script_calls_refused_total"
    assert [value(metrics, name, script="requestMachines") for _ in range(3)] == [7, 7, 8]


@pytest.mark.parametrize("beats", [True, False])
def test_the_last_calls_are_by_the_clock_of_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats: bool
) -> None:
    """If the file system's clock is an hour behind this host's, the times of the last calls must be corrected by the
    difference, which the heartbeat shows. Without a heartbeat they are not corrected."""
    state = StateDir(tmp_path)
    assert last_calls(state) == {}
    if beats:
        state.beat()
    state.note_hosts({"h": None})
    state.seen.touch(REQUEST)
    wall = time.time() + 3600
    monkeypatch.setattr(status_inputs.time, "time", lambda: wall)
    at = wall if beats else wall - 3600
    assert last_calls(state) == pytest.approx({"getRequestStatus": at, "getReturnRequests": at}, abs=60)
