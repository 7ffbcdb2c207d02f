"""JSON Schemas of HostFactory's documents, for all tests. The schemas of input accept unknown fields. The schemas of
output are strict."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties."""
    return {"type": "object"} | ({"required": [*required]} if required else {}) | {"properties": properties} | more


def _list(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items} | more


def _pair(tag: str, **value: str) -> dict[str, Any]:
    """Return the schema of an attribute as HF writes it: a list of a tag and a value."""
    return {"type": "array", "prefixItems": [{"const": tag}, {"type": "string"} | value], "minItems": 2, "maxItems": 2}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _one_or_list(name: str) -> dict[str, Any]:
    return {"anyOf": [_reference(name), _list(_reference(name), minItems=1)]}


ANY, TEXT, NAME, COUNT = {"type": "object"}, {"type": "string"}, {"type": "string", "minLength": 1}, {"type": "integer"}
FILLED = {"minLength": 1}

DEFINITIONS: dict[str, Any] = {
    "in_getAvailableTemplates": ANY,
    "in_requestMachines": _object(
        {
            "template": _object(
                {"templateId": NAME, "machineCount": COUNT | {"minimum": 1}}, "templateId", "machineCount"
            ),
            "rc_account": TEXT,
            "userData": ANY,
        },
        "template",
    ),
    "reqref": _object({"requestId": NAME}, "requestId"),
    "in_getRequestStatus": _object({"requests": _one_or_list("reqref")}, "requests"),
    "machref": _object({"name": TEXT, "machineId": TEXT}, anyOf=[{"required": ["name"]}, {"required": ["machineId"]}]),
    "in_requestReturnMachines": _object({"machines": _one_or_list("machref")}, "machines"),
    "in_getReturnRequests": _object({"machines": _list(_reference("machref"))}),
    "num": _pair("Numeric", pattern="^[0-9]+(\\.[0-9]+)?$"),
    "str": _pair("String"),
    "template": _object(
        {
            "templateId": TEXT | {"pattern": "^[0-9A-Za-z_-]{1,64}$"},
            "maxNumber": COUNT | {"minimum": -1, "maximum": 10000},
            "availableNumber": COUNT | {"minimum": 0},
            "attributes": _object(
                {"type": _reference("str"), **{name: _reference("num") for name in ("ncpus", "ncores", "nram")}},
                *("type", "ncpus", "nram"),
            ),
        },
        *("templateId", "maxNumber", "attributes"),
    ),
    "out_getAvailableTemplates": _object(
        {"message": TEXT, "templates": _list(_reference("template"), minItems=1)}, "templates"
    ),
    "out_accepted": _object({"requestId": NAME, "message": TEXT}, "requestId"),
    "out_machine": _object(
        dict.fromkeys(("machineId", "name", "status", "privateIpAddress", "publicIpAddress", "message"), TEXT)
        | {"result": {"enum": ["executing", "fail", "succeed"]}, "launchtime": COUNT | {"minimum": 0}},
        *("machineId", "name", "result", "privateIpAddress", "launchtime"),
        allOf=[
            {
                "if": {"properties": {"result": {"const": "fail"}}},
                "then": {"required": ["message"], "properties": {"message": FILLED}},
            },
            {
                "if": {"properties": {"result": {"const": "succeed"}}},
                "then": {"properties": {"name": FILLED, "machineId": FILLED}},
            },
        ],
    ),
    "answer": _object(
        {
            "requestId": TEXT,
            "status": {"enum": ["running", "complete", "complete_with_error"]},
            "message": TEXT,
            "machines": _list(_reference("out_machine")),
        },
        *("requestId", "status", "machines"),
    ),
    "out_getRequestStatus": _object({"requests": _list(_reference("answer"))}, "requests"),
    "loss": _object(
        {"machine": NAME, "machineId": TEXT, "gracePeriod": COUNT | {"minimum": 0}}, "machine", "gracePeriod"
    ),
    "out_getReturnRequests": _object(
        {"status": TEXT, "message": TEXT, "requests": _list(_reference("loss"))}, "requests"
    ),
}

OUTPUTS = {
    "getAvailableTemplates": "out_getAvailableTemplates",
    "requestMachines": "out_accepted",
    "getRequestStatus": "out_getRequestStatus",
    "requestReturnMachines": "out_accepted",
    "getReturnRequests": "out_getReturnRequests",
}
"""Name of the schema for the output of each command."""


def parsed(text: str) -> Any:
    """Return a printed document, read as HF's parser reads it. Raises ValueError, also for NaN, which Python's parser
    accepts."""

    def no_number(written: str) -> Any:
        raise ValueError(f"{written} is no number of JSON")

    return json.loads(text, parse_constant=no_number)


def mistakes(name: str, document: object) -> list[str]:
    """Return the faults in a document according to the schema ``name``, each as ``path: reason``."""
    schema = {"$ref": f"#/$defs/{name}", "$defs": DEFINITIONS}
    errors = Draft202012Validator(schema).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in errors]


def check_output(command: str, document: object) -> None:
    """Raise AssertionError unless ``command`` may print this document."""
    assert mistakes(OUTPUTS[command], document) == []


def check_input(command: str, document: object) -> None:
    """Raise AssertionError unless HostFactory may give this document to ``command``."""
    assert mistakes(f"in_{command}", document) == []
