"""The methods of the Compute Engine API that the simulator has, with their paths and responses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from provisioner.lab.cloud.compute.group import Mig
from provisioner.lab.cloud.compute.group_registry import Groups
from provisioner.lab.cloud.compute.instance_configs import config_document, preserved_states
from provisioner.lab.cloud.compute.labels import new_labels
from provisioner.lab.cloud.compute.lists import ListCall, Source, aggregated_page, fixed, page_items, page_of, token_of
from provisioner.lab.cloud.compute.operations import ApiError, Document, Operation
from provisioner.lab.cloud.compute.resource_documents import (
    autoscaler_document,
    instance_group_document,
    mig_document,
    project_document,
    region_document,
    zone_document,
)
from provisioner.lab.cloud.compute.settings import UnknownPlace, UnknownProject
from provisioner.lab.cloud.compute.vms import Vm

PATH = "/compute/v1/"


@dataclass(frozen=True)
class Method:
    """A method of the API."""

    name: str
    verb: str
    path: str
    respond: Callable[[Call], Document]
    mutates: bool = False
    is_waiting: bool = False
    """True for a method whose response waits until the operation is done."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern of the method's path."""
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path))


@dataclass(frozen=True)
class Call:
    """A call of a method."""

    groups: Groups
    method: Method
    path: str
    """Relative URL."""
    scope: str
    """``zones/<zone>`` or ``regions/<region>``; empty for a method without either."""
    parts: Mapping[str, str]
    """The values of the path's placeholders."""
    query: Mapping[str, str]
    body: Mapping[str, Any]
    base: str
    """The address that the caller used for this server. Every URL in a response begins with this address."""

    @property
    def project(self) -> str:
        """The project's id."""
        return self.parts["project"]

    @property
    def place(self) -> str:
        """The zone or region."""
        return self.scope.rpartition("/")[2]

    @property
    def named(self) -> str:
        """The name of the resource that the call is about; for a list, the name of the zone, region or project."""
        return self.parts.get("name") or self.place or self.project

    def mig(self) -> Mig:
        """Return the MIG that the path names; raise 404 if it does not exist."""
        return self.groups.mig(self.project, self.scope, self.parts["name"])

    def operation(self) -> Operation:
        """Return the operation that the path names; raise 404 if it does not exist."""
        return self.groups.operations.get(self.project, self.scope, self.parts["name"])

    def check_place(self) -> None:
        """Raise an error if the project, zone or region does not exist. The switches choose which error."""
        switches, groups = self.groups.switches, self.groups
        if not groups.has_project(self.project):
            raise unknown_project(switches.unknown_project, self.project, self.method.name)
        kind = self.scope.partition("/")[0]
        if kind and self.place not in (groups.zones if kind == "zones" else groups.regions)(self.project):
            raise unknown_place(switches.unknown_place, self.project, self.scope)

    def list_call(self, place: str = "") -> ListCall:
        """Return the call as a ``ListCall``. ``place``: the zone, region or MIG whose items are listed; empty: the
        call's own zone or region."""
        return ListCall(self.groups.world, self.method.name, self.path, place or self.place, self.query, self.base)


def unknown_project(switch: UnknownProject, project: str, method: str) -> ApiError:
    """Return the error of a call whose project does not exist. ``switch``: the switch that chooses the error."""
    if switch is UnknownProject.FORBIDDEN:
        return ApiError(403, "forbidden", f"Required 'compute.{method}' permission for 'projects/{project}'")
    return ApiError(404, "notFound", f"The resource 'projects/{project}' was not found")


def unknown_place(switch: UnknownPlace, project: str, scope: str) -> ApiError:
    """Return the error of a call whose zone or region ``scope`` does not exist. ``switch``: the switch that chooses the
    error."""
    if switch is UnknownPlace.INVALID:
        kind, _, place = scope.partition("/")
        field = kind.removesuffix("s")
        return ApiError(400, "invalid", f"Invalid value for field '{field}': '{place}'. Unknown {field}.")
    return ApiError(404, "notFound", f"The resource 'projects/{project}/{scope}' was not found")


