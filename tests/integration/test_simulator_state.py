"""Per-instance configurations and the errors' details of the simulated Compute Engine, through Google's clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import googleapiclient.discovery
import googleapiclient.errors
import googleapiclient.http
import pytest
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from provisioner.lab.cloud.world import Fault
from tests.support.clouds.compute_cloud import ComputeCloud
from tests.support.clouds.specs import advised
from tests.support.waiting import until

ZONE = "us-central1-a"
WHERE = {"project": "p", "zone": ZONE}
GROUP = WHERE | {"instanceGroupManager": "g"}
ZONAL = advised(project="p", zone=ZONE, name="g")
ADDRESS = {"nic0": {"autoDelete": "NEVER", "ipAddress": {"literal": "10.128.0.99"}}}
STATE: dict[str, Any] = {"metadata": {"request": "r-1", "template": "t"}, "internalIPs": ADDRESS}
"""The state that Google's connector sends with each name, and more."""


@pytest.fixture
def cloud() -> Iterator[ComputeCloud]:
    with ComputeCloud([ZONAL]) as running:
        yield running


@pytest.fixture
def service(cloud: ComputeCloud) -> Iterator[Any]:
    """Yield google-api-python-client with its own copy of the discovery document."""
    made = googleapiclient.discovery.build(
        "compute",
        "v1",
        http=googleapiclient.http.build_http(),
        static_discovery=True,
        client_options=ClientOptions(api_endpoint=cloud.url),
    )
    yield made
    made.close()


def create(service: Any, **states: object) -> None:
    """Create members of these names with these preserved states; ``None`` stands for no preserved state."""
    entries = [{"name": name} | ({"preservedState": state} if state else {}) for name, state in states.items()]
    operation = service.instanceGroupManagers().createInstances(**GROUP, body={"instances": entries}).execute()
    assert "error" not in service.zoneOperations().wait(**WHERE, operation=operation["name"]).execute()


def configs(service: Any) -> dict[str, dict[str, Any]]:
    listed = service.instanceGroupManagers().listPerInstanceConfigs(**GROUP).execute()
    return {entry["name"]: entry for entry in listed.get("items", [])}


def members(service: Any) -> dict[str, dict[str, Any]]:
    listed = service.instanceGroupManagers().listManagedInstances(**GROUP).execute()
    return {entry["name"]: entry for entry in listed.get("managedInstances", [])}


def delete(service: Any, *names: str) -> None:
    body = {"instances": [members(service)[name]["instance"] for name in names]}
    service.instanceGroupManagers().deleteInstances(**GROUP, body=body).execute()


# --- what is preserved ------------------------------------------------------------------------------------------------


def test_a_preserved_state_is_shown_by_every_list_that_has_it(cloud: ComputeCloud, service: Any) -> None:
    create(service, a=STATE, b=None)
    until(lambda: cloud.state() == {"a": "running", "b": "running"}, 30)
    by_name = configs(service)
    assert by_name["a"] == {
        "name": "a",
        "preservedState": STATE,
        "fingerprint": by_name["a"]["fingerprint"],
        "status": "EFFECTIVE",
    }
    assert "preservedState" not in by_name["b"]
    assert members(service)["a"]["preservedStateFromConfig"] == STATE
    assert "preservedStateFromConfig" not in members(service)["b"]
    instance = service.instances().get(**WHERE, instance="a").execute()
    items = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
    assert items.items() >= STATE["metadata"].items()


def test_google_cloud_compute_reads_what_is_preserved(cloud: ComputeCloud, service: Any) -> None:
    create(service, a=STATE)
    client = compute_v1.InstanceGroupManagersClient(
        credentials=AnonymousCredentials(), client_options=ClientOptions(api_endpoint=cloud.host)
    )
    [config] = client.list_per_instance_configs(instance_group_manager="g", **WHERE, timeout=30)
    assert dict(config.preserved_state.metadata) == STATE["metadata"]
    assert config.fingerprint


