"""The JSON Schemas of HostFactory's documents, liberal in, strict out: the one place all tests take them from."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

DEFINITIONS: dict[str, Any] = {
    "in_getAvailableTemplates": {"type": "object"},
    "in_requestMachines": {
        "type": "object",
        "required": ["template"],
        "properties": {
            "template": {
                "type": "object",
                "required": ["templateId", "machineCount"],
                "properties": {
                    "templateId": {"type": "string", "minLength": 1},
                    "machineCount": {"type": "integer", "minimum": 1},
                },
            },
            "rc_account": {"type": "string"},
            "userData": {"type": "object"},
        },
    },
    "reqref": {
        "type": "object",
        "required": ["requestId"],
        "properties": {"requestId": {"type": "string", "minLength": 1}},
    },
    "in_getRequestStatus": {
        "type": "object",
        "required": ["requests"],
        "properties": {
            "requests": {
                "anyOf": [
                    {"$ref": "#/$defs/reqref"},
                    {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/reqref"}},
                ]
            }
        },
    },
    "machref": {
        "type": "object",
        "anyOf": [{"required": ["name"]}, {"required": ["machineId"]}],
        "properties": {"name": {"type": "string"}, "machineId": {"type": "string"}},
    },
    "in_requestReturnMachines": {
        "type": "object",
        "required": ["machines"],
        "properties": {
            "machines": {
                "anyOf": [
                    {"$ref": "#/$defs/machref"},
                    {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/machref"}},
                ]
            }
        },
    },
    "in_getReturnRequests": {
        "type": "object",
        "properties": {"machines": {"type": "array", "items": {"$ref": "#/$defs/machref"}}},
    },
    "num": {
        "type": "array",
        "prefixItems": [{"const": "Numeric"}, {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?$"}],
        "minItems": 2,
        "maxItems": 2,
    },
    "str": {"type": "array", "prefixItems": [{"const": "String"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
    "out_getAvailableTemplates": {
        "type": "object",
        "required": ["templates"],
        "properties": {
            "message": {"type": "string"},
            "templates": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["templateId", "maxNumber", "attributes"],
                    "properties": {
                        "templateId": {"type": "string", "pattern": "^[0-9A-Za-z_-]{1,64}$"},
                        "maxNumber": {"type": "integer", "minimum": -1, "maximum": 10000},
                        "availableNumber": {"type": "integer", "minimum": 0},
                        "attributes": {
                            "type": "object",
                            "required": ["type", "ncpus", "nram"],
                            "properties": {
                                "type": {"$ref": "#/$defs/str"},
                                "ncpus": {"$ref": "#/$defs/num"},
                                "ncores": {"$ref": "#/$defs/num"},
                                "nram": {"$ref": "#/$defs/num"},
                            },
                        },
                    },
                },
            },
        },
    },
    "out_accepted": {
        "type": "object",
        "required": ["requestId"],
        "properties": {"requestId": {"type": "string", "minLength": 1}, "message": {"type": "string"}},
    },
    "out_machine": {
        "type": "object",
        "required": ["machineId", "name", "result", "privateIpAddress", "launchtime"],
        "properties": {
            "machineId": {"type": "string"},
            "name": {"type": "string"},
            "result": {"enum": ["executing", "fail", "succeed"]},
            "status": {"type": "string"},
            "privateIpAddress": {"type": "string"},
            "publicIpAddress": {"type": "string"},
            "launchtime": {"type": "integer", "minimum": 0},
            "message": {"type": "string"},
        },
        "allOf": [
            {
                "if": {"properties": {"result": {"const": "fail"}}},
                "then": {"required": ["message"], "properties": {"message": {"minLength": 1}}},
            },
            {
                "if": {"properties": {"result": {"const": "succeed"}}},
                "then": {"properties": {"name": {"minLength": 1}, "machineId": {"minLength": 1}}},
            },
        ],
    },
    "out_getRequestStatus": {
        "type": "object",
        "required": ["requests"],
        "properties": {
            "requests": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["requestId", "status", "machines"],
                    "properties": {
                        "requestId": {"type": "string"},
                        "status": {"enum": ["running", "complete", "complete_with_error"]},
                        "message": {"type": "string"},
                        "machines": {"type": "array", "items": {"$ref": "#/$defs/out_machine"}},
                    },
                },
            }
        },
    },
    "out_getReturnRequests": {
        "type": "object",
        "required": ["requests"],
        "properties": {
            "status": {"type": "string"},
            "message": {"type": "string"},
            "requests": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["machine", "gracePeriod"],
                    "properties": {
                        "machine": {"type": "string", "minLength": 1},
                        "machineId": {"type": "string"},
                        "gracePeriod": {"type": "integer", "minimum": 0},
                    },
                },
            },
        },
    },
}

OUTPUTS = {
    "getAvailableTemplates": "out_getAvailableTemplates",
    "requestMachines": "out_accepted",
    "getRequestStatus": "out_getRequestStatus",
    "requestReturnMachines": "out_accepted",
    "getReturnRequests": "out_getReturnRequests",
}
"""The schema of what each command prints."""


def parsed(text: str) -> Any:
    """A printed document, as HF's parser takes it: it knows no NaN, which Python's takes. Raises ValueError."""

    def no_number(written: str) -> Any:
        raise ValueError(f"{written} is no number of JSON")

    return json.loads(text, parse_constant=no_number)


def mistakes(name: str, document: object) -> list[str]:
    """What is wrong with a document by the schema ``name``, each as ``path: reason``."""
    schema = {"$ref": f"#/$defs/{name}", "$defs": DEFINITIONS}
    errors = Draft202012Validator(schema).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in errors]


def check_output(command: str, document: object) -> None:
    """AssertionError unless ``command`` may print this document."""
    assert mistakes(OUTPUTS[command], document) == []


def check_input(command: str, document: object) -> None:
    """AssertionError unless HostFactory may hand this document to ``command``."""
    assert mistakes(f"in_{command}", document) == []
