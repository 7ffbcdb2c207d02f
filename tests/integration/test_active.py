"""Which of two processes on one state directory runs the loop, as Prometheus is told over HTTP."""

from __future__ import annotations

from pathlib import Path

import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.stage import Case, Grid, Instance, stage
from tests.support.waiting import until


def active(hf: Instance) -> dict[str, float]:
    """By provisioner; empty while nobody answers."""
    try:
        text = requests.get(f"{hf.url}/metrics", timeout=10).text
    except RuntimeError:  # it does not listen yet
        return {}
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {one.labels["provisioner"]: one.value for one in samples if one.name == "hf_provisioner_active"}


def test_the_loop_is_active_and_its_standby_from_when_it_takes_over(tmp_path: Path) -> None:
    place = Case(1, "", lambda _: None)
    with stage() as cloud, Grid(tmp_path, cloud, place) as hf, Instance(tmp_path, cloud, hf.place) as heir:
        hf.complete(1)
        heir.start_loop()
        until(lambda: active(heir), 30, what="the standby answers")
        hf.cycles(5)
        assert (active(hf), active(heir)) == ({"demo": 1}, {"demo": 0})
        hf.stop_loop()
        until(lambda: active(heir) == {"demo": 1}, 60, what="the standby runs the loop")