@dataclass(frozen=True)
class Collection:
    """Resources of a project. The method ``list`` shows the resources of one zone or region. The method
    ``aggregatedList`` shows the resources of all zones and regions."""

    kind: str
    """The type of the resources in a zone, as in Google's field ``kind``, such as ``instanceGroup``."""
    kind_in_region: str
    documents: Callable[[Call, str], Mapping[str, Document]]
    """A function that returns the documents of a zone or region (``zones/<zone>``) by name."""

    def listed(self, call: Call) -> Document:
        """Return a page of the resources in the zone or region of the call."""
        kind = self.kind if call.scope.startswith("zones") else self.kind_in_region
        return page_of(call.list_call(), f"{kind}List", fixed(self.documents(call, call.scope)))

    def aggregated(self, call: Call) -> Document:
        """Return a page of the resources in all zones and regions."""
        scopes = {scope: fixed(self.documents(call, scope)) for scope in scopes_of(call)}
        return aggregated_page(call.list_call(), f"{self.kind}AggregatedList", f"{self.kind}s", scopes)


# --- MIGs -------------------------------------------------------------------------------------------------------------


def _mig_get(call: Call) -> Document:
    return mig_document(call.mig())


def _migs(call: Call, scope: str) -> dict[str, Document]:
    return {mig.spec.name: mig_document(mig) for mig in call.groups.migs_of(call.project, scope)}


def _create_instances(call: Call) -> Document:
    instances = _list(call.body.get("instances", []))
    names = [str(entry.get("name", "")) if isinstance(entry, dict) else "" for entry in instances]
    preserved = preserved_states(instances)
    return accepted(call, lambda mig, request_id: mig.create(names, request_id, preserved))


def _delete_instances(call: Call) -> Document:
    urls, skip = _urls(call), bool(call.body.get("skipInstancesOnValidationError", False))
    return accepted(call, lambda mig, request_id: mig.delete(urls, skip_invalid=skip, request_id=request_id))


def _abandon_instances(call: Call) -> Document:
    return accepted(call, lambda mig, request_id: mig.abandon(_urls(call), request_id))


def _recreate_instances(call: Call) -> Document:
    return accepted(call, lambda mig, request_id: mig.recreate(_urls(call), request_id))


def _resize(call: Call) -> Document:
    text = call.query.get("size", "")
    if not text.removeprefix("-").isdecimal():
        raise ApiError(400, "required", "Required parameter: size")
    return accepted(call, lambda mig, request_id: mig.resize(int(text), request_id))


def accepted(call: Call, begin: Callable[[Mig, str], Operation]) -> Document:
    """Begin a mutation, and return its operation.

    If an earlier call had the same requestId, begin no mutation, and return the operation of the earlier call.
    """
    mig, request_id = call.mig(), call.query.get("requestId", "")
    operation = call.groups.operations.repeated(mig.spec.path, request_id)
    return (operation or begin(mig, request_id)).document()


def _list_managed(call: Call) -> Document:
    """Return the requested page of members. If the group is PAGELESS, return all members that match the filter."""
    mig = call.mig()
    list_call = call.list_call(mig.spec.name)
    if not mig.paginated:
        predicate = list_call.predicate
        everything = [document for _, document in mig.shelf.after("", list_call.lag)]
        return _page("managedInstances", [one for one in everything if predicate is None or predicate(one)], "")
    return _page("managedInstances", *page_items(list_call, mig.shelf.after, order=False))


def _list_errors(call: Call) -> Document:
    rows = {f"{number:06d}": row for number, row in enumerate(call.mig().errors)}
    return _page("items", *page_items(call.list_call(call.parts["name"]), fixed(rows), order=False))


def _list_configs(call: Call) -> Document:
    configs = {member.name: config_document(member) for member in call.mig().members.values() if member.configured}
    return _page("items", *page_items(call.list_call(call.parts["name"]), fixed(configs), order=False))


def _page(field: str, items: list[Document], last: str) -> Document:
    document: Document = {field: items} if items else {}
    return document | {"nextPageToken": token_of(last)} if last else document


# --- instances --------------------------------------------------------------------------------------------------------


def _instance_get(call: Call) -> Document:
    vm = call.groups.vm(call.project, call.place, call.parts["name"])
    document = call.groups.vms.shelf(call.project, call.place).get(vm.name)
    if document is None:
        raise ApiError(404, "notFound", f"The resource '{vm.path}' was not found")
    return document


