"""A place that refuses machines, on the embedded cloud. The metric and the log contain the place's own words."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from provisioner.lab.cloud.server import Simulator
from tests.conformance.stage import MIG_CASES, Case, Grid, stage, template
from tests.support.waiting import until

WITHIN = 60.0
"""Seconds in which the first refusal is logged."""


@pytest.fixture(scope="module")
def cloud() -> Iterator[Simulator]:
    with stage() as running:
        yield running


def values(hf: Grid, name: str, **labels: str) -> list[float]:
    """Return the values of a metric's series that have these labels, as Prometheus scrapes them."""
    families = text_string_to_metric_families(requests.get(f"{hf.url}/metrics", timeout=30).text)
    samples = (sample for family in families for sample in family.samples if sample.name == f"hf_provisioner_{name}")
    return [sample.value for sample in samples if labels.items() <= sample.labels.items()]


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the log lines about refusals."""
    refusals = [vars(line) for line in caplog.records if line.message == "Machines are refused"]
    assert all(line["levelno"] == logging.WARNING for line in refusals)
    return refusals


KINDS = {
    "a GKE stock-out": (1, "stockout", {}, "stockout", "FailedScaleUp", "GCE out of resources"),
    "a GKE place that denies": (4, "denied", {}, "denied", "cannot create"),
    "a MIG stock-out": (MIG_CASES[0], "stockout", {}, "stockout", "ZONE_RESOURCE_POOL_EXHAUSTED"),
}


@pytest.mark.parametrize(
    ("number", "mode", "params", "error", "words"),
    [
        pytest.param(number, mode, params, error, words, id=name)
        for name, (number, mode, params, error, *words) in KINDS.items()
    ],
)
def test_is_counted_shown_and_said_while_its_machines_are_still_wanted(
    cloud: Simulator,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    number: int,
    mode: str,
    params: dict[str, str],
    error: str,
    words: list[str],
) -> None:
    with Grid(tmp_path, cloud, Case(number, "", lambda _: None)) as hf:
        hf.cycles()
        hf.fault(mode, params=params)
        request = hf.request("T2", 2)
        until(lambda: sum(values(hf, "refusals_total", pool="gke-main", error=error)), WITHIN, what="it is counted")
        until(lambda: lines(caplog), WITHIN, what="it is logged")
        (line, *others) = lines(caplog)
        assert (line["pool"], line["template"], line["error"], others) == ("gke-main", "T2", error, [])
        assert line["refused"] >= 1
        assert all(word in line["text"] for word in words), line["text"]
        assert until(lambda: values(hf, "machines_refused", template="T2", error=error), 30, what="it is shown")
        assert hf.status(request)[0]["status"] == "running"
        assert sum(values(hf, "active", provisioner="demo")) == 1
        hf.faults()


@pytest.mark.slow
def test_is_counted_and_said_when_every_machine_is_made_by_the_next_pool(
    cloud: Simulator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = {"kind": "gke", "pod_spec": "pod.yaml", "observe_seconds": 0.05}
    pools = {"full": pool | {"namespace": "case-5"}, "spare": pool | {"namespace": "case-6"}}
    with Grid(tmp_path, cloud, Case(5, "", lambda _: None, loop=False, settings={"pools": pools})) as hf:
        hf.write_templates(template("T2", pools=["full", "spare"], maxNumber=-1))
        hf.fault("stockout")
        hf.start_loop()
        assert len(hf.complete(3)) == 3
        assert [(line["pool"], line["error"]) for line in lines(caplog)] == [("full", "stockout")]
        assert "GCE out of resources" in lines(caplog)[0]["text"]
        assert values(hf, "refusals_total", pool="full", error="stockout")[0] >= 1
        assert values(hf, "refusals_total", pool="spare", error="stockout") == [0]
        assert values(hf, "slots_failed_total", pool="full") == [], "none of them failed"
        hf.faults()
