"""The simulated Compute Engine over HTTP, driven by Google's clients; responses are checked against Google's schema."""

from __future__ import annotations

import time
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
from google.api_core.exceptions import Conflict, Forbidden, NotFound, ServiceUnavailable
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1

from provisioner.simulator.compute.settings import Duplicate, MigSpec, Switches
from provisioner.simulator.world import Fault
from tests.support.clouds.compute_cloud import QUICK, ComputeCloud
from tests.support.waiting import until

ZONE = "us-central1-a"
REGION = "europe-west1"
ZONAL = MigSpec(project="p", zone=ZONE, name="g", labels={"hf": "demo"})
REGIONAL = MigSpec(project="p", region=REGION, name="r", list_results="PAGINATED", provisioning_model="SPOT")
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
        return self.session.get(self._cloud.url + path, params=query, timeout=10)

    def post(self, path: str, body: Any = None, **query: str | int) -> requests.Response:
        return self.session.post(self._cloud.url + path, json=body, params=query, timeout=10)

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
    """google-api-python-client with its own copy of the discovery document."""
    return googleapiclient.discovery.build(
        "compute",
        "v1",
        http=googleapiclient.http.build_http(),
        static_discovery=True,
        client_options=ClientOptions(api_endpoint=cloud.url),
    )


# --- Google's clients -------------------------------------------------------------------------------------------------


def test_google_cloud_compute_creates_lists_and_deletes(cloud: ComputeCloud) -> None:
    migs = client(compute_v1.InstanceGroupManagersClient, cloud)
    operations = client(compute_v1.ZoneOperationsClient, cloud)
    instances = client(compute_v1.InstancesClient, cloud)
    where = {"project": "p", "zone": ZONE}
    body = compute_v1.InstanceGroupManagersCreateInstancesRequest(
        instances=[compute_v1.PerInstanceConfig(name=f"hf-{number}") for number in range(3)]
    )
    operation = migs.create_instances_unary(
        instance_group_manager="g", instance_group_managers_create_instances_request_resource=body, timeout=10, **where
    )
    assert operation.operation_type == "compute.instanceGroupManagers.createInstances"
    waited = operations.wait(operation=operation.name, timeout=10, **where)
    assert (waited.status, waited.progress) == (DONE, 100)
    until(running(cloud, 3), 30)
    seen = {vm.name: vm for vm in instances.list(timeout=10, **where)}
    assert sorted(seen) == ["hf-0", "hf-1", "hf-2"]
    assert {vm.status for vm in seen.values()} == {"RUNNING"}
    assert len({vm.network_interfaces[0].network_i_p for vm in seen.values()}) == 3
    managed = list(migs.list_managed_instances(instance_group_manager="g", timeout=10, **where))
    assert {entry.current_action for entry in managed} == {"NONE"}
    deletion = compute_v1.InstanceGroupManagersDeleteInstancesRequest(
        instances=[entry.instance for entry in managed], skip_instances_on_validation_error=True
    )
    migs.delete_instances_unary(
        instance_group_manager="g",
        instance_group_managers_delete_instances_request_resource=deletion,
        timeout=10,
        **where,
    )
    until(lambda: cloud.state() == {}, 30)
    assert migs.get(instance_group_manager="g", timeout=10, **where).target_size == 0
    assert cloud.world.calls["instanceGroupManagers.createInstances"] == 1
    assert cloud.world.calls["instanceGroupManagers.deleteInstances"] == 1