def _instance_list(call: Call) -> Document:
    return page_of(call.list_call(), "instanceList", call.groups.vms.shelf(call.project, call.place).after)


def _instance_aggregated(call: Call) -> Document:
    shelves = {f"zones/{zone}": call.groups.vms.shelf(call.project, zone) for zone in call.groups.zones(call.project)}
    sources: dict[str, Source] = {scope: shelf.after for scope, shelf in shelves.items()}
    return aggregated_page(call.list_call(), "instanceAggregatedList", "instances", sources)


def _instance_delete(call: Call) -> Document:
    return _act_on_instance(call, call.groups.delete_vm)


def _instance_stop(call: Call) -> Document:
    return _act_on_instance(call, call.groups.stop_vm)


def _instance_set_labels(call: Call) -> Document:
    def begin(vm: Vm, request_id: str) -> Operation:
        return call.groups.set_labels(vm, new_labels(call.body, vm.labels), request_id)

    return _act_on_instance(call, begin)


def _act_on_instance(call: Call, begin: Callable[[Vm, str], Operation]) -> Document:
    """Begin a mutation as ``accepted`` does. A repeated call is recognised even if its instance is gone."""
    name, request_id = call.parts["name"], call.query.get("requestId", "")
    target = f"projects/{call.project}/{call.scope}/instances/{name}"
    operation = call.groups.operations.repeated(target, request_id)
    return (operation or begin(call.groups.vm(call.project, call.place, name), request_id)).document()


# --- operations, zones, regions, projects, instance groups, autoscalers -----------------------------------------------


def _operation_get(call: Call) -> Document:
    operation = call.operation()
    if call.groups.world.strikes("op_gone", operation.name, operation.kind, operation.target.path.rpartition("/")[2]):
        raise ApiError(404, "notFound", f"The resource '{call.path}' was not found")
    return operation.document()


def _operations(call: Call, scope: str) -> Mapping[str, Document]:
    return call.groups.operations.documents_of(call.project, scope)


def _zone_get(call: Call) -> Document:
    return zone_document(call.project, call.place)


def _zone_list(call: Call) -> Document:
    zones = call.groups.zones(call.project)
    return page_of(call.list_call(), "zoneList", fixed({zone: zone_document(call.project, zone) for zone in zones}))


def _region_get(call: Call) -> Document:
    return region_document(call.project, call.place, call.groups.zones(call.project))


def _region_list(call: Call) -> Document:
    zones, regions = call.groups.zones(call.project), call.groups.regions(call.project)
    documents = {region: region_document(call.project, region, zones) for region in regions}
    return page_of(call.list_call(), "regionList", fixed(documents))


def _project_get(call: Call) -> Document:
    return project_document(call.project)


def _group_get(call: Call) -> Document:
    return instance_group_document(call.mig())


def _groups(call: Call, scope: str) -> dict[str, Document]:
    return {mig.spec.name: instance_group_document(mig) for mig in call.groups.migs_of(call.project, scope)}


def _autoscalers(call: Call, scope: str) -> dict[str, Document]:
    migs = call.groups.migs_of(call.project, scope)
    return {mig.spec.name: autoscaler_document(mig) for mig in migs if mig.spec.autoscaler_mode}


def _autoscaler_get(call: Call) -> Document:
    document = _autoscalers(call, call.scope).get(call.parts["name"])
    if document is None:
        raise ApiError(404, "notFound", f"The resource '{call.path}' was not found")
    return document


# --- parts ------------------------------------------------------------------------------------------------------------


def scopes_of(call: Call) -> Iterable[str]:
    """Return all zones and regions of the project."""
    zones = [f"zones/{zone}" for zone in call.groups.zones(call.project)]
    return zones + [f"regions/{region}" for region in call.groups.regions(call.project)]


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ApiError(400, "invalid", "Invalid value for field 'resource.instances': expected a list")
    return value


def _urls(call: Call) -> list[str]:
    return [str(url) for url in _list(call.body.get("instances", []))]


# --- the table --------------------------------------------------------------------------------------------------------


MIGS = Collection("instanceGroupManager", "regionInstanceGroupManager", _migs)
GROUPS = Collection("instanceGroup", "regionInstanceGroup", _groups)
AUTOSCALERS = Collection("autoscaler", "regionAutoscaler", _autoscalers)
OPERATIONS = Collection("operation", "operation", _operations)


