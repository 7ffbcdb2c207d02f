"""The three kinds of patch that a Kubernetes API server accepts. The functions never change the given document."""

from __future__ import annotations

import copy
from typing import Any

from provisioner.lab.cloud.kubernetes.errors import ApiError, Json, bad_request, unsupported_media_type

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

_MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "containerStatuses": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "initContainerStatuses": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "schedulingGates": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""The key by which a strategic merge patch finds an item of a list, by the name of the list. A list that is missing
here is replaced as a whole."""


def check_patch_type(content_type: str) -> None:
    """Raise 415 for an unknown kind of patch. Server-side apply counts as unknown."""
    if content_type not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH):
        raise unsupported_media_type((JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH))


def apply_patch(document: Json, patch: object, content_type: str) -> Json:
    """Return the patched document.

    Raises 400 or 415 for a malformed patch. Raises 422 for a patch that cannot be applied to the document.
    """
    check_patch_type(content_type)
    if content_type == JSON_PATCH:
        return _json_patch(document, patch)
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: expected an object")
    merged = _merge(document, patch) if content_type == MERGE_PATCH else _strategic(document, patch)
    assert isinstance(merged, dict)
    return merged


def _merge(old: object, patch: object) -> object:
    """Merge ``patch`` into ``old`` as RFC 7386 demands. Return the result."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(result.get(key), value)
    return result


def _strategic(old: object, patch: object) -> object:
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    for key, value in patch.items():
        if key.startswith("$"):
            _directive(result, key, value)
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list) and key in _MERGE_KEYS:
            result[key] = _strategic_list(result.get(key) or [], value, _MERGE_KEYS[key])
        elif isinstance(value, list) and key == "finalizers":
            result[key] = list(dict.fromkeys([*(result.get(key) or []), *value]))
        else:
            result[key] = _strategic(result.get(key), value)
    return result


def _directive(result: Json, key: str, value: Any) -> None:
    """Apply a directive of a strategic merge patch. ``$deleteFromPrimitiveList/<list>`` removes values from a list. Any
    other directive only sorts a list and has no effect here."""
    directive, _, field = key.partition("/")
    if directive == "$deleteFromPrimitiveList":
        result[field] = [item for item in result.get(field) or [] if item not in value]


def _strategic_list(old: list[Any], patch: list[Any], key: str) -> list[Any]:
    items = {item.get(key): item for item in old}
    for change in patch:
        if not isinstance(change, dict) or key not in change:
            raise bad_request(f"map: {change!r} does not contain declared merge key: {key}")
        if change.get("$patch") == "delete":
            items.pop(change[key], None)
        else:
            items[change[key]] = _strategic(items.get(change[key]), change)
    return list(items.values())


def _json_patch(document: Json, patch: object) -> Json:
    """Apply a patch as RFC 6902 demands. Return the patched document."""
    if not isinstance(patch, list):
        raise bad_request("error decoding patch: expected a list of operations")
    holder: Json = {"": copy.deepcopy(document)}
    for operation in patch:
        try:
            _operate(holder, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            words = f"the server rejected our request due to an error in our request: {operation!r}: {error}"
            raise ApiError(422, "Invalid", words) from error
    result = holder[""]
    if not isinstance(result, dict):
        raise bad_request("error decoding patch: the result is not an object")
    return result


def _operate(holder: Json, operation: Json) -> None:
    name, path = operation["op"], operation["path"]
    if name in ("move", "copy"):
        value = copy.deepcopy(_read(holder, operation["from"]))
        if name == "move":
            _remove(holder, operation["from"])
        _add(holder, path, value)
    elif name == "add":
        _add(holder, path, operation["value"])
    elif name == "remove":
        _remove(holder, path)
    elif name == "replace":
        _remove(holder, path)
        _add(holder, path, operation["value"])
    elif name == "test":
        if _read(holder, path) != operation["value"]:
            raise ValueError(f"testing value {path} failed")
    else:
        raise ValueError(f"unknown operation {name!r}")


def _steps(path: str) -> list[str]:
    """Return the steps of a JSON pointer. The steps begin in the holder ``{"": document}``. Therefore the first step is
    always the empty text, which leads to the document."""
    if path and not path.startswith("/"):
        raise ValueError(f"not a JSON pointer: {path!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")]


def _parent(holder: Json, path: str) -> tuple[Any, str]:
    *steps, last = _steps(path)
    place: Any = holder
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    return place, last


def _read(holder: Json, path: str) -> Any:
    place, last = _parent(holder, path)
    return place[int(last)] if isinstance(place, list) else place[last]


def _add(holder: Json, path: str, value: Any) -> None:
    place, last = _parent(holder, path)
    if isinstance(place, list):
        place.insert(len(place) if last == "-" else int(last), value)
    else:
        place[last] = value


def _remove(holder: Json, path: str) -> None:
    place, last = _parent(holder, path)
    del place[int(last) if isinstance(place, list) else last]
