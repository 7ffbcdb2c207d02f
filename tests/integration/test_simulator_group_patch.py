"""What instanceGroupManagers.patch changes of a simulated group, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from google.cloud import compute_v1

from provisioner.commands.cli import run
from provisioner.simulator.compute.settings import MigSpec
from provisioner.simulator.world import Fault
from tests.integration.test_mig_check import site
from tests.integration.test_simulator_compute import client, running
from tests.support.clouds.compute_cloud import ComputeCloud
from tests.support.waiting import until

ZONAL = MigSpec(
    project="p",
    zone="us-central1-a",
    name="g",
    labels={"team": "risk"},
    update_type="PROACTIVE",
    default_action_on_failure="REPAIR",
)
REGIONAL = MigSpec(project="p", region="europe-west1", name="r", machine_type="n2-standard-8", labels={"team": "fx"})


@pytest.fixture
def cloud() -> Iterator[ComputeCloud]:
    with ComputeCloud([ZONAL, REGIONAL]) as running:
        yield running


class Group:
    """One group over plain HTTP."""

    def __init__(self, cloud: ComputeCloud, spec: MigSpec) -> None:
        self._cloud, self.spec, self.url = cloud, spec, cloud.url + spec.path

    def get(self) -> dict[str, Any]:
        document: dict[str, Any] = requests.get(self.url, timeout=10).json()
        return document

    def patch(self, body: object) -> requests.Response:
        return requests.patch(self.url, json=body, timeout=10)

    def patched(self, body: object) -> dict[str, Any]:
        """The group when the operation is done."""
        response = self.patch(body)
        assert response.status_code == 200, response.text
        ended = self._waited(response.json())
        assert "error" not in ended
        return self.get()

    def create(self, name: str) -> dict[str, Any]:
        """The operation of createInstances, when it is done."""
        body = {"instances": [{"name": name}]}
        return self._waited(requests.post(f"{self.url}/createInstances", json=body, timeout=10).json())

    def members(self) -> dict[str, dict[str, Any]]:
        listed = requests.post(f"{self.url}/listManagedInstances", timeout=10).json()
        return {entry["name"]: entry for entry in listed.get("managedInstances", [])}

    @staticmethod
    def _waited(operation: dict[str, Any]) -> dict[str, Any]:
        ended: dict[str, Any] = requests.post(f"{operation['selfLink']}/wait", timeout=10).json()
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


def test_a_lifecycle_policy_decides_whether_a_dead_instance_is_made_again(cloud: ComputeCloud) -> None:
    group = Group(cloud, ZONAL)
    group.patched(
        {"updatePolicy": {"type": "OPPORTUNISTIC"}, "instanceLifecyclePolicy": {"forceUpdateOnRepair": "YES"}}
    )
    assert group.get()["instanceLifecyclePolicy"]["defaultActionOnFailure"] == "REPAIR"
    body = {"instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"}}
    assert group.patched(body)["instanceLifecyclePolicy"] == {
        "defaultActionOnFailure": "DO_NOTHING",
        "forceUpdateOnRepair": "YES",
        "onFailedHealthCheck": "DEFAULT_ACTION",
    }
    group.create("hf-1")
    until(running(cloud, 1), 30)
    cloud.do(lambda: cloud.groups.preempt(["hf-1"]))
    until(lambda: group.members()["hf-1"].get("instanceStatus") == "TERMINATED", 30)
    assert not cloud.do(lambda: next(iter(cloud.groups.migs.values())).repairs)
    cloud.do(lambda: cloud.world.advance(cloud.world.now + 60.0))
    assert group.members()["hf-1"]["currentAction"] == "NONE"


def test_what_is_only_shown_is_merged_and_null_takes_it_away(group: Group) -> None:
    check = "projects/p/global/healthChecks/alive"
    group.patched({"autoHealingPolicies": [{"healthCheck": check, "initialDelaySec": 60}], "description": "grid"})
    group.patched({"allInstancesConfig": {"properties": {"labels": {"a": "1", "b": "2"}}}})
    after = group.patched({"allInstancesConfig": {"properties": {"labels": {"a": None, "c": "3"}}}})
    assert after["allInstancesConfig"] == {"properties": {"labels": {"b": "2", "c": "3"}}}
    assert after["autoHealingPolicies"] == [{"healthCheck": check, "initialDelaySec": 60}]
    assert after["description"] == "grid"
    after = group.patched({"autoHealingPolicies": None, "standbyPolicy": {"mode": "SCALE_OUT_POOL"}})
    assert "autoHealingPolicies" not in after
    assert after["standbyPolicy"] == {"mode": "SCALE_OUT_POOL", "initialDelaySec": 0}


def test_null_takes_a_policy_back_to_googles_defaults(cloud: ComputeCloud) -> None:
    group = Group(cloud, ZONAL)
    group.patched({"instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING", "forceUpdateOnRepair": "YES"}})
    after = group.patched({"instanceLifecyclePolicy": None, "updatePolicy": {"type": None}})
    assert after["instanceLifecyclePolicy"] == {
        "defaultActionOnFailure": "REPAIR",
        "forceUpdateOnRepair": "NO",
        "onFailedHealthCheck": "DEFAULT_ACTION",
    }
    assert after["updatePolicy"]["type"] == "OPPORTUNISTIC"


def test_a_fault_takes_the_place_of_what_a_patch_said(cloud: ComputeCloud) -> None:
    group = Group(cloud, ZONAL)
    group.patched({"instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"}})
    cloud.set_faults(Fault("repairs", target="g"))
    assert group.get()["instanceLifecyclePolicy"]["defaultActionOnFailure"] == "REPAIR"
    cloud.set_faults()
    assert group.get()["instanceLifecyclePolicy"]["defaultActionOnFailure"] == "DO_NOTHING"


def test_a_url_in_a_patch_is_shown_to_others_under_the_address_that_they_use(cloud: ComputeCloud) -> None:
    group = Group(cloud, ZONAL)
    group.patched({"autoHealingPolicies": [{"healthCheck": f"{cloud.url}projects/p/global/healthChecks/alive"}]})
    shown = requests.get(group.url, headers={"Host": "elsewhere:1"}, timeout=10).json()["autoHealingPolicies"]
    assert shown == [{"healthCheck": "http://elsewhere:1/compute/v1/projects/p/global/healthChecks/alive"}]


def test_what_a_group_says_can_be_sent_back_whole(group: Group) -> None:
    before = group.get()
    after = group.patched(before | {"description": "x"})
    changed = {"description", "fingerprint"}
    assert {name: value for name, value in after.items() if name not in changed} == {
        name: value for name, value in before.items() if name not in changed
    }


def test_a_number_and_a_share_of_instances_replace_each_other(group: Group) -> None:
    group.patched({"targetSize": 7, "updatePolicy": {"type": "OPPORTUNISTIC", "maxUnavailable": {"percent": 20}}})
    policy = group.get()["updatePolicy"]
    assert (policy["maxSurge"], policy["maxUnavailable"]) == (
        {"fixed": 1, "calculated": 1},
        {"percent": 20, "calculated": 2},
    )
    policy = group.patched({"updatePolicy": {"maxUnavailable": {"fixed": 3}}})["updatePolicy"]
    assert policy["maxUnavailable"] == {"fixed": 3, "calculated": 3}


def test_replacing_one_for_one_leaves_no_room_above_the_size(cloud: ComputeCloud) -> None:
    group = Group(cloud, ZONAL)
    refused = group.patch({"updatePolicy": {"replacementMethod": "RECREATE"}})
    assert refused.status_code == 400
    assert "maxSurge must be equal to 0" in refused.text
    body = {"updatePolicy": {"replacementMethod": "RECREATE", "maxSurge": {"fixed": 0}}}
    assert group.patched(body)["updatePolicy"]["replacementMethod"] == "RECREATE"
    assert "error" not in group.create("hf-1")
    with ComputeCloud([replace(ZONAL, replacement_method="RECREATE")]) as other:
        policy = Group(other, ZONAL).patched({"updatePolicy": {"type": "OPPORTUNISTIC"}})["updatePolicy"]
        assert (policy["replacementMethod"], policy["maxSurge"]["fixed"]) == ("RECREATE", 0)
        policy = Group(other, ZONAL).patched({"updatePolicy": {"replacementMethod": "SUBSTITUTE"}})["updatePolicy"]
        assert policy["maxSurge"]["fixed"] == 0, "nobody changed that"


def test_lists_have_pages_once_a_patch_says_so(cloud: ComputeCloud) -> None:
    group = Group(cloud, ZONAL)
    group.patched({"targetSize": 3, "updatePolicy": {"type": "OPPORTUNISTIC"}})
    until(lambda: len(group.members()) == 3, 30)
    listed = f"{group.url}/listManagedInstances?maxResults=2"
    assert "nextPageToken" not in requests.post(listed, timeout=10).json()
    group.patched({"listManagedInstancesResults": "PAGINATED"})
    assert len(requests.post(listed, timeout=10).json()["managedInstances"]) == 2


def test_a_template_counts_for_what_is_made_from_then_on(cloud: ComputeCloud) -> None:
    group = Group(cloud, ZONAL)
    group.patched({"updatePolicy": {"type": "OPPORTUNISTIC"}})
    group.create("hf-1")
    until(running(cloud, 1), 30)
    templates = f"{cloud.url}projects/p/global/instanceTemplates"
    after = group.patched({"versions": [{"instanceTemplate": f"{templates}/r-template"}]})
    assert after["instanceTemplate"] == f"{templates}/r-template"
    assert [version["instanceTemplate"] for version in after["versions"]] == [f"{templates}/r-template"]
    assert not after["status"]["versionTarget"]["isReached"]
    group.create("hf-2")
    until(running(cloud, 2), 30)
    made = {name: entry["version"]["instanceTemplate"] for name, entry in group.members().items()}
    assert made == {"hf-1": f"{templates}/g-template", "hf-2": f"{templates}/r-template"}
    cloud.do(lambda: cloud.groups.preempt(["hf-1"]))
    assert group.members()["hf-1"]["instanceStatus"] == "STOPPING"
    assert group.members()["hf-1"]["version"]["instanceTemplate"] == f"{templates}/g-template"
    vms = {vm["name"]: vm for vm in requests.get(f"{group.url.rpartition('/instanceG')[0]}/instances").json()["items"]}
    assert [vms[name]["labels"] for name in sorted(vms)] == [{"team": "risk"}, {"team": "fx"}]
    assert vms["hf-2"]["machineType"].endswith("/n2-standard-8")
    assert requests.get(f"{templates}/g-template", timeout=10).status_code == 200, "it is still there"


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
        ({"updatePolicy": {"typ": "PROACTIVE"}}, 400, "Unknown name \"typ\" at 'resource.updatePolicy'"),
        ({"updatePolicy": {"type": "SOMETIMES"}}, 400, "'resource.updatePolicy.type': 'SOMETIMES'"),
        ({"updatePolicy": "PROACTIVE"}, 400, "'resource.updatePolicy'"),
        ({"autoHealingPolicies": {}}, 400, "'resource.autoHealingPolicies'"),
        ({"autoHealingPolicies": [{"initialDelaySec": "x"}]}, 400, "'resource.autoHealingPolicies.initialDelaySec'"),
        ({"autoHealingPolicies": [{}, {}]}, 400, "at most one policy"),
        ({"description": 1}, 400, "'resource.description'"),
        ({"targetSize": True}, 400, "'resource.targetSize'"),
        ({"targetSize": 5000}, 400, "Must be less than or equal to"),
        ({"targetStoppedSize": 1}, 400, "'resource.targetStoppedSize'"),
        ({"versions": [{"instanceTemplate": "x"}]}, 400, "The URL is malformed"),
        ({"versions": [{"name": "a"}]}, 400, "'resource.versions'"),
        ({"instanceTemplate": "global/instanceTemplates/absent"}, 404, "instanceTemplates/absent' was not found"),
        (
            {"updatePolicy": {"maxSurge": {"fixed": 0}, "maxUnavailable": {"percent": 0}}},
            400,
            "cannot both be 0",
        ),
        ([], 400, "not an object"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(group: Group, body: Any, status: int, words: str) -> None:
    before = group.get()
    refused = group.patch(body)
    assert refused.status_code == status, refused.text
    assert words in refused.json()["error"]["message"]
    assert group.get() == before


def test_a_patch_that_was_repeated_is_one_operation(group: Group) -> None:
    identity = {"requestId": "6f2b1c52-6d6b-4d0e-9c3d-0d7f7f3c9a11"}
    names = {requests.patch(group.url, json={"description": "x"}, params=identity).json()["name"] for _ in range(2)}
    assert len(names) == 1


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