def test_google_cloud_compute_works_on_a_regional_mig(cloud: ComputeCloud) -> None:
    migs = client(compute_v1.RegionInstanceGroupManagersClient, cloud)
    where = {"project": "p", "region": REGION, "instance_group_manager": "r"}
    body = compute_v1.RegionInstanceGroupManagersCreateInstancesRequest(
        instances=[compute_v1.PerInstanceConfig(name=f"hf-{number}") for number in range(4)]
    )
    operation = migs.create_instances_unary(
        region_instance_group_managers_create_instances_request_resource=body, timeout=10, **where
    )
    operations = client(compute_v1.RegionOperationsClient, cloud)
    assert operations.wait(project="p", region=REGION, operation=operation.name, timeout=10).status == DONE
    until(running(cloud, 4), 30)
    request = compute_v1.ListManagedInstancesRegionInstanceGroupManagersRequest(max_results=3, **where)
    pages = list(migs.list_managed_instances(request, timeout=10).pages)
    assert [len(page.managed_instances) for page in pages] == [3, 1]
    listed = client(compute_v1.InstancesClient, cloud).aggregated_list(project="p", timeout=10)
    zones = {scope: len(content.instances) for scope, content in listed if content.instances}
    assert zones == {f"zones/{REGION}-a": 2, f"zones/{REGION}-b": 1, f"zones/{REGION}-c": 1}


def test_google_api_python_client_drives_a_whole_life(cloud: ComputeCloud) -> None:
    service = library(cloud)
    where = {"project": "p", "zone": ZONE}
    body = {"instances": [{"name": "hf-1"}]}
    operation = service.instanceGroupManagers().createInstances(instanceGroupManager="g", body=body, **where).execute()
    assert service.zoneOperations().wait(operation=operation["name"], **where).execute()["status"] == "DONE"
    until(running(cloud, 1), 30)
    page = (
        service.instances().list(filter="labels.hf=demo", fields="items(name,status),nextPageToken", **where).execute()
    )
    assert page == {"items": [{"name": "hf-1", "status": "RUNNING"}]}
    service.instances().delete(instance="hf-1", **where).execute()
    stays = Switches().dead_member_stays
    until(lambda: cloud.state() == ({"hf-1": "gone"} if stays else {}), 30)
    responses: dict[str, Any] = {}
    batch = googleapiclient.http.BatchHttpRequest(
        callback=lambda name, response, error: responses.update({name: response or error}),
        batch_uri=f"{cloud.host}/batch/compute/v1",
    )
    batch.add(service.instanceGroupManagers().get(instanceGroupManager="g", **where), request_id="mig")
    batch.add(service.instances().get(instance="absent", **where), request_id="absent")
    batch.execute()
    assert responses["mig"]["targetSize"] == stays
    assert isinstance(responses["absent"], googleapiclient.errors.HttpError)
    assert responses["absent"].status_code == 404
    service.close()


# --- what is answered -------------------------------------------------------------------------------------------------


def test_an_operation_looks_as_google_prints_it(api: Api) -> None:
    identity = str(uuid.uuid4())
    begun = api.create("hf-1", requestId=identity).json()
    assert begun["kind"] == "compute#operation"
    assert begun["clientOperationId"] == identity
    assert begun["status"] == "RUNNING"
    assert begun["targetLink"].endswith(MIG_PATH)
    assert begun["zone"].endswith(f"projects/p/zones/{ZONE}")
    assert "endTime" not in begun
    ended = api.post(f"projects/p/zones/{ZONE}/operations/{begun['name']}/wait").json()
    assert (ended["status"], ended["progress"]) == ("DONE", 100)
    assert ended["insertTime"] <= ended["startTime"] <= ended["endTime"]
    assert api.session.get(ended["selfLink"], timeout=10).json() == ended, "links lead back to the simulator"


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
    assert api.session.get(template, timeout=10).json()["properties"]["labels"] == {"hf": "demo"}
    errors = api.get(f"{MIG_PATH}/listErrors").json()["items"]
    assert errors[0]["error"]["code"] == "QUOTA_EXCEEDED"
    assert api.managed()["hf-2"]["lastAttempt"]["errors"]["errors"][0]["errorDetails"][0]["quotaInfo"]["limit"] == 500.0


