"""The documents that Compute Engine prints for MIGs, zones, regions, templates, instance groups and lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provisioner.lab.cloud.compute.fingerprints import fingerprint_of
from provisioner.lab.cloud.compute.group import Mig
from provisioner.lab.cloud.compute.group_patch import mig_fingerprint, with_settings
from provisioner.lab.cloud.compute.instance_configs import stateful_document
from provisioner.lab.cloud.compute.operations import BASE, ApiError, Document, numeric_id, timestamp
from provisioner.lab.cloud.compute.settings import MigSpec, project_number, region_of

ACTION_FIELDS = {
    "NONE": "none",
    "CREATING": "creating",
    "CREATING_WITHOUT_RETRIES": "creatingWithoutRetries",
    "RECREATING": "recreating",
    "DELETING": "deleting",
    "ABANDONING": "abandoning",
    "RESTARTING": "restarting",
    "REFRESHING": "refreshing",
    "VERIFYING": "verifying",
    "STARTING": "starting",
    "STOPPING": "stopping",
    "SUSPENDING": "suspending",
    "RESUMING": "resuming",
}

PROJECT_MADE = 1_400_000_000.0
"""The creation time of projects, zones and regions, as epoch seconds. The value is arbitrary."""


def mig_document(mig: Mig) -> Document:
    """Return an instanceGroupManager."""
    spec = mig.spec
    actions = mig.actions()
    document = _located(spec.project, spec.scope) | {
        "kind": "compute#instanceGroupManager",
        "id": mig.id,
        "name": spec.name,
        "creationTimestamp": timestamp(mig.created),
        "baseInstanceName": spec.base_instance_name or spec.name,
        "fingerprint": mig_fingerprint(mig),
        "instanceGroup": f"{BASE}projects/{spec.project}/{spec.scope}/instanceGroups/{spec.name}",
        "instanceTemplate": BASE + spec.template,
        "versions": [{"instanceTemplate": BASE + spec.template, "targetSize": {"calculated": mig.target_size}}],
        "targetSize": mig.target_size,
        "targetStoppedSize": 0,
        "targetSuspendedSize": 0,
        "targetSizePolicy": {"mode": "INDIVIDUAL"},
        "listManagedInstancesResults": "PAGINATED" if mig.paginated else "PAGELESS",
        "currentActions": {field: actions[action] for action, field in ACTION_FIELDS.items()},
        "status": {
            "isStable": mig.is_stable,
            "stateful": stateful_document(mig.members.values()),
            "versionTarget": {"isReached": True},
            "allInstancesConfig": {"effective": True},
        },
        "updatePolicy": {
            "type": spec.update_type,
            "minimalAction": "REPLACE",
            "minReadySec": 0,
            "replacementMethod": spec.replacement_method,
        },
        "instanceLifecyclePolicy": {
            "defaultActionOnFailure": "REPAIR" if mig.is_repairing else "DO_NOTHING",
            "forceUpdateOnRepair": "NO",
            "onFailedHealthCheck": "DEFAULT_ACTION",
        },
        "standbyPolicy": {"initialDelaySec": 0, "mode": "MANUAL"},
        "selfLink": BASE + spec.path,
    }
    if spec.autoscaler_mode:
        document["status"]["autoscaler"] = BASE + spec.autoscaler
    if spec.region:
        zones = [{"zone": f"{BASE}projects/{spec.project}/zones/{zone}"} for zone in spec.all_zones]
        document["distributionPolicy"] = {"targetShape": spec.target_shape, "zones": zones}
        document["updatePolicy"]["instanceRedistributionType"] = spec.redistribution
    return with_settings(document, mig)


def autoscaler_document(mig: Mig) -> Document:
    """Return the autoscaler that is attached to a MIG. The autoscaler has the name of the MIG."""
    spec = mig.spec
    return _located(spec.project, spec.scope) | {
        "kind": "compute#autoscaler",
        "id": numeric_id(spec.autoscaler),
        "name": spec.name,
        "creationTimestamp": timestamp(mig.created),
        "target": BASE + spec.path,
        "status": "ACTIVE",
        "autoscalingPolicy": {
            "mode": spec.autoscaler_mode,
            "minNumReplicas": 0,
            "maxNumReplicas": 10,
            "coolDownPeriodSec": 60,
            "cpuUtilization": {"utilizationTarget": 0.6, "predictiveMethod": "NONE"},
        },
        "selfLink": BASE + spec.autoscaler,
    }


def instance_group_document(mig: Mig) -> Document:
    """Return the document of the instanceGroup that a MIG manages."""
    spec = mig.spec
    path = f"projects/{spec.project}/{spec.scope}/instanceGroups/{spec.name}"
    region = spec.region or region_of(spec.zone)
    return _located(spec.project, spec.scope) | {
        "kind": "compute#instanceGroup",
        "id": numeric_id(path),
        "name": spec.name,
        "creationTimestamp": timestamp(mig.created),
        "description": "This instance group is controlled by the instance group manager of the same name.",
        "fingerprint": "42WmSpB8rSM=",
        "network": f"{BASE}projects/{spec.project}/global/networks/default",
        "subnetwork": f"{BASE}projects/{spec.project}/regions/{region}/subnetworks/default",
        "size": len(mig.members),
        "selfLink": BASE + path,
    }


def template_document(spec: MigSpec, created: float) -> Document:
    """Return the instanceTemplate of a MIG.

    The numeric id is made from the template's path. So templates with the same name in different projects have
    different ids.
    """
    return {
        "kind": "compute#instanceTemplate",
        "id": numeric_id(spec.template),
        "name": spec.template.rpartition("/")[2],
        "creationTimestamp": timestamp(created),
        "description": "",
        "selfLink": BASE + spec.template,
        "properties": {
            "machineType": spec.machine_type,
            "labels": dict(spec.labels),
            "scheduling": {
                "provisioningModel": spec.provisioning_model,
                "preemptible": spec.provisioning_model == "SPOT",
                "automaticRestart": spec.provisioning_model != "SPOT",
                **(
                    {}
                    if spec.max_run_seconds is None
                    else {"maxRunDuration": {"seconds": f"{spec.max_run_seconds:.0f}"}}
                ),
            },
            "networkInterfaces": [
                {"name": "nic0", "network": f"{BASE}projects/{spec.project}/global/networks/default"}
            ],
            "disks": [{"boot": True, "autoDelete": True, "index": 0, "mode": "READ_WRITE", "type": "PERSISTENT"}],
        },
    }


def zone_document(project: str, zone: str) -> Document:
    """Return the document of a zone that is up."""
    return {
        "kind": "compute#zone",
        "id": numeric_id(zone),
        "name": zone,
        "description": zone,
        "status": "UP",
        "creationTimestamp": timestamp(PROJECT_MADE),
        "region": f"{BASE}projects/{project}/regions/{region_of(zone)}",
        "availableCpuPlatforms": ["Intel Cascade Lake", "Intel Ice Lake"],
        "supportsPzs": False,
        "selfLink": f"{BASE}projects/{project}/zones/{zone}",
    }


def region_document(project: str, region: str, zones: Sequence[str]) -> Document:
    """Return the document of a region that is up, with the region's zones."""
    return {
        "kind": "compute#region",
        "id": numeric_id(region),
        "name": region,
        "description": region,
        "status": "UP",
        "creationTimestamp": timestamp(PROJECT_MADE),
        "quotas": [{"metric": "INSTANCES", "limit": 24000.0, "usage": 0.0}],
        "zones": [f"{BASE}projects/{project}/zones/{zone}" for zone in zones if region_of(zone) == region],
        "supportsPzs": False,
        "selfLink": f"{BASE}projects/{project}/regions/{region}",
    }


