"""The call instanceGroupManagers.patch: the effect of a JSON merge patch on a MIG, and the MIG's document afterwards.

Until a member is recreated, it keeps the template from which it was made. An update of type PROACTIVE recreates all
members. Until all members have been recreated, ``status.versionTarget.isReached`` is false.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provisioner.lab.cloud.compute.fingerprints import check_fingerprint, fingerprint_of
from provisioner.lab.cloud.compute.group import Mig
from provisioner.lab.cloud.compute.operations import ApiError, Document, Operation
from provisioner.lab.cloud.compute.schema import Field, FieldType, messages
from provisioner.lab.cloud.compute.settings import MigSpec

RESOURCE = "InstanceGroupManager"

_DECIDES: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("updatePolicy", "type"): ("update_type", "OPPORTUNISTIC"),
    ("updatePolicy", "replacementMethod"): ("replacement_method", "SUBSTITUTE"),
    ("instanceLifecyclePolicy", "defaultActionOnFailure"): ("default_action_on_failure", "REPAIR"),
    ("updatePolicy", "instanceRedistributionType"): ("redistribution", "PROACTIVE"),
    ("distributionPolicy", "targetShape"): ("target_shape", "EVEN"),
    ("listManagedInstancesResults",): ("list_results", "PAGELESS"),
    ("baseInstanceName",): ("base_instance_name", ""),
}
"""For each path of a patch: the field of ``MigSpec`` that it sets, and Google's default of the field."""

_SHOWN = (
    "allInstancesConfig",
    "autoHealingPolicies",
    "description",
    "distributionPolicy",
    "instanceFlexibilityPolicy",
    "instanceLifecyclePolicy",
    "resourcePolicies",
    "standbyPolicy",
    "statefulPolicy",
    "targetPools",
    "updatePolicy",
)
"""Fields that are stored and shown with the value from the patch. Some other fields have their own code. The rest
cannot be patched."""

_ACTIONS = ("NONE", "REFRESH", "RESTART", "REPLACE")
_WORDS: Mapping[str, Sequence[str]] = {
    "distributionPolicy.targetShape": ("ANY", "ANY_SINGLE_ZONE", "BALANCED", "EVEN"),
    "instanceLifecyclePolicy.defaultActionOnFailure": ("DO_NOTHING", "REPAIR"),
    "instanceLifecyclePolicy.forceUpdateOnRepair": ("NO", "YES"),
    "instanceLifecyclePolicy.onFailedHealthCheck": ("DEFAULT_ACTION", "DO_NOTHING", "REPAIR"),
    "listManagedInstancesResults": ("PAGELESS", "PAGINATED"),
    "standbyPolicy.mode": ("MANUAL", "SCALE_OUT_POOL"),
    "updatePolicy.instanceRedistributionType": ("NONE", "PROACTIVE"),
    "updatePolicy.minimalAction": _ACTIONS,
    "updatePolicy.mostDisruptiveAllowedAction": _ACTIONS,
    "updatePolicy.replacementMethod": ("RECREATE", "SUBSTITUTE"),
    "updatePolicy.type": ("OPPORTUNISTIC", "PROACTIVE"),
}
"""The values that a field accepts, by the field's path."""

_SURGES = ("maxSurge", "maxUnavailable")
_TEMPLATE = re.compile(r"(?:(?:.*/)?projects/(?P<project>[^/]+)/)?global/instanceTemplates/(?P<name>[^/]+)")


def patch_group(mig: Mig, body: Document, templates: Mapping[str, MigSpec], request_id: str = "") -> Operation:
    """Begin to change a MIG by a patch. ``templates``: the project's templates.

    Raises 400 for an unknown field or a wrong value. Raises 404 for an unknown template, and 412 for an old
    fingerprint.
    """
    _check(body, RESOURCE, "")
    if "fingerprint" in body:
        words = f"Fingerprint of '{mig.spec.path}' is out of date: read the group again"
        check_fingerprint(body["fingerprint"], mig_fingerprint(mig), words)
    _check_what_is_lacking(mig, body)
    template = _template(mig.spec, body, templates)
    return mig.patch(lambda changed: _apply(changed, body, template), body.get("targetSize"), request_id)