@pytest.mark.parametrize(
    ("path", "query"),
    [
        (f"projects/p/zones/{ZONE}/instanceGroupManagers/absent", {}),
        (f"{INSTANCES}/absent", {}),
        (f"projects/p/zones/{ZONE}/operations/absent", {}),
        ("projects/p/global/instanceTemplates/absent", {}),
        ("projects/p/global/networks", {}),
    ],
)
def test_what_is_not_there_is_404(api: Api, path: str, query: dict[str, str]) -> None:
    response = api.get(path, **query)
    assert response.status_code == 404
    assert response.json()["error"]["errors"][0]["reason"] == "notFound"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"filter": "name eq"}, "invalid"),
        ({"fields": "items("}, "invalidParameter"),
        ({"maxResults": "501"}, "invalid"),
        ({"maxResults": "many"}, "invalid"),
        ({"pageToken": "%%%"}, "invalid"),
        ({"orderBy": "status"}, "invalid"),
    ],
)
def test_a_malformed_list_call_is_400(api: Api, query: dict[str, str], reason: str) -> None:
    response = api.get(INSTANCES, **query)
    assert response.status_code == 400
    assert response.json()["error"]["errors"][0]["reason"] == reason


def test_malformed_mutations_are_400(cloud: ComputeCloud, api: Api) -> None:
    create = f"{cloud.url}{MIG_PATH}/createInstances"
    for body in ("{", "[]", '{"instances": "hf-1"}', '{"instances": []}', '{"instances": [{"name": "Bad"}]}', ""):
        assert api.session.post(create, data=body, timeout=10).status_code == 400, body
    for identity in ("x", "00000000-0000-0000-0000-000000000000"):
        assert api.create("hf-1", requestId=identity).status_code == 400
    assert api.create("hf-1", fields="name(").status_code == 400
    assert api.post(f"{MIG_PATH}/resize").status_code == 400
    cloud.do(lambda: cloud.world.advance(cloud.world.now + 60.0))
    assert cloud.state() == {}


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


def test_aggregated_pages_go_from_zone_to_zone(cloud: ComputeCloud, api: Api) -> None:
    api.create(*(f"hf-{number}" for number in range(5)))
    api.create(*(f"hf-r{number}" for number in range(5)), mig=f"projects/p/regions/{REGION}/instanceGroupManagers/r")
    until(running(cloud, 10), 30)
    seen: list[str] = []
    token, pages = "", 0
    while token or not pages:
        page = api.get("projects/p/aggregated/instances", maxResults=2, pageToken=token).json()
        for content in page["items"].values():
            seen += [vm["name"] for vm in content.get("instances", [])]
        token, pages = page.get("nextPageToken", ""), pages + 1
    assert sorted(seen) == sorted([f"hf-{number}" for number in range(5)] + [f"hf-r{number}" for number in range(5)])
    assert pages == 5


def test_list_managed_instances_pages_only_where_the_mig_says_so(cloud: ComputeCloud, api: Api) -> None:
    regional = f"projects/p/regions/{REGION}/instanceGroupManagers/r"
    api.create(*(f"hf-{number}" for number in range(5)))
    api.create(*(f"hf-r{number}" for number in range(5)), mig=regional)
    until(running(cloud, 10), 30)
    whole = api.post(f"{MIG_PATH}/listManagedInstances", maxResults=2, pageToken="ignored").json()
    assert len(whole["managedInstances"]) == 5
    assert "nextPageToken" not in whole
    page = api.post(f"{regional}/listManagedInstances", maxResults=2, filter="name != hf-r0").json()
    assert [entry["name"] for entry in page["managedInstances"]] == ["hf-r1", "hf-r2"]
    rest = api.post(f"{regional}/listManagedInstances", maxResults=3, pageToken=page["nextPageToken"]).json()
    assert [entry["name"] for entry in rest["managedInstances"]] == ["hf-r3", "hf-r4"]


def test_the_field_mask_header_counts_only_when_switched_on() -> None:
    for honoured in (False, True):
        with ComputeCloud([ZONAL], switches=Switches(field_mask_header=honoured)) as cloud:
            headers = {"X-Goog-FieldMask": "name"}
            response = requests.get(cloud.url + MIG_PATH, headers=headers, timeout=10).json()
            assert (response == {"name": "g"}) is honoured


