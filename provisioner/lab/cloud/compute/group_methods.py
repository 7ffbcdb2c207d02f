"""Methods of the API that change a group or list its instances. Operators use these methods more than programs do."""

from __future__ import annotations

import json
from collections.abc import Iterable

from provisioner.lab.cloud.compute.group_patch import patch_group
from provisioner.lab.cloud.compute.lists import page_of
from provisioner.lab.cloud.compute.method_table import Call, Method, accepted
from provisioner.lab.cloud.compute.operations import BASE, ApiError, Document
from provisioner.lab.cloud.compute.regex_filter import is_regex_filter

_STATES = ("ALL", "RUNNING")


def _patch(call: Call) -> Document:
    """Patch the group. URLs in the body begin with the address that the caller used; replace this address with ``BASE``
    first."""
    body = json.loads(json.dumps(call.body).replace(call.base, BASE))
    templates = call.groups.templates(call.project)
    return accepted(call, lambda mig, request_id: patch_group(mig, body, templates, request_id))


def _list_instances(call: Call) -> Document:
    """Return the group's instances. If the call's ``instanceState`` is RUNNING, return only the running instances.

    Leave out members without an instance.
    """
    mig, state = call.mig(), call.body.get("instanceState", "ALL")
    if state not in _STATES:
        raise ApiError(
            400, "invalid", f"Invalid value for field 'instanceState': '{state}'. It must be ALL or RUNNING."
        )
    _check_filter(call.query.get("filter", "").strip())

    def source(begin: str, lag: float) -> Iterable[tuple[str, Document]]:
        for name, member in mig.shelf.after(begin, lag):
            status = member.get("instanceStatus", "")
            if status == "RUNNING" or (status and state == "ALL"):
                yield name, {"instance": member["instance"], "status": status}

    kind = "instanceGroupsListInstances" if mig.spec.zone else "regionInstanceGroupsListInstances"
    return page_of(call.list_call(mig.spec.name), kind, source, order=False)


def _check_filter(text: str) -> None:
    if text and not is_regex_filter(text):
        words = "Invalid list filter expression: this method knows only eq and ne"
        raise ApiError(400, "invalid", f"Invalid value for field 'filter': '{text}'. {words}")


def _autoscaler_delete(call: Call) -> Document:
    """Delete the autoscaler and leave the group as it is."""
    mig, request_id = call.mig(), call.query.get("requestId", "")
    operation = call.groups.operations.repeated(mig.spec.autoscaler, request_id)
    if operation is None and not mig.spec.autoscaler_mode:
        raise ApiError(404, "notFound", f"The resource '{call.path}' was not found")
    return (operation or call.groups.delete_autoscaler(mig, request_id)).document()


def _of_scope(prefix: str, placeholder: str) -> list[Method]:
    """Return this module's methods for zones or for regions. ``prefix``: ``instance`` or ``regionInstance``;
    ``placeholder``: ``zone`` or ``region``."""
    scope = f"projects/{{project}}/{placeholder}s/{{{placeholder}}}/"
    mig, group = scope + "instanceGroupManagers/{name}", scope + "instanceGroups/{name}"
    autoscalers = "autoscalers." if placeholder == "zone" else "regionAutoscalers."
    return [
        Method(f"{prefix}GroupManagers.patch", "PATCH", mig, _patch, mutates=True),
        Method(f"{prefix}Groups.listInstances", "POST", group + "/listInstances", _list_instances),
        Method(autoscalers + "delete", "DELETE", scope + "autoscalers/{name}", _autoscaler_delete, mutates=True),
    ]


METHODS: tuple[Method, ...] = (*_of_scope("instance", "zone"), *_of_scope("regionInstance", "region"))