def test_a_recreated_instance_keeps_what_is_preserved(cloud: ComputeCloud, service: Any) -> None:
    create(service, a=STATE)
    until(lambda: cloud.state() == {"a": "running"}, 30)
    before = service.instances().get(**WHERE, instance="a").execute()
    body = {"instances": [members(service)["a"]["instance"]]}
    service.instanceGroupManagers().recreateInstances(**GROUP, body=body).execute()
    until(lambda: cloud.state() != {"a": "running"}, 30)
    until(lambda: cloud.state() == {"a": "running"}, 30)
    after = service.instances().get(**WHERE, instance="a").execute()
    assert after["lastStartTimestamp"] > before["lastStartTimestamp"]
    assert after["metadata"] == before["metadata"]
    assert {"key": "request", "value": "r-1"} in after["metadata"]["items"]


@pytest.mark.parametrize("method", ["deleteInstances", "abandonInstances"])
def test_a_configuration_goes_with_its_instance(cloud: ComputeCloud, service: Any, method: str) -> None:
    create(service, a=STATE, b=STATE)
    until(lambda: cloud.state() == {"a": "running", "b": "running"}, 30)
    cloud.do(lambda: cloud.groups.impose_timings(replace(cloud.groups.timings, delete=(3600.0, 3600.0), leave=(1, 1))))
    body = {"instances": [members(service)["a"]["instance"]]}
    getattr(service.instanceGroupManagers(), method)(**GROUP, body=body).execute()
    until(lambda: configs(service)["a"]["status"] == "DELETING", 30)
    cloud.do(lambda: cloud.world.advance(cloud.world.now + 7200.0))
    assert list(configs(service)) == ["b"]


# --- what else a group, an operation and an error say -----------------------------------------------------------------


@pytest.mark.parametrize("code", ["ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"])
def test_a_stock_out_carries_the_details_that_reports_show(cloud: ComputeCloud, service: Any, code: str) -> None:
    cloud.set_faults(Fault("stockout", params={"code": code}))
    create(service, a=None)
    until(lambda: "lastAttempt" in members(service)["a"], 30)
    [error] = members(service)["a"]["lastAttempt"]["errors"]["errors"]
    assert error["code"] == code
    assert error["message"].startswith(f"The zone 'projects/p/zones/{ZONE}' does not have enough resources")
    detail = {key: value for entry in error["errorDetails"] for key, value in entry.items()}
    assert list(detail) == ["help", "localizedMessage", "errorInfo"]
    assert detail["help"]["links"][0]["url"] == "https://cloud.google.com/compute/docs/resource-error"
    assert detail["localizedMessage"]["locale"] == "en-US"
    assert (
        f"n2-standard-4 VM instance is currently unavailable in the {ZONE} zone"
        in detail["localizedMessage"]["message"]
    )
    assert detail["errorInfo"] == {
        "domain": "compute.googleapis.com",
        "reason": "resource_availability",
        "metadatas": {"attachment": "", "vmType": "n2-standard-4", "zone": ZONE, "zonesAvailable": ""},
    }
    [row, *_] = service.instanceGroupManagers().listErrors(**GROUP).execute()["items"]
    assert row["error"] == {"code": code, "message": error["message"]}, "a row has no room for details"


def test_an_operation_s_error_carries_its_details(cloud: ComputeCloud, service: Any) -> None:
    details = [{"localizedMessage": {"locale": "en-US", "message": "No room."}}]
    cloud.set_faults(Fault("op_error", params={"code": "BOOM", "details": details}, limit=1))
    body = {"instances": [{"name": "a"}]}
    operation = service.instanceGroupManagers().createInstances(**GROUP, body=body).execute()
    ended = service.zoneOperations().wait(**WHERE, operation=operation["name"]).execute()
    assert ended["error"]["errors"][0]["errorDetails"] == details
