"""Scheduling gates. The scheduler ignores a pod until clients have removed all gates of the pod. The functions have no
side effects."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provisioner.lab.cloud.kubernetes.errors import Cause, Json, bad_value, duplicate

_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_FORM = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_NODE = "Forbidden: cannot be set until all schedulingGates have been cleared"


def gates(spec: Json) -> list[str]:
    """Return the names of a pod's gates."""
    return [str(gate.get("name") or "") for gate in spec.get("schedulingGates") or ()]


def without_empty_gates(spec: Json) -> Json:
    """Return the spec in the form that the server stores: without an empty list of gates."""
    return {key: value for key, value in spec.items() if key != "schedulingGates" or value}


def gate_causes(spec: Json) -> Iterator[Cause]:
    """Yield the mistakes in the gates of a new pod."""
    names = gates(spec)
    for number, name in enumerate(names):
        where = f"spec.schedulingGates[{number}]"
        if not name:
            yield bad_value(where, name, "name part must be non-empty")
        if not _QUALIFIED.fullmatch(name):
            yield bad_value(where, name, _FORM)
        elif name in names[:number]:
            yield duplicate(where, name)
    if names and spec.get("nodeName"):
        yield Cause("spec.nodeName", "FieldValueForbidden", _NODE)


def gate_change_causes(old: Json, new: Json) -> Iterator[Cause]:
    """Yield the mistakes in a change of a pod's gates. Gates can only be removed."""
    for number, name in enumerate(gates(new)):
        if name not in gates(old):
            words = f"Forbidden: only deletion is allowed, but found new scheduling gate '{name}'"
            yield Cause(f"spec.schedulingGates[{number}].name", "FieldValueForbidden", words)
