"""The simulated Compute Engine over HTTP, driven by Google's clients; responses are checked against Google's schema."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import googleapiclient.discovery
import googleapiclient.errors
import googleapiclient.http
import pytest
import requests
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import Forbidden, NotFound, ServiceUnavailable
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from provisioner.lab.cloud.world import Fault
from tests.support.clouds.compute_cloud import ComputeCloud
from tests.support.clouds.specs import advised
from tests.support.waiting import until

ZONE = "us-central1-a"
REGION = "europe-west1"
ZONAL = advised(project="p", zone=ZONE, name="g", labels={"hf": "demo"})
REGIONAL = advised(project="p", region=REGION, name="r", list_results="PAGINATED", provisioning_model="SPOT")
MIG_PATH = f"projects/p/zones/{ZONE}/instanceGroupManagers/g"
INSTANCES = f"projects/p/zones/{ZONE}/instances"
DONE = compute_v1.Operation.Status.DONE


@pytest.fixture
def cloud() -> Iterator[ComputeCloud]:
    with ComputeCloud([ZONAL, REGIONAL]) as running:
        yield running


class Api:
    """Plain HTTP, to see what is really sent."""

    def __init__(self, cloud: ComputeCloud) -> None:
        self._cloud = cloud
        self.session = requests.Session()

    def get(self, path: str, **query: str | int) -> requests.Response:
        return self.session.get(self._cloud.url + path, params=query, timeout=30)

    def post(self, path: str, body: Any = None, **query: str | int) -> requests.Response:
        return self.session.post(self._cloud.url + path, json=body, params=query, timeout=30)

    def create(self, *names: str, mig: str = MIG_PATH, **query: str | int) -> requests.Response:
        return self.post(f"{mig}/createInstances", {"instances": [{"name": name} for name in names]}, **query)

    def delete(self, *names: str, skip: bool = True, **query: str | int) -> requests.Response:
        urls = [f"https://elsewhere.example/compute/v1/{INSTANCES}/{name}" for name in names]
        body = {"instances": urls, "skipInstancesOnValidationError": skip}
        return self.post(f"{MIG_PATH}/deleteInstances", body, **query)

    def managed(self, mig: str = MIG_PATH) -> dict[str, dict[str, Any]]:
        entries = self.post(f"{mig}/listManagedInstances").json().get("managedInstances", [])
        return {entry["name"]: entry for entry in entries}


@pytest.fixture
def api(cloud: ComputeCloud) -> Iterator[Api]:
    plain = Api(cloud)
    yield plain
    plain.session.close()


def running(cloud: ComputeCloud, count: int) -> Callable[[], bool]:
    return lambda: list(cloud.state().values()).count("running") == count


def client(kind: Any, cloud: ComputeCloud) -> Any:
    return kind(credentials=AnonymousCredentials(), client_options=ClientOptions(api_endpoint=cloud.host))


def library(cloud: ComputeCloud) -> Any:
    """Return google-api-python-client with its own copy of the discovery document."""
    return googleapiclient.discovery.build(
        "compute",
        "v1",
        http=googleapiclient.http.build_http(),
        static_discovery=True,
        client_options=ClientOptions(api_endpoint=cloud.url),
    )


# --- Google's clients -------------------------------------------------------------------------------------------------


def test_google_cloud_compute_works_on_a_regional_mig(cloud: ComputeCloud) -> None:
    migs = client(compute_v1.RegionInstanceGroupManagersClient, cloud)
    where = {"project": "p", "region": REGION, "instance_group_manager": "r"}
    body = compute_v1.RegionInstanceGroupManagersCreateInstancesRequest(
        instances=[compute_v1.PerInstanceConfig(name=f"hf-{number}") for number in range(4)]
    )
    operation = migs.create_instances_unary(
        region_instance_group_managers_create_instances_request_resource=body, timeout=30, **where
    )
    operations = client(compute_v1.RegionOperationsClient, cloud)
    assert operations.wait(project="p", region=REGION, operation=operation.name, timeout=30).status == DONE
    until(running(cloud, 4), 30)
    request = compute_v1.ListManagedInstancesRegionInstanceGroupManagersRequest(max_results=3, **where)
    pages = list(migs.list_managed_instances(request, timeout=30).pages)
    assert [len(page.managed_instances) for page in pages] == [3, 1]
    listed = client(compute_v1.InstancesClient, cloud).aggregated_list(project="p", timeout=30)
    zones = {scope: len(content.instances) for scope, content in listed if content.instances}
    assert zones == {f"zones/{REGION}-a": 2, f"zones/{REGION}-b": 1, f"zones/{REGION}-c": 1}


# --- what is answered -------------------------------------------------------------------------------------------------


def test_an_operation_has_the_fields_that_google_prints(api: Api) -> None:
    identity = str(uuid.uuid4())
    operation = api.create("hf-1", requestId=identity).json()
    assert operation["kind"] == "compute#operation"
    assert operation["clientOperationId"] == identity
    assert operation["status"] == "RUNNING"
    assert operation["targetLink"].endswith(MIG_PATH)
    assert operation["zone"].endswith(f"projects/p/zones/{ZONE}")
    assert "endTime" not in operation
    ended = api.post(f"projects/p/zones/{ZONE}/operations/{operation['name']}/wait").json()
    assert (ended["status"], ended["progress"]) == ("DONE", 100)
    assert ended["insertTime"] <= ended["startTime"] <= ended["endTime"]
    assert api.session.get(ended["selfLink"], timeout=30).json() == ended, "links lead back to the simulator"


def test_everything_that_can_be_read_answers_in_googles_schema(cloud: ComputeCloud, api: Api) -> None:
    cloud.set_faults(Fault("quota", target="hf-2"))
    assert api.create("hf-1", "hf-2").status_code == 200
    assert api.create("hf-r", mig=f"projects/p/regions/{REGION}/instanceGroupManagers/r").status_code == 200
    until(running(cloud, 2), 30)
    for scope, mig in ((f"projects/p/zones/{ZONE}", "g"), (f"projects/p/regions/{REGION}", "r")):
        for path in ("instanceGroupManagers", "instanceGroups", "autoscalers", "operations"):
            assert api.get(f"{scope}/{path}").status_code == 200
        assert api.get(f"{scope}/instanceGroupManagers/{mig}").json()["name"] == mig
        assert api.get(f"{scope}/instanceGroups/{mig}").json()["size"] in (1, 2)
        assert api.get(scope).json()["status"] == "UP"
        assert api.get(f"{scope}/instanceGroupManagers/{mig}/listErrors").status_code == 200
        configs = api.post(f"{scope}/instanceGroupManagers/{mig}/listPerInstanceConfigs").json()
        assert configs["items"]
    for path in ("instanceGroupManagers", "instanceGroups", "autoscalers", "operations", "instances"):
        assert api.get(f"projects/p/aggregated/{path}").status_code == 200
    assert api.get(f"{INSTANCES}/hf-1").json()["status"] == "RUNNING"
    assert api.get("projects/p").json()["name"] == "p"
    assert [zone["name"] for zone in api.get("projects/p/zones").json()["items"]][-1] == ZONE
    assert [region["name"] for region in api.get("projects/p/regions").json()["items"]] == [REGION, "us-central1"]
    template = api.get("projects/p/global/instanceTemplates").json()["items"][0]["selfLink"]
    assert api.session.get(template, timeout=30).json()["properties"]["labels"] == {"hf": "demo"}
    errors = api.get(f"{MIG_PATH}/listErrors").json()["items"]
    assert errors[0]["error"]["code"] == "QUOTA_EXCEEDED"
    assert api.managed()["hf-2"]["lastAttempt"]["errors"]["errors"][0]["errorDetails"][0]["quotaInfo"]["limit"] == 500.0


def test_pages_are_complete_and_in_order_also_with_a_filter(cloud: ComputeCloud, api: Api) -> None:
    names = [f"hf-{number:03d}" for number in range(25)]
    api.create(*names)
    until(running(cloud, 25), 30)
    for query, expected in (({}, names), ({"filter": "name eq hf-01.*"}, names[10:20])):
        seen: list[str] = []
        token, pages = "", 0
        while token or not pages:
            page = api.get(INSTANCES, maxResults=4, pageToken=token, fields="items/name,nextPageToken", **query).json()
            seen += [item["name"] for item in page["items"]]
            token, pages = page.get("nextPageToken", ""), pages + 1
        assert seen == expected
        assert pages == -(-len(expected) // 4)
    assert "items" not in api.get(INSTANCES, filter="name=absent").json()


# --- faults of the way ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        (Fault("throttled"), Forbidden, "rateLimitExceeded"),
        (Fault("denied"), Forbidden, "forbidden"),
        (Fault("mig_gone"), NotFound, "notFound"),
        (Fault("http_error", params={"status": 503, "reason": "oops"}), ServiceUnavailable, "oops"),
    ],
    ids=lambda value: getattr(value, "mode", ""),
)
def test_a_refused_call_raises_googles_exception_with_the_reason(
    cloud: ComputeCloud, fault: Fault, error: type[Exception], reason: str
) -> None:
    cloud.set_faults(replace(fault, target="g"))
    migs = client(compute_v1.InstanceGroupManagersClient, cloud)
    with pytest.raises(error) as refused:
        migs.get(project="p", zone=ZONE, instance_group_manager="g", timeout=30, retry=None)
    assert refused.value.errors[0]["reason"] == reason  # type: ignore[attr-defined]
    regional = client(compute_v1.RegionInstanceGroupManagersClient, cloud)
    assert regional.get(project="p", region=REGION, instance_group_manager="r", timeout=30).name == "r"
