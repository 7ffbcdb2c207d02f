"""gcloud, as a client that we did not write, against the simulated Compute Engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.backends import Finding
from provisioner.backends.group_check import group_findings, missing
from provisioner.settings import MigPool
from provisioner.simulator.compute_settings import MigSpec
from provisioner.simulator.server import Simulator
from provisioner.simulator.world import Fault
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
    pytest.mark.timeout(240),
]

ZONE = "us-central1-a"
REGION = "europe-west1"


TIMINGS = {"call": 0, "operation": 0.1, "schedule": 0.1, "boot": 0.3, "delete": 0.2, "leave": 0.1}


@pytest.fixture
def cloud() -> Iterator[Simulator]:
    migs = [MigSpec(project="p", zone=ZONE, name="g"), MigSpec(project="p", region=REGION, name="r")]
    with Simulator(migs=migs, timings={"mig": TIMINGS}) as running:
        yield running


def phases(cloud: Simulator) -> dict[str, str]:
    return {machine["name"]: machine["phase"] for machine in cloud.state()["machines"]}


def unknown_calls(cloud: Simulator) -> int:
    """Calls for which the simulator has no method."""
    return int(cloud.state()["calls"].get("unknown", 0))


def set_fault(cloud: Simulator, fault: Fault) -> None:
    cloud.call(lambda inside: inside.world.set_faults([fault]))


class Gcloud:
    """gcloud without account, network or configuration of its own."""

    def __init__(self, cloud: Simulator, folder: Path) -> None:
        self._environment = os.environ | {
            "CLOUDSDK_CONFIG": str(folder),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": cloud.compute,
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CORE_PROJECT": "p",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        }

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        arguments = ["gcloud", "compute", *command.split()]
        return subprocess.run(arguments, env=self._environment, capture_output=True, text=True, timeout=60, check=False)

    def read(self, command: str) -> Any:
        done = self.run(command + " --format=json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def gcloud(cloud: Simulator, tmp_path: Path) -> Gcloud:
    return Gcloud(cloud, tmp_path)


MANAGED = "instance-groups managed"


def test_gcloud_knows_the_lines_that_findings_give(gcloud: Gcloud) -> None:
    """Each with a flag that no command has: it is the only thing that gcloud complains about."""
    pool = MigPool(name="m", project="p", zone=ZONE, group="g")
    policy, repair = group_findings(pool, {"updatePolicy": {"type": "PROACTIVE"}})
    update = f"{_line(policy)} {_line(repair).rpartition(' ')[2]}"
    for line in (update, _line(missing(pool))):
        complaint = gcloud.run(f"{line} --no-such-flag").stderr.splitlines()[0]
        assert complaint.endswith("unrecognized arguments: --no-such-flag ")


def _line(finding: Finding) -> str:
    return finding.text.partition("gcloud compute ")[2]


def test_a_life_in_a_zonal_mig(cloud: Simulator, gcloud: Gcloud) -> None:
    created = gcloud.run(f"{MANAGED} create-instance g --instance sym-a --zone {ZONE}")
    assert created.returncode == 0, created.stderr
    until(lambda: phases(cloud) == {"sym-a": "running"}, 10)
    members = gcloud.read(f"{MANAGED} list-instances g --zone {ZONE}")
    assert [(entry["name"], entry["currentAction"], entry["instanceStatus"]) for entry in members] == [
        ("sym-a", "NONE", "RUNNING")
    ]
    migs = {entry["name"]: entry for entry in gcloud.read(f"{MANAGED} list")}
    assert migs["g"]["targetSize"] == 1
    assert migs["g"]["size"] == "1"
    assert migs["r"]["targetSize"] == 0
    assert gcloud.read(f"{MANAGED} describe g --zone {ZONE}")["status"]["isStable"] is True
    deleted = gcloud.run(f"{MANAGED} delete-instances g --instances sym-a --zone {ZONE}")
    assert deleted.returncode == 0, deleted.stderr
    until(lambda: phases(cloud) == {}, 10)
    assert unknown_calls(cloud) == 0


def test_a_life_in_a_regional_mig(cloud: Simulator, gcloud: Gcloud) -> None:
    created = gcloud.run(f"{MANAGED} create-instance r --instance sym-a --region {REGION}")
    assert created.returncode == 0, created.stderr
    until(lambda: phases(cloud) == {"sym-a": "running"}, 10)
    assert [entry["name"] for entry in gcloud.read(f"{MANAGED} list-instances r --region {REGION}")] == ["sym-a"]
    assert gcloud.read(f"{MANAGED} describe r --region {REGION}")["targetSize"] == 1
    deleted = gcloud.run(f"{MANAGED} delete-instances r --instances sym-a --region {REGION}")
    assert deleted.returncode == 0, deleted.stderr
    until(lambda: phases(cloud) == {}, 10)
    assert unknown_calls(cloud) == 0


def test_instances_and_errors_are_listed(cloud: Simulator, gcloud: Gcloud) -> None:
    set_fault(cloud, Fault("stockout", after=1))
    assert gcloud.run(f"{MANAGED} resize g --size 2 --zone {ZONE}").returncode == 0
    until(lambda: sorted(phases(cloud).values()) == ["pending", "running"], 10)
    instances = gcloud.read("instances list --filter=status=RUNNING")
    assert [vm["networkInterfaces"][0]["networkIP"] for vm in instances] == ["10.128.0.2"]
    errors = gcloud.read(f"{MANAGED} list-errors g --zone {ZONE}")
    assert errors[0]["error"]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert [entry["operationType"] for entry in gcloud.read("operations list")] == [
        "compute.instanceGroupManagers.resize"
    ]


def test_a_refused_operation_is_told(cloud: Simulator, gcloud: Gcloud) -> None:
    set_fault(cloud, Fault("precondition"))
    created = gcloud.run(f"{MANAGED} create-instance g --instance sym-a --zone {ZONE}")
    assert created.returncode == 1
    assert "CreateInstances cannot be used when UpdatePolicy type is set to PROACTIVE" in created.stderr
    absent = gcloud.run(f"{MANAGED} describe absent --zone {ZONE}")
    assert absent.returncode == 1
    assert "was not found" in absent.stderr