def with_settings(document: Document, mig: Mig) -> Document:
    """Return a MIG's ``document`` with the settings from its patches."""
    merged = _merged(document, mig.settings)
    for name in _SURGES:
        merged["updatePolicy"][name] = _calculated(_surge(mig, name), mig.target_size)
    if not all(member.vm is None or member.vm.spec.template == mig.spec.template for member in mig.members.values()):
        merged["status"] = merged["status"] | {"versionTarget": {"isReached": False}}
    return merged


def mig_fingerprint(mig: Mig) -> str:
    """Return the fingerprint of a MIG, which changes with each effective patch."""
    decided = {name: getattr(mig.spec, name) for name, _ in (*_DECIDES.values(), ("template", ""))}
    return fingerprint_of([mig.settings, decided])


# --- what a patch does ------------------------------------------------------------------------------------------------


def _apply(mig: Mig, body: Document, template: MigSpec | None) -> None:
    """Apply the patch to the MIG at the end of the patch's operation. Since the call, other patches may have changed
    the MIG's settings."""
    decided: dict[str, Any] = {}
    for path, (name, usual) in _DECIDES.items():
        given, value = _at(body, path)
        if given:
            decided[name] = usual if value is None else value
    shown = {name: body[name] for name in _SHOWN if name in body}
    surges = {"updatePolicy": {name: _surge(mig, name) for name in _SURGES}}
    mig.spec = replace(_made_from(mig.spec, template), **decided)
    mig.settings = _without(_merged(_merged(mig.settings, surges), shown), _DECIDES)
    mig.follow_settings()


def _made_from(spec: MigSpec, template: MigSpec | None) -> MigSpec:
    """Return the MIG's spec with the values of another template. If ``template`` is None, return the spec unchanged."""
    if template is None:
        return spec
    return replace(
        spec,
        template_name=template.template.rpartition("/")[2],
        machine_type=template.machine_type,
        labels=template.labels,
        provisioning_model=template.provisioning_model,
        termination_action=template.termination_action,
        max_run_seconds=template.max_run_seconds,
    )


def _at(body: Mapping[str, Any], path: Sequence[str]) -> tuple[bool, Any]:
    """Return (True, value) if a patch has a value at a path, else (False, None). If an object on the path is null, the
    value is null."""
    value: Any = body
    for name in path:
        if value is None or name not in value:
            return value is None, None
        value = value[name]
    return True, value


def _merged(document: Mapping[str, Any], patch: Mapping[str, Any]) -> Document:
    """Merge two documents as RFC 7396 demands: objects are merged field by field, and null removes a field.

    ``maxSurge`` and ``maxUnavailable`` are exceptions. The patch replaces such an object as a whole, because it has
    either a fixed number or a percentage.
    """
    merged = dict(document)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and name not in _SURGES:
            before = merged.get(name)
            merged[name] = _merged(before if isinstance(before, dict) else {}, value)
        else:
            merged[name] = value
    return merged


def _without(settings: Document, paths: Iterable[tuple[str, ...]]) -> Document:
    """Return the settings without the fields at ``paths``. The MIG's spec already contains the values of these
    fields."""
    left = dict(settings)
    for path in paths:
        if len(path) == 2 and path[0] in left:
            left[path[0]] = {name: value for name, value in left[path[0]].items() if name != path[1]}
    return left