def test_pretty_print_is_indented(api: Api) -> None:
    assert '\n  "kind"' in api.get(MIG_PATH, prettyPrint="true").text
    assert "\n" not in api.get(MIG_PATH).text


# --- the same call twice ----------------------------------------------------------------------------------------------


def test_a_repeated_request_id_is_one_operation(cloud: ComputeCloud, api: Api) -> None:
    identity = str(uuid.uuid4())
    first = api.create("hf-1", requestId=identity).json()
    assert api.create("hf-1", requestId=identity).json()["name"] == first["name"]
    until(running(cloud, 1), 30)
    again = api.create("hf-1", requestId=identity).json()
    assert (again["name"], again["status"]) == (first["name"], "DONE")
    assert "error" not in again
    identity = str(uuid.uuid4())
    gone = api.delete("hf-1", requestId=identity).json()
    until(lambda: cloud.state() == {}, 30)
    assert api.delete("hf-1", requestId=identity).json()["name"] == gone["name"]
    assert cloud.world.calls["instanceGroupManagers.createInstances"] == 3


def test_a_name_that_exists_fails_the_operation_as_a_whole() -> None:
    with ComputeCloud([ZONAL], switches=Switches(duplicate_name=Duplicate.OPERATION_ERROR)) as cloud:
        api = Api(cloud)
        api.create("hf-1")
        until(running(cloud, 1), 30)
        operation = api.create("hf-1", "hf-2").json()
        ended = api.post(f"projects/p/zones/{ZONE}/operations/{operation['name']}/wait").json()
        assert ended["error"]["errors"][0]["code"] == "RESOURCE_ALREADY_EXISTS"
        assert ended["httpErrorStatusCode"] == 409
        assert list(cloud.state()) == ["hf-1"]
        api.session.close()


def test_a_name_that_exists_can_be_a_conflict_at_once() -> None:
    with ComputeCloud([ZONAL], switches=Switches(duplicate_name=Duplicate.HTTP_CONFLICT)) as cloud:
        api = Api(cloud)
        api.create("hf-1")
        until(running(cloud, 1), 30)
        migs = client(compute_v1.InstanceGroupManagersClient, cloud)
        body = compute_v1.InstanceGroupManagersCreateInstancesRequest(
            instances=[compute_v1.PerInstanceConfig(name="hf-1")]
        )
        with pytest.raises(Conflict):
            migs.create_instances_unary(
                project="p",
                zone=ZONE,
                instance_group_manager="g",
                instance_group_managers_create_instances_request_resource=body,
                timeout=10,
            )
        api.session.close()


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
        migs.get(project="p", zone=ZONE, instance_group_manager="g", timeout=5, retry=None)
    assert refused.value.errors[0]["reason"] == reason  # type: ignore[attr-defined]
    regional = client(compute_v1.RegionInstanceGroupManagersClient, cloud)
    assert regional.get(project="p", region=REGION, instance_group_manager="r", timeout=5).name == "r"


def test_refused_calls_apply_nothing(cloud: ComputeCloud, api: Api) -> None:
    for mode, status in (("unavailable", 503), ("invalid", 400), ("denied", 403), ("throttled", 403)):
        cloud.set_faults(Fault(mode, target="g/instanceGroupManagers.createInstances"))
        assert api.create("hf-1").status_code == status
        assert cloud.state() == {}
        assert api.get(MIG_PATH).json()["targetSize"] == 0
    cloud.set_faults(Fault("invalid"))
    assert api.get(MIG_PATH).status_code == 200, "nothing that is only read is invalid"
    cloud.set_faults()
    assert api.create("hf-2").status_code == 200
    until(lambda: cloud.state() == {"hf-2": "running"}, 30)


