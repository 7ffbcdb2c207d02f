"""Fields of a pod that the models of the official client do not have. No I/O, clock or logger.

Such a field is often a mistake: a server silently drops an unknown field, unless the request asks for strict
validation. But a server that is newer than the client may know the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kubernetes.client import models

from provisioner.schema.validation import suggestion

NESTED = re.compile(r"(List|Dict)\[(?:str, )?(\w+)\]")
"""Type of a model's field that contains a list or a mapping of other models, as the official client writes the type."""


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field in a pod manifest that the type of its object does not have."""

    path: str
    """Path as an API server writes it: ``spec.containers[0].imag``."""
    hint: str
    """Suggestion of the intended field, as the end of a sentence; empty if there is none."""
    key: str
    holder: dict[str, Any]
    """The object that contains the field."""


def unknown_fields(pod: object) -> Iterator[UnknownField]:
    """Yield the unknown fields of a Pod manifest, in the order in which they are written."""
    return _unknown_in_type(pod, "V1Pod", "")


def _unknown_in_type(value: object, kind: str, path: str) -> Iterator[UnknownField]:
    """Yield the unknown fields within a value of the model type ``kind``."""
    nested = NESTED.fullmatch(kind)
    if nested and nested[1] == "List" and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unknown_in_type(item, nested[2], f"{path}[{number}]")
    elif nested and nested[1] == "Dict" and isinstance(value, dict):
        for key, item in value.items():
            yield from _unknown_in_type(item, nested[2], f"{path}[{key}]")
    elif (model := getattr(models, kind, None)) is not None and isinstance(value, dict):
        yield from _unknown_in_model(value, model, path)


def _unknown_in_model(value: dict[str, Any], model: Any, path: str) -> Iterator[UnknownField]:
    kinds = {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if key in kinds:
            yield from _unknown_in_type(item, kinds[key], where)
        else:
            hint = suggestion(str(key), kinds)
            yield UnknownField(where, hint if "did you mean" in hint else "", key, value)
