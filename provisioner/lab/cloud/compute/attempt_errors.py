"""The reasons why a group cannot make an instance now, in Google's words: entries of ``lastAttempt.errors``."""

from __future__ import annotations

from provisioner.lab.cloud.compute.operations import Document, OperationError
from provisioner.lab.cloud.compute.settings import MigSpec, region_of
from provisioner.lab.cloud.world import Fault

STOCKOUT = "ZONE_RESOURCE_POOL_EXHAUSTED"

HELP = {
    "links": [
        {"description": "Troubleshooting documentation", "url": "https://cloud.google.com/compute/docs/resource-error"}
    ]
}


def failed(name: str, code: str, message: str) -> Document:
    """Return the error of a failed attempt to create the instance ``name``. The message contains this name."""
    return {"code": code, "message": f"Instance '{name}' creation failed: {message}"}


def insert_error(error: Document) -> OperationError:
    """Convert the error of an attempt into an operation's error. The audit log shows this error at the end of the
    failed insert."""
    return OperationError(str(error["code"]), str(error["message"]), 503)


def stockout(spec: MigSpec, zone: str, code: str = STOCKOUT) -> Document:
    """Return the error for missing capacity in a zone.

    If ``code`` begins with ZONE_RESOURCE_POOL_EXHAUSTED, the error also has ``errorDetails``, because reports that
    users have published show this field for such codes.
    """
    where = f"The zone 'projects/{spec.project}/zones/{zone}' does not have enough resources available"
    detail = " '(resource type:compute)'." if code.endswith("_WITH_DETAILS") else ""
    message = f"{where} to fulfill the request.{detail}  Try a different zone, or try again later."
    error: Document = {"code": code, "message": message}
    return error | {"errorDetails": _stockout_details(spec, zone)} if code.startswith(STOCKOUT) else error


def _stockout_details(spec: MigSpec, zone: str) -> list[Document]:
    """Return the three entries of ``errorDetails`` in the form that users have published. Each entry has one field."""
    words = (
        f"A {spec.machine_type} VM instance is currently unavailable in the {zone} zone. Alternatively, you can try"
        " your request again with a different VM hardware configuration or at a later time. For more information, see"
        " the troubleshooting documentation."
    )
    metadatas = {"attachment": "", "vmType": spec.machine_type, "zone": zone, "zonesAvailable": ""}
    return [
        {"help": HELP},
        {"localizedMessage": {"locale": "en-US", "message": words}},
        {"errorInfo": {"domain": "compute.googleapis.com", "reason": "resource_availability", "metadatas": metadatas}},
    ]


def quota(spec: MigSpec, zone: str, name: str, fault: Fault) -> Document:
    """Return the error for an exhausted quota of the region."""
    family = spec.machine_type.partition("-")[0].upper()
    metric = str(fault.params.get("metric", f"{family}_CPUS"))
    limit = float(fault.params.get("limit", 500.0))
    region = region_of(zone)
    info = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": f"{metric.replace('_', '-')}-per-project-region",
        "dimensions": {"region": region},
        "limit": limit,
    }
    error = failed(name, "QUOTA_EXCEEDED", f"Quota '{metric}' exceeded.  Limit: {limit} in region {region}.")
    return error | {"errorDetails": [{"quotaInfo": info}]}