def project_document(project: str) -> Document:
    """Return the document of a project, with the project's number."""
    return {
        "kind": "compute#project",
        "id": str(project_number(project)),
        "name": project,
        "creationTimestamp": timestamp(PROJECT_MADE),
        "defaultServiceAccount": f"{project_number(project)}-compute@developer.gserviceaccount.com",
        "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": fingerprint_of({})},
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
        "selfLink": f"{BASE}projects/{project}",
    }


def with_unknown_words(document: Document) -> Document:
    """Return a list's document with values that the provisioner does not know.

    Each item has an unknown action or status, and an unknown field. A later version of the API may have such values.
    """
    changed = dict(document)
    for field, word in (("managedInstances", "currentAction"), ("items", "status")):
        if field in document:
            strange = {word: f"SOME_NEW_{word.upper()}", "someNewField": {"value": "1"}}
            changed[field] = [
                entry | strange if isinstance(entry.get(word), str) else entry for entry in document[field]
            ]
    return changed


def error_document(error: ApiError) -> Document:
    """Return the body of the response to a refused call."""
    entry = {"message": error.message, "domain": "global", "reason": error.reason}
    if error.reason == "rateLimitExceeded":
        entry["domain"] = "usageLimits"
    return {"error": {"code": error.status, "message": error.message, "errors": [entry]}}


def warning(code: str, message: str, data: Mapping[str, str]) -> Document:
    """Return a warning in the form in which lists contain it."""
    return {"code": code, "message": message, "data": [{"key": key, "value": value} for key, value in data.items()]}


def unreachable(scope: str, code: str = "UNREACHABLE") -> Document:
    """Return the warning of a list that lacks the resources of this zone or region."""
    return warning(code, f"The following location is unreachable: {scope}.", {"scope": scope})


def nothing_in(scope: str) -> Document:
    """Return the warning of an aggregated list for a zone or region without resources on the page."""
    return warning("NO_RESULTS_ON_PAGE", f"There are no results for scope '{scope}' on this page.", {"scope": scope})


def _located(project: str, scope: str) -> Document:
    kind, _, place = scope.partition("/")
    return {kind.removesuffix("s"): f"{BASE}projects/{project}/{kind}/{place}"}
