"""gcloud judges the lines that we tell people to type; what it does to the simulator is in ``tests/contract``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from provisioner.backends import Finding
from provisioner.backends.group_check import group_findings, missing
from provisioner.settings import MigPool
from provisioner.simulator.compute_settings import MigSpec
from provisioner.simulator.server import Simulator
from tests.compute_clients import Gcloud

pytestmark = pytest.mark.skipif(shutil.which("gcloud") is None, reason="needs gcloud")

SPEC = MigSpec(project="p", zone="us-central1-a", name="g")
REGIONAL = MigSpec(project="p", region="europe-west1", name="r")
AT_ONCE = {"mig": {"call": 0}}


def test_gcloud_knows_the_lines_that_findings_give(tmp_path: Path) -> None:
    """Each with a flag that no command has: it is the only thing that gcloud complains about."""
    pool = MigPool(name="m", project="p", zone=SPEC.zone, group="g")
    policy, repair = group_findings(pool, {"updatePolicy": {"type": "PROACTIVE"}})
    update = f"{_line(policy)} {_line(repair).rpartition(' ')[2]}"
    with Simulator(migs=[SPEC]) as simulator:
        gcloud = Gcloud(simulator, SPEC, tmp_path)
        for line in (update, _line(missing(pool))):
            complaint = gcloud.run(f"{line} --no-such-flag").stderr.splitlines()[0]
            assert complaint.endswith("unrecognized arguments: --no-such-flag ")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("zones list --filter=region:us-central1", ["us-central1-a"]),
        ("zones list --filter=-region:us-central1", ["europe-west1-a", "europe-west1-b", "europe-west1-c"]),
        ("zones list --filter=region~^us-cen", ["us-central1-a"]),
        ("regions list --filter=zones:europe-west1-b", ["europe-west1"]),
    ],
)
def test_gcloud_finds_by_its_own_filters(tmp_path: Path, command: str, names: list[str]) -> None:
    """They hold backslashes in quotes: ``region eq ".*\\bus\\-central1\\b.*"``."""
    with Simulator(migs=[SPEC, REGIONAL], timings=AT_ONCE) as simulator:
        done = Gcloud(simulator, SPEC, tmp_path).run(f"{command} --format=value(name)")
        assert done.stdout.split() == names, done.stderr


def test_gcloud_says_that_a_field_of_a_filter_is_unknown(tmp_path: Path) -> None:
    with Simulator(migs=[SPEC], timings=AT_ONCE) as simulator:
        done = Gcloud(simulator, SPEC, tmp_path).run("zones list --filter=regio:us-central1")
        assert done.returncode == 1
        assert "Invalid list filter expression" in done.stderr


def _line(finding: Finding) -> str:
    return finding.text.partition("gcloud compute ")[2]