def test_a_rate_limit_lasts_for_the_rest_of_the_minute() -> None:
    with ComputeCloud([ZONAL], speed=60.0, faults=[Fault("throttled", params={"per_minute": 5})]) as cloud:
        api = Api(cloud)

        def refused() -> bool:
            return api.get(MIG_PATH).status_code == 403

        until(refused, 30, every=0)
        until(lambda: not refused(), 30)
        until(refused, 30, every=0)
        assert cloud.do(lambda: cloud.world.now) >= 60.0
        api.session.close()


def test_a_lost_response_was_applied(cloud: ComputeCloud, api: Api) -> None:
    cloud.set_faults(Fault("lost_response", target="instanceGroupManagers.createInstances"))
    with pytest.raises(requests.exceptions.ConnectionError):
        api.create("hf-1")
    until(lambda: cloud.state() == {"hf-1": "running"}, 30)


def test_a_reset_connection_applied_nothing(cloud: ComputeCloud, api: Api) -> None:
    cloud.set_faults(Fault("reset", target="instanceGroupManagers.createInstances", limit=1))
    with pytest.raises(requests.exceptions.ConnectionError):
        api.create("hf-1")
    assert api.create("hf-2").status_code == 200
    until(running(cloud, 1), 30)
    assert list(cloud.state()) == ["hf-2"]


def test_a_call_that_hangs_goes_on_when_its_caller_has_gone(cloud: ComputeCloud, api: Api) -> None:
    cloud.set_faults(Fault("hang", target="instanceGroupManagers.createInstances", params={"seconds": 0.5}))
    body = {"instances": [{"name": "hf-1"}]}
    with pytest.raises(requests.exceptions.ReadTimeout):
        api.session.post(f"{cloud.url}{MIG_PATH}/createInstances", json=body, timeout=0.1)
    until(lambda: cloud.state() == {"hf-1": "running"}, 30)


def test_a_stuck_operation_is_waited_for_no_longer_than_google_waits() -> None:
    with ComputeCloud([ZONAL], speed=200.0, faults=[Fault("op_stuck")]) as cloud:
        api = Api(cloud)
        operation = api.create("hf-1").json()
        path = f"projects/p/zones/{ZONE}/operations/{operation['name']}"
        began = cloud.do(lambda: cloud.world.now)
        assert api.post(f"{path}/wait").json()["status"] == "RUNNING"
        assert 119.0 < cloud.do(lambda: cloud.world.now) - began < 300.0
        cloud.set_faults(Fault("op_gone"))
        assert api.get(path).status_code == 404
        api.session.close()


# --- faults of lists --------------------------------------------------------------------------------------------------


def test_the_two_lists_lag_independently(cloud: ComputeCloud, api: Api) -> None:
    api.create("hf-1")
    until(running(cloud, 1), 30)
    cloud.set_faults(Fault("list_lag", target="instances.list", params={"seconds": 60}))
    assert "items" not in api.get(INSTANCES).json()
    assert list(api.managed()) == ["hf-1"]
    cloud.set_faults(Fault("list_lag", target="g", params={"seconds": 60}))
    assert [vm["name"] for vm in api.get(INSTANCES).json()["items"]] == ["hf-1"]
    assert api.managed() == {}


def test_a_lagging_list_still_shows_what_is_gone(cloud: ComputeCloud, api: Api) -> None:
    api.create("hf-1")
    until(running(cloud, 1), 30)
    ran = cloud.do(lambda: cloud.world.now)
    until(lambda: cloud.do(lambda: cloud.world.now) > ran + 2.0, 30)
    api.delete("hf-1")
    until(lambda: cloud.state() == {}, 30)
    # Both lists show it as it was two seconds before its deletion: the second may come that much later.
    cloud.set_faults(Fault("list_lag", params={"seconds": cloud.do(lambda: cloud.world.now) - ran}))
    assert [vm["status"] for vm in api.get(INSTANCES).json()["items"]] == ["RUNNING"]
    assert api.managed()["hf-1"]["currentAction"] == "NONE"


