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


def _line(finding: Finding) -> str:
    return finding.text.partition("gcloud compute ")[2]