def _calculated(limit: Mapping[str, Any], size: int) -> Document:
    """Return a limit of updates as given, and the number of machines that the limit allows.

    The limit is a fixed number, or a percentage of ``size``. The number of machines is rounded up.
    """
    if "percent" in limit:
        return {"percent": limit["percent"], "calculated": -(-size * limit["percent"] // 100)}
    return {"fixed": limit["fixed"], "calculated": limit["fixed"]} if "fixed" in limit else {"calculated": 0}


# --- validation -------------------------------------------------------------------------------------------------------


def _check(value: Mapping[str, Any], message: str, path: str) -> None:
    """Raise 400 for the first unknown field, or the first value that a field cannot have."""
    for name, inner in value.items():
        field = messages()[message].fields.get(name)
        where = f"{path}.{name}" if path else name
        if field is None:
            at = f" at 'resource.{path}'" if path else " at 'resource'"
            raise _invalid(f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.')
        for entry in _entries(field, inner, where):
            _check_value(entry, field, where)


def _entries(field: Field, value: Any, where: str) -> Iterator[Any]:
    """Yield the values of a field.

    The values are the entries of a list, the values of a map, or else the value itself. Null has no values. Raise 400
    if the field must be a list or a map and the value has another type.
    """
    if value is None:
        return
    if field.repeated and isinstance(value, list):
        yield from value
    elif field.kind is FieldType.MAP and isinstance(value, dict):
        yield from value.values()
    elif field.repeated or field.kind is FieldType.MAP:
        raise _invalid(f"Invalid value at 'resource.{where}': {json.dumps(value)}")
    else:
        yield value


def _check_value(value: Any, field: Field, where: str) -> None:
    types: dict[FieldType, type] = {FieldType.NUMBER: int, FieldType.TRUTH: bool, FieldType.OBJECT: dict}
    kind = FieldType.OBJECT if field.message else FieldType.TEXT if field.kind is FieldType.MAP else field.kind
    right = isinstance(value, types.get(kind, str)) and (kind is FieldType.TRUTH or not isinstance(value, bool))
    if value is not None and not right and where != "id":
        raise _invalid(f"Invalid value at 'resource.{where}': {json.dumps(value)}")
    words = _WORDS.get(where)
    if words and value not in words:
        raise _invalid(f"Invalid value for field 'resource.{where}': '{value}'. It must be one of {', '.join(words)}.")
    if field.message and value is not None:
        _check(value, field.message, where)


def _check_what_is_lacking(mig: Mig, body: Mapping[str, Any]) -> None:
    """Raise 400 for a value that Google refuses or that the simulator does not support. If only the simulator refuses
    the value, the message names the simulator."""
    if len(body.get("autoHealingPolicies") or ()) > 1:
        raise _invalid("Invalid value for field 'resource.autoHealingPolicies': at most one policy can be given.")
    for name in ("targetStoppedSize", "targetSuspendedSize"):
        if body.get(name):
            raise _invalid(f"Invalid value for field 'resource.{name}': the simulator has no standby instances.")
    versions = body.get("versions") or ()
    if len(versions) > 1 or any(version.get("name") for version in versions):
        raise _invalid("Invalid value for field 'resource.versions': the simulator has one version, without a name.")
    _check_policy(mig, body.get("updatePolicy") or {})


def _check_policy(mig: Mig, policy: Mapping[str, Any]) -> None:
    """Raise 400 if the limits and the method of the MIG's updates contradict each other. A value that the patch does
    not give comes from the MIG's settings."""
    surge, unavailable = (_calculated(policy.get(name) or _surge(mig, name), 100)["calculated"] for name in _SURGES)
    if not surge and not unavailable:
        raise _invalid("Invalid value for field 'resource.updatePolicy': maxSurge and maxUnavailable cannot both be 0.")
    method = policy.get("replacementMethod") or mig.spec.replacement_method
    if method == "RECREATE" and surge:
        raise _invalid(
            "Invalid value for field 'resource.updatePolicy.maxSurge': maxSurge must be equal to 0 when replacement"
            " method is set to RECREATE"
        )


def _surge(mig: Mig, name: str) -> Mapping[str, Any]:
    """Return a limit of the MIG's updates. ``name``: ``maxSurge`` or ``maxUnavailable``."""
    at_once = 0 if name == "maxSurge" and mig.spec.replacement_method == "RECREATE" else len(mig.spec.all_zones)
    usual = {"fixed": at_once}
    limit: Mapping[str, Any] = mig.settings.get("updatePolicy", {}).get(name) or usual
    return limit


def _template(spec: MigSpec, body: Mapping[str, Any], templates: Mapping[str, MigSpec]) -> MigSpec | None:
    """Return the template that a patch gives to the MIG; None if the patch gives none. ``versions`` override
    ``instanceTemplate``."""
    versions = body.get("versions") or [{}]
    url = versions[0].get("instanceTemplate") or body.get("instanceTemplate")
    if not url:
        return None
    match = _TEMPLATE.fullmatch(url)
    if match is None or match["project"] not in (None, spec.project):
        raise _invalid(f"Invalid value for field 'resource.instanceTemplate': '{url}'. The URL is malformed.")
    if match["name"] not in templates:
        path = f"projects/{spec.project}/global/instanceTemplates/{match['name']}"
        raise ApiError(404, "notFound", f"The resource '{path}' was not found")
    return templates[match["name"]]


def _invalid(message: str) -> ApiError:
    return ApiError(400, "invalid", message)
