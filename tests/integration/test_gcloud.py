"""gcloud on the simulator: the command lines that our pages give to operators, and other common command lines.
``tests/contract`` tests the changes that gcloud makes to a group's machines."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from provisioner.backends import Finding
from provisioner.backends.mig.group_checks import (
    autoscaler_findings,
    group_findings,
    missing_group_finding,
    template_findings,
)
from provisioner.backends.mig.settings import MigPool
from provisioner.lab.cloud.cloud import Conditions
from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.lab.cloud.server import Simulator
from tests.support.clients.compute_clients import Gcloud
from tests.support.clouds.specs import advised
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("gcloud") is None, reason="needs gcloud")

SPEC = advised(project="p", zone="us-central1-a", name="g")
REGIONAL = advised(project="p", region="europe-west1", name="r")
AT_ONCE = {"mig": {"call": 0, "operation": 0.1, "schedule": 0, "boot": 0.1, "delete": 0.1, "leave": 0.1}}


def test_gcloud_knows_the_lines_that_findings_give(tmp_path: Path) -> None:
    """Add an invalid flag to each command line, so that gcloud changes no resource. gcloud must complain only about
    this flag."""
    pool = MigPool(name="m", project="p", zone=SPEC.zone, group="g")
    policy, repair = group_findings(pool, {"updatePolicy": {"type": "PROACTIVE"}})
    update = f"{_line(policy)} {_line(repair).rpartition(' ')[2]}"
    with Simulator(migs=[SPEC]) as simulator:
        gcloud = Gcloud(simulator, SPEC, tmp_path)
        for line in (update, _line(missing_group_finding(pool))):
            complaint = gcloud.run(f"{line} --no-such-flag").stderr.splitlines()[0]
            assert complaint.endswith("unrecognized arguments: --no-such-flag ")


@pytest.mark.parametrize("place", [{"zone": "us-central1-a"}, {"region": "europe-west1"}], ids=["zonal", "regional"])
@pytest.mark.slow
def test_a_group_that_was_fixed_by_the_lines_of_its_findings_has_none_left(
    tmp_path: Path, place: dict[str, str]
) -> None:
    wrong = advised(
        project="p",
        name="g",
        update_type="PROACTIVE",
        default_action_on_failure="REPAIR",
        autoscaler_mode="ON",
        **place,  # type: ignore[arg-type]
    )
    other = advised(project="p", zone="us-central1-b", name="other", labels={"team": "risk"})
    pool = MigPool(name="m", project="p", group="g", **place)  # type: ignore[arg-type]
    with Simulator(migs=[wrong, other], conditions=Conditions.of(timings=AT_ONCE)) as simulator:
        gcloud = Gcloud(simulator, wrong, tmp_path)

        def get(path: str) -> Any:
            response = requests.get(simulator.compute + path, timeout=30)
            return response.json() if response.ok else {"autoscalingPolicy": {"mode": "OFF"}}

        def findings() -> list[Finding]:
            group = get(wrong.path)
            template = get(group["instanceTemplate"].removeprefix(simulator.compute))
            scaler = get(wrong.autoscaler)
            return [
                *group_findings(pool, group),
                *autoscaler_findings(pool, scaler),
                *template_findings(pool, template),
            ]

        before = findings()
        assert len(before) == 4
        for finding in before:
            done = gcloud.run(_line(finding).replace("NEW_TEMPLATE", "other-template"))
            assert done.returncode == 0, done.stderr
        assert findings() == []
        assert "unknown" not in simulator.state()["calls"]


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (
            "instance-groups list-instances g --zone us-central1-a --format=value(instance.basename(),status)",
            ["hf-1\tRUNNING"],
        ),
        ("instance-templates list --format=value(name)", ["g-template", "r-template"]),
        ("machine-types list --filter=name=n2-standard-4 --format=value(zone,memoryMb)", ["us-central1-a\t16.00"]),
        ("instance-groups managed list --format=value(name,autoscaled)", ["r\tno", "g\tyes"]),
        (
            "operations list --sort-by=~insertTime --format=value(operationType)",
            ["compute.instanceGroupManagers.createInstances"],
        ),
    ],
)
@pytest.mark.slow
def test_gcloud_shows_what_there_is(tmp_path: Path, command: str, lines: list[str]) -> None:
    spec = advised(project="p", zone="us-central1-a", name="g", autoscaler_mode="ON")
    with Simulator(
        migs=[spec, replace(REGIONAL, zones=("europe-west1-b",))], conditions=Conditions.of(timings=AT_ONCE)
    ) as simulator:
        _run_one(simulator, spec)
        done = Gcloud(simulator, spec, tmp_path).run(command)
        shown = [line for line in done.stdout.splitlines() if not line.startswith("europe-west1-b")]
        assert shown == lines, done.stderr
        assert "unknown" not in simulator.state()["calls"]


@pytest.mark.slow
def test_gcloud_adds_and_takes_labels(tmp_path: Path) -> None:
    spec = advised(project="p", zone="us-central1-a", name="g", labels={"team": "risk"})
    with Simulator(migs=[spec], conditions=Conditions.of(timings=AT_ONCE)) as simulator:
        _run_one(simulator, spec)
        gcloud = Gcloud(simulator, spec, tmp_path)
        for words in ("add-labels hf-1 --labels=owner=me", "remove-labels hf-1 --labels=team"):
            done = gcloud.run(f"instances {words} --zone us-central1-a")
            assert done.returncode == 0, done.stderr
        url = f"{simulator.compute}projects/p/zones/us-central1-a/instances/hf-1"
        assert requests.get(url, timeout=30).json()["labels"] == {"owner": "me"}


def _run_one(simulator: Simulator, spec: MigSpec) -> None:
    """Create the instance hf-1, and wait until it runs."""
    body = {"instances": [{"name": "hf-1"}]}
    response = requests.post(f"{simulator.compute}{spec.path}/createInstances", json=body, timeout=30)
    assert response.status_code == 200
    until(lambda: [machine["phase"] for machine in simulator.state()["machines"]] == ["running"], 30)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("zones list --filter=region:us-central1", ["us-central1-a"]),
        pytest.param(
            "zones list --filter=-region:us-central1",
            ["europe-west1-a", "europe-west1-b", "europe-west1-c"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_gcloud_finds_by_its_own_filters(tmp_path: Path, command: str, names: list[str]) -> None:
    """The simulator must understand filters as gcloud sends them, with backslashes in quotes:
    ``region eq ".*\\bus\\-central1\\b.*"``."""
    with Simulator(migs=[SPEC, REGIONAL], conditions=Conditions.of(timings=AT_ONCE)) as simulator:
        done = Gcloud(simulator, SPEC, tmp_path).run(f"{command} --format=value(name)")
        assert done.stdout.split() == names, done.stderr


def test_gcloud_says_that_a_field_of_a_filter_is_unknown(tmp_path: Path) -> None:
    with Simulator(migs=[SPEC], conditions=Conditions.of(timings=AT_ONCE)) as simulator:
        done = Gcloud(simulator, SPEC, tmp_path).run("zones list --filter=regio:us-central1")
        assert done.returncode == 1
        assert "Invalid list filter expression" in done.stderr


def _line(finding: Finding) -> str:
    return finding.text.partition("gcloud compute ")[2]
