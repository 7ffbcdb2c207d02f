"""The simulator's audit log entries and operations, compared with real ones field by field."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from provisioner.backends.pubsub_events import InstanceEvent, parse
from provisioner.lab.cloud.compute.operations import ApiError
from provisioner.lab.cloud.world import Fault
from tests.support.clouds.mig_cloud import EXACT, SPEC, ZONE, Cloud

LOG = replace(EXACT, audit=(2.0, 2.0))
SPOT = replace(SPEC, provisioning_model="SPOT")


class Listened(Cloud):
    """A world whose log is read."""

    def __init__(self, *faults: Fault, **options: Any) -> None:
        super().__init__(**{"spec": SPOT, "timings": LOG, **options})
        self.faults(*faults)
        self.messages: list[tuple[bytes, float]] = []
        self.groups.audit.listeners.append(lambda data, published: self.messages.append((data, published)))

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(data) for data, _ in self.messages]

    def methods(self) -> list[str]:
        return [entry["protoPayload"]["methodName"] for entry in self.entries()]

    def of(self, method: str) -> list[dict[str, Any]]:
        return [entry for entry in self.entries() if entry["protoPayload"]["methodName"].endswith(method)]


def shape(document: Any) -> Any:
    """Return a document without its varying parts: every text by its form, every number by its type."""
    if isinstance(document, dict):
        return {key: shape(value) for key, value in document.items()}
    if isinstance(document, list):
        return [shape(value) for value in document]
    if not isinstance(document, str):
        return document if isinstance(document, bool) else type(document).__name__
    for form, pattern in FORMS.items():
        if re.fullmatch(pattern, document):
            return form
    return document


FORMS = {
    "<id>": r"[0-9a-z]{12}|P|p",
    "<time>": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,9}(Z|[+-]\d\d:\d\d)",
    "<number>": r"[0-9]{8,}",
    "<event>": r"systemevent-[0-9]+[.-].*",
    "<operation>": r"operation-.*",
    "<link>": r"https://www\.googleapis\.com/compute/v1/projects/.*|\.\.\..*",
    "<instance>": r"projects/[^/]+/zones/[^/]+/instances/[^/]+",
    "<system log>": r"projects/[^/]+/logs/cloudaudit\.googleapis\.com%2Fsystem_event",
    "<user>": r"[^ ]+@[^ ]+\.com",
    "<zone>": r"[a-z]+-[a-z]+\d-[a-z]",
    "<trigger>": r"c586[^/]*",
}

PREEMPTED = {
    "protoPayload": {
        "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
        "status": {"message": "Instance was preempted."},
        "authenticationInfo": {"principalEmail": "system@google.com"},
        "serviceName": "compute.googleapis.com",
        "methodName": "compute.instances.preempted",
        "resourceName": "projects/P/zones/europe-west1-c/instances/NAME",
        "request": {"@type": "type.googleapis.com/compute.instances.preempted"},
    },
    "insertId": "qnwer3e38dfz",
    "resource": {
        "type": "gce_instance",
        "labels": {"instance_id": "1844000000000", "project_id": "P", "zone": "europe-west1-c"},
    },
    "timestamp": "2023-09-16T10:42:31.325309Z",
    "severity": "INFO",
    "logName": "projects/P/logs/cloudaudit.googleapis.com%2Fsystem_event",
    "operation": {
        "id": "systemevent-1694860946116.abc",
        "producer": "compute.instances.preempted",
        "first": True,
        "last": True,
    },
    "receiveTimestamp": "2023-09-16T10:42:31.782066320Z",
}
"""An operation from a live system, renamed."""

OPERATION = {
    "kind": "compute#operation",
    "id": "8554136016090105726",
    "name": "operation-1505802641136-55984ff86d980-a99e8c2b-0c8aaaaa",
    "zone": "https://www.googleapis.com/compute/v1/projects/project1/zones/us-central1-a",
    "operationType": "compute.instanceGroupManagers.deleteInstances",
    "targetLink": "https://www.googleapis.com/compute/v1/projects/project1/zones/z/instanceGroupManagers/gke-grp",
    "targetId": "5382990249302819619",
    "status": "DONE",
    "user": "user@example.com",
    "progress": 100,
    "insertTime": "2017-09-18T23:30:41.612-07:00",
    "startTime": "2017-09-18T23:30:41.618-07:00",
    "endTime": "2017-09-18T23:30:41.618-07:00",
    "selfLink": "https://www.googleapis.com/compute/v1/projects/project1/zones/z/operations/operation-1",
}
"""A real response to deleteInstances, renamed."""


def test_a_preemption_is_logged_as_in_a_real_log() -> None:
    cloud = Listened()
    cloud.run("a")
    cloud.groups.preempt(["a"])
    cloud.pass_time(3.0)
    (entry,) = cloud.of("preempted")
    assert shape(entry) == shape(PREEMPTED)
    assert entry["resource"]["labels"]["instance_id"] == cloud.shown()["a"]["id"]


def test_an_operation_has_the_form_of_a_real_one() -> None:
    cloud = Cloud(timings=replace(EXACT, operation=(0.0, 0.0)))
    cloud.run("a")
    operation = cloud.mig.delete([cloud.url("a")], skip_invalid=True)
    assert shape(operation.document()) == shape(OPERATION)


def test_a_call_makes_two_entries_and_the_last_says_hardly_anything() -> None:
    cloud = Listened()
    cloud.run("a")
    cloud.pass_time(5.0)
    first, last = cloud.of("v1.compute.instances.insert")
    assert first["operation"].keys() == {"id", "producer", "first"}
    assert last["operation"] == {"id": first["operation"]["id"], "producer": "compute.googleapis.com", "last": True}
    response = first["protoPayload"]["response"]
    assert (response["@type"], response["operationType"], response["status"]) == (
        "type.googleapis.com/operation",
        "insert",
        "RUNNING",
    )
    assert "response" not in last["protoPayload"]
    assert last["severity"] == "NOTICE"
    assert last["labels"].keys() == {"compute.googleapis.com/root_trigger_id"}
    assert last["timestamp"] > first["timestamp"]


def test_a_failed_insert_and_a_repair_are_logged() -> None:
    cloud = Listened(Fault("stockout", limit=1), Fault("repairs"))
    cloud.mig.create(["a"])
    cloud.pass_time(5.0)
    _, last = cloud.of("instances.insert")
    assert (last["severity"], last["protoPayload"]["status"]) == (
        "ERROR",
        {"code": 14, "message": "ZONE_RESOURCE_POOL_EXHAUSTED"},
    )
    cloud.pass_time(100.0)
    cloud.groups.preempt(["a"])
    cloud.pass_time(60.0)
    (repair,) = cloud.of("instances.repair.recreateInstance")
    assert repair["protoPayload"]["status"]["message"].startswith("Instance eligible for repair")


def test_a_refused_call_is_logged_without_operation() -> None:
    cloud = Listened()
    error = ApiError(404, "notFound", "The resource was not found")
    cloud.groups.audit.refused("instances.delete", f"projects/p/zones/{ZONE}/instances/a", error)
    cloud.pass_time(3.0)
    (entry,) = cloud.entries()
    payload = entry["protoPayload"]
    assert "operation" not in entry
    assert (entry["severity"], payload["status"]["code"]) == ("ERROR", 5)
    assert payload["response"] == {
        "@type": "type.googleapis.com/error",
        "error": {"code": 404, "message": "The resource was not found"},
    }
    hint = parse(cloud.messages[0][0])
    assert hint is not None
    assert (hint.instance, hint.event, hint.failed) == ("a", InstanceEvent.DELETED, True)


def test_every_entry_is_read_as_what_it_is() -> None:
    cloud = Listened()
    cloud.run("a")
    cloud.groups.preempt(["a"])
    cloud.pass_time(60.0)
    cloud.delete("a")
    cloud.pass_time(30.0)
    hints = [parse(data, datetime.fromtimestamp(published, UTC)) for data, published in cloud.messages]
    events = [hint.event for hint in hints if hint]
    assert events == [
        InstanceEvent.CREATED,
        InstanceEvent.CREATED,
        InstanceEvent.PREEMPTED,
        InstanceEvent.DELETED,
        InstanceEvent.DELETED,
    ]
    (notice,) = [hint for hint in hints if hint and hint.grace is not None]
    assert (notice.instance, notice.grace) == ("a", pytest.approx(28.0))
