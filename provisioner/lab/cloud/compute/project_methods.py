"""Methods about a project's resources other than groups: instance templates, machine types, global operations."""

from __future__ import annotations

from provisioner.lab.cloud.compute.lists import Source, aggregated_page, fixed, page_of
from provisioner.lab.cloud.compute.machine_types import machine_type_document, machine_types
from provisioner.lab.cloud.compute.method_table import Call, Method
from provisioner.lab.cloud.compute.operations import ApiError, Document
from provisioner.lab.cloud.compute.resource_documents import template_document


def _templates(call: Call) -> dict[str, Document]:
    """Return all templates of the project by name."""
    groups = call.groups
    return {
        name: template_document(spec, groups.migs[spec.project, spec.scope, spec.name].created)
        for name, spec in groups.templates(call.project).items()
    }


def _template_get(call: Call) -> Document:
    document = _templates(call).get(call.parts["name"])
    if document is None:
        raise ApiError(404, "notFound", f"The resource '{call.path}' was not found")
    return document


def _template_list(call: Call) -> Document:
    return page_of(call.list_call(), "instanceTemplateList", fixed(_templates(call)))


def _template_aggregated(call: Call) -> Document:
    """Return the page of an aggregated list with all templates in the scope ``global``. Templates do not belong to
    regions."""
    scopes: dict[str, Source] = {f"regions/{region}": fixed({}) for region in call.groups.regions(call.project)}
    scopes["global"] = fixed(_templates(call))
    return aggregated_page(call.list_call(), "instanceTemplateAggregatedList", "instanceTemplates", scopes)


def _machine_type_get(call: Call) -> Document:
    return machine_type_document(call.project, call.place, call.parts["name"])


def _machine_types(call: Call, zone: str) -> Source:
    used = {spec.machine_type for spec in call.groups.templates(call.project).values()}
    return fixed(machine_types(call.project, zone, used))


def _machine_type_list(call: Call) -> Document:
    return page_of(call.list_call(), "machineTypeList", _machine_types(call, call.place))


def _machine_type_aggregated(call: Call) -> Document:
    scopes = {f"zones/{zone}": _machine_types(call, zone) for zone in call.groups.zones(call.project)}
    return aggregated_page(call.list_call(), "machineTypeAggregatedList", "machineTypes", scopes)


def _global_operation_get(call: Call) -> Document:
    return call.groups.operations.get(call.project, "global", call.parts["name"]).document()


def _global_operation_list(call: Call) -> Document:
    """Return the global operations. The list is empty, because each operation belongs to a zone or a region."""
    return page_of(
        call.list_call(), "operationList", fixed(call.groups.operations.documents_of(call.project, "global"))
    )


_PROJECT = "projects/{project}"
_TYPES = _PROJECT + "/zones/{zone}/machineTypes"
_TEMPLATES = _PROJECT + "/global/instanceTemplates"
_OPERATIONS = _PROJECT + "/global/operations"

METHODS: tuple[Method, ...] = (
    Method("machineTypes.aggregatedList", "GET", _PROJECT + "/aggregated/machineTypes", _machine_type_aggregated),
    Method("machineTypes.list", "GET", _TYPES, _machine_type_list),
    Method("machineTypes.get", "GET", _TYPES + "/{name}", _machine_type_get),
    Method("instanceTemplates.aggregatedList", "GET", _PROJECT + "/aggregated/instanceTemplates", _template_aggregated),
    Method("instanceTemplates.list", "GET", _TEMPLATES, _template_list),
    Method("instanceTemplates.get", "GET", _TEMPLATES + "/{name}", _template_get),
    Method("globalOperations.list", "GET", _OPERATIONS, _global_operation_list),
    Method("globalOperations.get", "GET", _OPERATIONS + "/{name}", _global_operation_get),
)