def test_a_partial_list_says_so(cloud: ComputeCloud, api: Api) -> None:
    api.create(*(f"hf-{number}" for number in range(4)))
    until(running(cloud, 4), 30)
    cloud.set_faults(Fault("partial_list", target=ZONE))
    page = api.get(INSTANCES).json()
    assert (len(page["items"]), page["warning"]["code"]) == (2, "UNREACHABLE")
    whole = api.get("projects/p/aggregated/instances").json()
    assert whole["unreachables"] == [f"zones/{ZONE}"]
    assert whole["items"][f"zones/{ZONE}"]["warning"]["code"] == "UNREACHABLE"
    assert "instances" not in whole["items"][f"zones/{ZONE}"]


def test_empty_pages_lead_on_and_tokens_expire(cloud: ComputeCloud, api: Api) -> None:
    api.create(*(f"hf-{number}" for number in range(4)))
    until(running(cloud, 4), 30)
    cloud.set_faults(Fault("empty_page", limit=1))
    empty = api.get(INSTANCES, maxResults=2).json()
    assert "items" not in empty
    first = api.get(INSTANCES, maxResults=2, pageToken=empty["nextPageToken"]).json()
    assert [vm["name"] for vm in first["items"]] == ["hf-0", "hf-1"]
    cloud.set_faults(Fault("token_expired"))
    assert api.get(INSTANCES, maxResults=2, pageToken=first["nextPageToken"]).status_code == 400


@pytest.mark.parametrize(("items", "second"), [(1, ["hf-3"]), (-1, ["hf-1", "hf-2"]), (-2, ["hf-0", "hf-1"])])
def test_pages_move_when_the_list_changes_between_them(
    cloud: ComputeCloud, api: Api, items: int, second: list[str]
) -> None:
    api.create(*(f"hf-{number}" for number in range(4)))
    until(running(cloud, 4), 30)
    cloud.set_faults(Fault("moved_page", params={"items": items}))
    first = api.get(INSTANCES, maxResults=2).json()
    assert [vm["name"] for vm in first["items"]] == ["hf-0", "hf-1"]
    page = api.get(INSTANCES, maxResults=2, pageToken=first["nextPageToken"]).json()
    assert [vm["name"] for vm in page["items"]] == second


@pytest.mark.parametrize("spec", [ZONAL, REGIONAL], ids=["zonal", "regional"])
def test_an_autoscaler_stands_beside_its_mig(spec: MigSpec) -> None:
    with ComputeCloud([replace(spec, autoscaler_mode="ONLY_SCALE_OUT")]) as cloud, requests.Session() as session:

        def get(path: str) -> dict[str, Any]:
            body: dict[str, Any] = session.get(cloud.url + path, timeout=10).json()
            return body

        path = get(spec.path)["status"]["autoscaler"].removeprefix(cloud.url)
        autoscaler = get(path)
        assert autoscaler["autoscalingPolicy"]["mode"] == "ONLY_SCALE_OUT"
        assert autoscaler["target"] == cloud.url + spec.path
        assert get(path.rpartition("/")[0])["items"] == [autoscaler]
        assert get(path + "x")["error"]["code"] == 404
    with ComputeCloud([spec]) as cloud, requests.Session() as session:
        assert "autoscaler" not in get(spec.path)["status"]
        assert get(path)["error"]["code"] == 404


