"""Methods of the simulated Compute Engine that the provisioner does not call, but operators and other programs do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import requests
from google.api_core.exceptions import BadRequest
from google.cloud import compute_v1

from provisioner.lab.cloud.compute.settings import MigSpec
from provisioner.lab.cloud.world import Fault
from tests.integration.test_simulator_compute import Api, client, library, running
from tests.support.clouds.compute_cloud import ComputeCloud
from tests.support.clouds.specs import advised
from tests.support.waiting import until

ZONE, REGION = "us-central1-a", "europe-west1"
ZONAL = advised(project="p", zone=ZONE, name="g", labels={"team": "risk"}, autoscaler_mode="ON")
REGIONAL = advised(project="p", region=REGION, name="r", machine_type="n2-custom-6-8192")
WHERE = {"project": "p", "zone": ZONE}


@pytest.fixture
def cloud() -> Iterator[ComputeCloud]:
    with ComputeCloud([ZONAL, REGIONAL]) as running:
        yield running


@pytest.fixture
def api(cloud: ComputeCloud) -> Iterator[Api]:
    plain = Api(cloud)
    yield plain
    plain.session.close()


# --- instances of a group ---------------------------------------------------------------------------------------------


def test_a_group_lists_the_instances_that_there_are(cloud: ComputeCloud, api: Api) -> None:
    groups = client(compute_v1.InstanceGroupsClient, cloud)

    def listed(state: str = "", **query: Any) -> dict[str, str]:
        body = compute_v1.InstanceGroupsListInstancesRequest(instance_state=state or None)
        request = compute_v1.ListInstancesInstanceGroupsRequest(
            instance_group="g", instance_groups_list_instances_request_resource=body, **WHERE, **query
        )
        return {vm.instance.rpartition("/")[2]: vm.status for vm in groups.list_instances(request, timeout=30)}

    assert listed() == {}
    cloud.set_faults(Fault("stockout", target="hf-none"), Fault("stuck_provisioning", target="hf-slow"))
    api.create("hf-1", "hf-2", "hf-none", "hf-slow")
    until(running(cloud, 2), 30)
    both = {"hf-1": "RUNNING", "hf-2": "RUNNING"}
    assert listed("RUNNING") == both
    assert listed("ALL") == listed() == both | {"hf-slow": "PROVISIONING"}, "a member without an instance is not there"
    assert listed(filter="instance eq .*hf-[13]") == {"hf-1": "RUNNING"}
    assert listed(filter="(status eq RUNNING) (instance ne .*-1)") == {"hf-2": "RUNNING"}
    assert listed(max_results=1) == listed()
    for state, query in (("SOME", {}), ("ALL", {"filter": "status=RUNNING"})):
        with pytest.raises(BadRequest):
            listed(state, **query)
    api.post(f"projects/p/zones/{ZONE}/instances/hf-1/stop")
    until(lambda: listed().get("hf-1") == "TERMINATED", 30)
    assert "hf-1" not in listed("RUNNING")


# --- what a project has -----------------------------------------------------------------------------------------------


def test_machine_types_are_listed_by_zone_and_all_at_once(cloud: ComputeCloud) -> None:
    types = client(compute_v1.MachineTypesClient, cloud)
    request = compute_v1.ListMachineTypesRequest(filter="(name eq n2-.*) (guestCpus eq 4)", **WHERE)
    memory = {entry.name: entry.memory_mb for entry in types.list(request, timeout=30)}
    assert memory == {"n2-highcpu-4": 4096, "n2-highmem-4": 32768, "n2-standard-4": 16384}
    aggregated = types.aggregated_list(request={"project": "p", "filter": "guestCpus>16"}, timeout=30)
    zones = {scope: {entry.guest_cpus for entry in content.machine_types} for scope, content in aggregated}
    assert zones == {f"zones/{zone}": {32} for zone in (ZONE, *(f"{REGION}-{letter}" for letter in "abc"))}
    for entry in types.list(project="p", zone=ZONE, timeout=30):
        assert types.get(machine_type=entry.name, timeout=30, **WHERE) == entry


# --- autoscalers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [ZONAL, replace(REGIONAL, autoscaler_mode="ON")], ids=["zonal", "regional"])
def test_an_autoscaler_is_in_the_aggregated_list_until_it_is_deleted(spec: MigSpec) -> None:
    with ComputeCloud([spec]) as cloud:
        service = library(cloud)

        def listed() -> dict[str, list[str]]:
            scopes = service.autoscalers().aggregatedList(project="p").execute()["items"]
            by_scope = {
                scope: [entry["name"] for entry in content.get("autoscalers", [])] for scope, content in scopes.items()
            }
            return {scope: names for scope, names in by_scope.items() if names}

        assert listed() == {spec.scope: [spec.name]}
        url = cloud.url + spec.autoscaler
        operation = requests.delete(url, timeout=30).json()
        assert operation["operationType"] == "delete"
        assert operation["targetLink"] == url
        requests.post(f"{operation['selfLink']}/wait", timeout=30)
        assert listed() == {}
        assert "autoscaler" not in requests.get(cloud.url + spec.path, timeout=30).json()["status"]
        assert requests.delete(url, timeout=30).status_code == 404
        service.close()
