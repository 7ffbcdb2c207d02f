"""Which fields of a pod no API server knows, by the models of the official client. No I/O, no clock, no logger.

A server drops such a field without a word unless it is asked to be strict; one newer than the client may know it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kubernetes.client import models

from provisioner.schema.problems import suggestion

NESTED = re.compile(r"(List|Dict)\[(?:str, )?(\w+)\]")
"""How a model says that a field holds a list, or a mapping, of others."""


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field that a pod does not have."""

    path: str
    """As an API server writes it: ``spec.containers[0].imag``."""
    hint: str
    """What it may have been meant to be, as the end of a sentence; may be empty."""
    key: str
    holder: dict[str, Any]
    """What has the field."""


def unknown_fields(pod: object) -> Iterator[UnknownField]:
    """The fields of a Pod manifest that are none, in the order in which they are written."""
    return _of_type(pod, "V1Pod", "")


def _of_type(value: object, kind: str, path: str) -> Iterator[UnknownField]:
    """The unknown fields within a value of which a model says that it is of this kind."""
    nested = NESTED.fullmatch(kind)
    if nested and nested[1] == "List" and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _of_type(item, nested[2], f"{path}[{number}]")
    elif nested and nested[1] == "Dict" and isinstance(value, dict):
        for key, item in value.items():
            yield from _of_type(item, nested[2], f"{path}[{key}]")
    elif (model := getattr(models, kind, None)) is not None and isinstance(value, dict):
        yield from _of_model(value, model, path)


def _of_model(value: dict[str, Any], model: Any, path: str) -> Iterator[UnknownField]:
    kinds = {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if key in kinds:
            yield from _of_type(item, kinds[key], where)
        else:
            hint = suggestion(str(key), kinds)
            yield UnknownField(where, hint if "did you mean" in hint else "", key, value)