def test_a_mig_that_is_gone_leaves_the_list_of_migs(cloud: ComputeCloud, api: Api) -> None:
    path = "projects/p/aggregated/instanceGroupManagers"
    cloud.set_faults(Fault("mig_gone", target="g"))
    assert api.get(path).json()["items"][f"zones/{ZONE}"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    assert api.create("hf-1").status_code == 404
    cloud.set_faults()
    assert api.get(path).json()["items"][f"zones/{ZONE}"]["instanceGroupManagers"][0]["name"] == "g"


# --- what others do ---------------------------------------------------------------------------------------------------


def test_stopping_and_deleting_vms_behind_the_back_of_the_mig(cloud: ComputeCloud, api: Api) -> None:
    api.create("hf-1", "hf-2", "hf-3")
    until(running(cloud, 3), 30)
    assert api.post(f"{INSTANCES}/hf-1/stop").json()["operationType"] == "stop"
    identity = str(uuid.uuid4())
    deleted = api.session.delete(f"{cloud.url}{INSTANCES}/hf-2", params={"requestId": identity}, timeout=10).json()
    assert (deleted["operationType"], deleted["clientOperationId"]) == ("delete", identity)
    stays = Switches().dead_member_stays
    kept = {"hf-2": "gone"} if stays else {}
    until(lambda: cloud.state() == {"hf-1": "gone", "hf-3": "running"} | kept, 30)
    again = api.session.delete(f"{cloud.url}{INSTANCES}/hf-2", params={"requestId": identity}, timeout=10).json()
    assert again["name"] == deleted["name"]
    assert api.get(MIG_PATH).json()["targetSize"] == 2 + stays
    assert api.get(f"{INSTANCES}/hf-2").status_code == 404


def test_abandoning_recreating_and_resizing(cloud: ComputeCloud, api: Api) -> None:
    api.create("hf-1", "hf-2")
    until(running(cloud, 2), 30)
    urls = {name: entry["instance"] for name, entry in api.managed().items()}
    started = api.get(f"{INSTANCES}/hf-2").json()["lastStartTimestamp"]
    api.post(f"{MIG_PATH}/recreateInstances", {"instances": [urls["hf-2"]]})
    until(lambda: api.get(f"{INSTANCES}/hf-2").json().get("lastStartTimestamp", started) != started, 30)
    api.post(f"{MIG_PATH}/abandonInstances", {"instances": [urls["hf-1"]]})
    until(lambda: "hf-1" not in api.managed(), 30)
    assert api.get(f"{INSTANCES}/hf-1").json()["status"] == "RUNNING"
    api.post(f"{MIG_PATH}/resize", size=3)
    until(lambda: len(api.managed()) == 3, 30)


def test_a_preemption_is_seen_through_both_lists(cloud: ComputeCloud, api: Api) -> None:
    api.create("hf-1", "hf-2")
    until(running(cloud, 2), 30)
    assert cloud.do(lambda: cloud.groups.preempt(["hf-1"])) == ["hf-1"]
    assert api.get(f"{INSTANCES}/hf-1").json()["status"] == "STOPPING"
    until(lambda: api.managed()["hf-1"].get("instanceStatus") == "TERMINATED", 30)
    assert api.get(MIG_PATH).json()["targetSize"] == 2


def test_calls_take_their_time() -> None:
    with ComputeCloud([ZONAL], timings=replace(QUICK, call=(0.2, 0.2))) as cloud:
        began = time.monotonic()
        assert requests.get(cloud.url + MIG_PATH, timeout=10).status_code == 200
        assert time.monotonic() - began >= 0.19


# --- size -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_thousand_instances_are_listed_in_pages() -> None:
    migs = [replace(ZONAL, name=f"g{number}") for number in range(10)]
    with ComputeCloud(migs, timings=replace(QUICK, operation=(0.0, 0.0), schedule=(0.0, 0.0))) as cloud:
        api = Api(cloud)
        for mig in migs:
            api.create(*(f"hf-{mig.name}-{number:04d}" for number in range(1000)), mig=mig.path)
        until(running(cloud, 10_000), 60, every=0.5)
        fields = "items(name,id,status,creationTimestamp,networkInterfaces/networkIP),nextPageToken,warning"
        seen, token = 0, ""
        while token or not seen:
            page = api.get(INSTANCES, filter="labels.hf=demo", fields=fields, pageToken=token).json()
            seen += len(page["items"])
            token = page.get("nextPageToken", "")
        assert seen == 10_000
        assert cloud.world.calls["instances.list"] == 20
        assert len(api.managed(migs[3].path)) == 1000
        api.session.close()