def _of_scope(prefix: str, placeholder: str) -> list[Method]:
    """Return the methods that zones and regions both have, in the form for one of the two.

    ``prefix``: ``instance`` or ``regionInstance``; ``placeholder``: ``zone`` or ``region``.
    """
    scope = f"projects/{{project}}/{placeholder}s/{{{placeholder}}}/"
    migs, mig = f"{prefix}GroupManagers.", scope + "instanceGroupManagers/{name}"
    groups, autoscalers = f"{prefix}Groups.", "autoscalers." if placeholder == "zone" else "regionAutoscalers."
    operations, operation = f"{placeholder}Operations.", scope + "operations/{name}"
    return [
        Method(migs + "get", "GET", mig, _mig_get),
        Method(migs + "list", "GET", scope + "instanceGroupManagers", MIGS.listed),
        Method(migs + "createInstances", "POST", mig + "/createInstances", _create_instances, mutates=True),
        Method(migs + "deleteInstances", "POST", mig + "/deleteInstances", _delete_instances, mutates=True),
        Method(migs + "abandonInstances", "POST", mig + "/abandonInstances", _abandon_instances, mutates=True),
        Method(migs + "recreateInstances", "POST", mig + "/recreateInstances", _recreate_instances, mutates=True),
        Method(migs + "resize", "POST", mig + "/resize", _resize, mutates=True),
        Method(migs + "listManagedInstances", "POST", mig + "/listManagedInstances", _list_managed),
        Method(migs + "listErrors", "GET", mig + "/listErrors", _list_errors),
        Method(migs + "listPerInstanceConfigs", "POST", mig + "/listPerInstanceConfigs", _list_configs),
        Method(groups + "get", "GET", scope + "instanceGroups/{name}", _group_get),
        Method(groups + "list", "GET", scope + "instanceGroups", GROUPS.listed),
        Method(autoscalers + "get", "GET", scope + "autoscalers/{name}", _autoscaler_get),
        Method(autoscalers + "list", "GET", scope + "autoscalers", AUTOSCALERS.listed),
        Method(operations + "get", "GET", operation, _operation_get),
        Method(operations + "wait", "POST", operation + "/wait", _operation_get, is_waiting=True),
        Method(operations + "list", "GET", scope + "operations", OPERATIONS.listed),
    ]


_PROJECT = "projects/{project}"
_INSTANCES = _PROJECT + "/zones/{zone}/instances"

METHODS: tuple[Method, ...] = (
    *_of_scope("instance", "zone"),
    *_of_scope("regionInstance", "region"),
    Method(
        "instanceGroupManagers.aggregatedList", "GET", _PROJECT + "/aggregated/instanceGroupManagers", MIGS.aggregated
    ),
    Method("instanceGroups.aggregatedList", "GET", _PROJECT + "/aggregated/instanceGroups", GROUPS.aggregated),
    Method("autoscalers.aggregatedList", "GET", _PROJECT + "/aggregated/autoscalers", AUTOSCALERS.aggregated),
    Method("globalOperations.aggregatedList", "GET", _PROJECT + "/aggregated/operations", OPERATIONS.aggregated),
    Method("instances.aggregatedList", "GET", _PROJECT + "/aggregated/instances", _instance_aggregated),
    Method("instances.list", "GET", _INSTANCES, _instance_list),
    Method("instances.get", "GET", _INSTANCES + "/{name}", _instance_get),
    Method("instances.delete", "DELETE", _INSTANCES + "/{name}", _instance_delete, mutates=True),
    Method("instances.stop", "POST", _INSTANCES + "/{name}/stop", _instance_stop, mutates=True),
    Method("instances.setLabels", "POST", _INSTANCES + "/{name}/setLabels", _instance_set_labels, mutates=True),
    Method("zones.list", "GET", _PROJECT + "/zones", _zone_list),
    Method("zones.get", "GET", _PROJECT + "/zones/{zone}", _zone_get),
    Method("regions.list", "GET", _PROJECT + "/regions", _region_list),
    Method("regions.get", "GET", _PROJECT + "/regions/{region}", _region_get),
    Method("projects.get", "GET", _PROJECT, _project_get),
)
