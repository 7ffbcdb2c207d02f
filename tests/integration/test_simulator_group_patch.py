"""The fields of a simulated group that instanceGroupManagers.patch changes, and those that it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from google.cloud import compute_v1

from provisioner.commands.cli import run
from provisioner.lab.cloud.compute.settings import MigSpec
from tests.integration.test_mig_check import site
from tests.integration.test_simulator_compute import client, running
from tests.support.clouds.compute_cloud import ComputeCloud
from tests.support.clouds.specs import advised
from tests.support.waiting import until

ZONAL = advised(
    project="p",
    zone="us-central1-a",
    name="g",
    labels={"team": "risk"},
    update_type="PROACTIVE",
    default_action_on_failure="REPAIR",
)
REGIONAL = advised(project="p", region="europe-west1", name="r", machine_type="n2-standard-8", labels={"team": "fx"})


@pytest.fixture
def cloud() -> Iterator[ComputeCloud]:
    with ComputeCloud([ZONAL, REGIONAL]) as running:
        yield running


class Group:
    """A group over plain HTTP."""

    def __init__(self, cloud: ComputeCloud, spec: MigSpec) -> None:
        self._cloud, self.spec, self.url = cloud, spec, cloud.url + spec.path

    def get(self) -> dict[str, Any]:
        document: dict[str, Any] = requests.get(self.url, timeout=30).json()
        return document

    def patch(self, body: object) -> requests.Response:
        return requests.patch(self.url, json=body, timeout=30)

    def patched(self, body: object) -> dict[str, Any]:
        """Patch the group, wait for the operation, and return the group."""
        response = self.patch(body)
        assert response.status_code == 200, response.text
        ended = self._waited(response.json())
        assert "error" not in ended
        return self.get()

    def create(self, name: str) -> dict[str, Any]:
        """Create a member, and return the operation of createInstances when it is done."""
        body = {"instances": [{"name": name}]}
        return self._waited(requests.post(f"{self.url}/createInstances", json=body, timeout=30).json())

    def members(self) -> dict[str, dict[str, Any]]:
        listed = requests.post(f"{self.url}/listManagedInstances", timeout=30).json()
        return {entry["name"]: entry for entry in listed.get("managedInstances", [])}

    @staticmethod
    def _waited(operation: dict[str, Any]) -> dict[str, Any]:
        ended: dict[str, Any] = requests.post(f"{operation['selfLink']}/wait", timeout=30).json()
        return ended


@pytest.fixture(params=[ZONAL, REGIONAL], ids=["zonal", "regional"])
def group(request: pytest.FixtureRequest, cloud: ComputeCloud) -> Group:
    return Group(cloud, request.param)


def test_an_update_policy_decides_whether_instances_can_be_created(cloud: ComputeCloud) -> None:
    group = Group(cloud, ZONAL)
    assert group.create("hf-1")["error"]["errors"][0]["code"] == "CONDITION_NOT_MET"
    policy = group.patched({"updatePolicy": {"type": "OPPORTUNISTIC"}})["updatePolicy"]
    assert policy == {
        "type": "OPPORTUNISTIC",
        "minimalAction": "REPLACE",
        "minReadySec": 0,
        "replacementMethod": "SUBSTITUTE",
        "maxSurge": {"fixed": 1, "calculated": 1},
        "maxUnavailable": {"fixed": 1, "calculated": 1},
    }
    assert "error" not in group.create("hf-1")
    until(running(cloud, 1), 30)


def test_a_group_s_document_can_be_sent_back_whole(group: Group) -> None:
    before = group.get()
    after = group.patched(before | {"description": "x"})
    changed = {"description", "fingerprint"}
    assert {name: value for name, value in after.items() if name not in changed} == {
        name: value for name, value in before.items() if name not in changed
    }


def test_an_old_fingerprint_is_refused(group: Group) -> None:
    before = group.get()["fingerprint"]
    after = group.patched({"description": "x", "fingerprint": before})["fingerprint"]
    assert after != before
    refused = group.patch({"description": "y", "fingerprint": before})
    assert refused.status_code == 412
    assert refused.json()["error"]["errors"][0]["reason"] == "conditionNotMet"
    assert group.patched({"fingerprint": after.replace("+", "-").replace("/", "_")})["description"] == "x"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"updatePolici": {}}, 400, "Unknown name \"updatePolici\" at 'resource'"),
        ({"updatePolicy": {"type": "SOMETIMES"}}, 400, "'resource.updatePolicy.type': 'SOMETIMES'"),
        ({"autoHealingPolicies": [{"initialDelaySec": "x"}]}, 400, "'resource.autoHealingPolicies.initialDelaySec'"),
        ({"description": 1}, 400, "'resource.description'"),
        ({"targetSize": 5000}, 400, "Must be less than or equal to"),
        ({"versions": [{"instanceTemplate": "x"}]}, 400, "The URL is malformed"),
        ({"instanceTemplate": "global/instanceTemplates/absent"}, 404, "instanceTemplates/absent' was not found"),
        (
            {"updatePolicy": {"maxSurge": {"fixed": 0}, "maxUnavailable": {"percent": 0}}},
            400,
            "cannot both be 0",
        ),
    ],
)
def test_an_impossible_value_is_refused_and_changes_nothing(group: Group, body: Any, status: int, words: str) -> None:
    before = group.get()
    refused = group.patch(body)
    assert refused.status_code == status, refused.text
    assert words in refused.json()["error"]["message"]
    assert group.get() == before


def test_google_cloud_compute_patches(cloud: ComputeCloud) -> None:
    migs = client(compute_v1.InstanceGroupManagersClient, cloud)
    where = {"project": "p", "zone": ZONAL.zone, "instance_group_manager": "g", "timeout": 10}
    policy = compute_v1.InstanceGroupManagerUpdatePolicy(type_="OPPORTUNISTIC")
    body = compute_v1.InstanceGroupManager(update_policy=policy)
    operation = migs.patch_unary(instance_group_manager_resource=body, **where)
    assert operation.operation_type == "compute.instanceGroupManagers.patch"
    client(compute_v1.ZoneOperationsClient, cloud).wait(project="p", zone=ZONAL.zone, operation=operation.name)
    assert migs.get(**where).update_policy.type_ == "OPPORTUNISTIC"


def test_check_is_content_with_a_group_that_was_patched_as_it_says(
    tmp_path: Path, cloud: ComputeCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    made = site(tmp_path, cloud.url, a={"project": "p", "zone": "us-central1-a", "group": "g"})
    assert run(["check", "--live", str(made.path), "-o", "json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 2
    body = {
        "updatePolicy": {"type": "OPPORTUNISTIC"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
    }
    Group(cloud, ZONAL).patched(body)
    assert run(["check", "--live", str(made.path), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
