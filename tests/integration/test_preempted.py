"""A preemption without a notice. HostFactory's answer, the metric and the journal all name it a preemption.

There is no Pub/Sub here, because the places themselves show the cause. A pod shows it by its condition. An instance
shows it by its status, or by the operations of its zone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.server import Simulator
from tests.conformance.stage import MIG_CASES, PROJECT, TIMINGS, ZONE, Case, Grid
from tests.support.clouds.specs import advised
from tests.support.waiting import until

SPOT_POD = "nodeSelector: {cloud.google.com/gke-spot: 'true'}\ncontainers: [{name: main, image: busybox}]\n"
POD, GROUP = 1, MIG_CASES[0]
AT_ONCE = {"notice": 0.0, "repair": 0.0, "boot": 0.0, "schedule": 0.0, "leave": 0.0}
"""A preempted instance is gone, and made again, before the next observation."""

WAYS = [
    pytest.param(POD, {}, {}, {}, False, id="gke: a pod on a Spot node"),
    pytest.param(GROUP, {}, {"notice": 5.0}, {}, False, id="mig: seen while it stops"),
    pytest.param(GROUP, {"termination_action": "DELETE"}, AT_ONCE, {}, True, id="mig: the instance is deleted"),
    pytest.param(
        GROUP,
        {"termination_action": "DELETE"},
        AT_ONCE,
        {"dead_member_stays": False},
        True,
        id="mig: the member is gone",
    ),
    pytest.param(
        GROUP,
        {"default_action_on_failure": "REPAIR", "termination_action": "DELETE"},
        AT_ONCE,
        {},
        True,
        id="mig: the group has made it again",
    ),
]


def lost(hf: Grid) -> Mapping[str, float]:
    """Return the lost machines by cause, as Prometheus scrapes them."""
    families = text_string_to_metric_families(requests.get(f"{hf.url}/metrics", timeout=30).text)
    name = "hf_provisioner_machines_lost_total"
    samples = [one for family in families for one in family.samples if one.name == name and one.value]
    return {one.labels["cause"]: one.value for one in samples}


def closed(hf: Grid, machine: str) -> list[dict[str, Any]]:
    """Return the lines of the journal about the machine's end."""
    lines = [json.loads(line) for line in (hf.work / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if (line["event"], line.get("machine")) == ("close", machine)]


@pytest.mark.parametrize(("case", "spec", "timings", "switches", "asked"), WAYS)
def test_a_preemption_is_reported_as_one(
    tmp_path: Path,
    case: int,
    spec: dict[str, Any],
    timings: dict[str, Any],
    switches: dict[str, Any],
    asked: bool,
) -> None:
    conditions = Conditions.of(timings=TIMINGS | {"mig": TIMINGS["mig"] | timings}, switches=switches)
    group = advised(project=PROJECT, zone=ZONE, name=f"case-{GROUP}", provisioning_model="SPOT", **spec)
    with Simulator(namespaces=[f"case-{POD}"], migs=[group], conditions=conditions) as cloud:
        pace = {"observe_seconds": 1.0} if asked else {}
        with Grid(tmp_path, cloud, Case(case, "", lambda _: None, loop=False, pool=pace)) as hf:
            (hf.conf / "pod.yaml").write_text(SPOT_POD)
            hf.start_loop()
            taken, kept = hf.complete(2)
            assert cloud.preempt(taken) == [taken]
            hf.reclaims(taken, among=[taken, kept])
            hosts = {"machines": [{"name": name, "machineId": name} for name in (taken, kept)]}
            message = hf.call("getReturnRequests", hosts)["message"]
            assert message == f"Hosts to return: 1. {taken}: preempted."
            until(lambda: lost(hf), 30, what="the loss is counted")
            assert lost(hf) == {"preempted": 1.0}
            (end,) = closed(hf, taken)
            assert (end["verdict"], end["cause"]) == ("lost", "preempted")
            operations = cloud.state()["calls"].get("zoneOperations.list", 0)
            assert operations == (1 if asked else 0), "operations are read for an end that nothing else explains"
