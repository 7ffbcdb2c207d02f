"""Partial responses of Compute Engine: the ``fields`` parameter. A mistake in this parameter raises ValueError with the
position of the mistake."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

DEEPEST = 32
"""The deepest nesting of selections. Deeper nesting is a mistake."""

Mask = Mapping[str, "Mask | None"]
"""The fields to keep, each with the mask of its value (None: the whole value)."""


@lru_cache(maxsize=256)
def compile_fields(text: str) -> Mask:
    """Parse a ``fields`` parameter: ``items(name,networkInterfaces/networkIP),nextPageToken``. ``.`` has the same
    meaning as ``/``."""
    mask, rest = _mask(text.replace(" ", ""), 0)
    if rest:
        raise ValueError(f"Invalid field selection {text}: unexpected '{rest}'")
    return mask


def _mask(text: str, depth: int) -> tuple[dict[str, Any], str]:
    """Return the parsed selections, and the rest of the text.

    Parsing stops at the end of the text or at a closing parenthesis.
    """
    mask: dict[str, Any] = {}
    while True:
        match = re.match(r"[^,()/.]+(?:[/.][^,()/.]+)*", text)
        if not match:
            raise ValueError(f"Invalid field selection: expected a name at '{text}'")
        path = re.split(r"[/.]", match[0])
        if depth + len(path) > DEEPEST:
            raise ValueError(f"Invalid field selection: more than {DEEPEST} selections within each other")
        text = text[match.end() :]
        inner: dict[str, Any] | None = None
        if text.startswith("("):
            inner, text = _mask(text[1:], depth + len(path))
            if not text.startswith(")"):
                raise ValueError("Invalid field selection: a parenthesis is not closed")
            text = text[1:]
        _merge(mask, path, inner)
        if not text.startswith(","):
            return mask, text
        text = text[1:]


def _merge(mask: dict[str, Any], path: Sequence[str], inner: dict[str, Any] | None) -> None:
    """Add a selection to ``mask``. The selection of a whole field overrides selections of its parts."""
    for name in reversed(path[1:]):
        inner = {name: inner}
    name = path[0]
    if name not in mask:
        mask[name] = inner
    elif mask[name] is None or inner is None:
        mask[name] = None
    else:
        for key, value in inner.items():
            _merge(mask[name], [key], value)


def select(value: Any, mask: Mask | None) -> Any:
    """Return ``value`` with only the fields in ``mask``, or unchanged if ``mask`` is None.

    ``zones`` in the mask also names all keys like ``zones/us-central1-a``.
    """
    if mask is None:
        return value
    if isinstance(value, list):
        return [select(entry, mask) for entry in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, inner in value.items():
        name = key if key in mask else key.partition("/")[0]
        if name not in mask:
            name = "*"
        if name in mask:
            part = select(inner, mask[name])
            if part != {}:
                kept[key] = part
    return kept
