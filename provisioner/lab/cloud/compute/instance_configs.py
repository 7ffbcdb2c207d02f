"""Per-instance configurations. A member has a configuration if createInstances gave the member its name. The
configuration is kept until the member has left its group.

Preserved metadata is set on the instance. Preserved disks and addresses are only stored and shown. When an instance
leaves, its configuration has the status ``DELETING``. Terraform's provider expects this status, but Google does not
document it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Any

from provisioner.lab.cloud.compute.managed_instances import Member
from provisioner.lab.cloud.compute.operations import ApiError, Document

KINDS = {"metadata": str, "disks": dict, "internalIPs": dict, "externalIPs": dict}
"""The kinds of entries that a preserved state may hold, and the type of each entry."""


def preserved_states(instances: Sequence[Any]) -> dict[str, Document]:
    """Return the preserved states of instances by name. Leave out instances that have none. Raise 400 if a preserved
    state is malformed."""
    entries = [entry for entry in instances if isinstance(entry, dict) and "preservedState" in entry]
    return {str(entry.get("name", "")): _check_state(entry["preservedState"]) for entry in entries}


def _check_state(state: object) -> Document:
    """Return the preserved state without empty keys. Raise 400 if the preserved state is malformed.

    gcloud also sends keys without entries, for example ``disks``.
    """
    if not isinstance(state, dict):
        raise _invalid("preservedState", state)
    for name, entries in state.items():
        field = f"preservedState.{name}"
        if name not in KINDS or not isinstance(entries, dict):
            raise _invalid(field, entries)
        for key, entry in entries.items():
            if not isinstance(entry, KINDS[name]):
                raise _invalid(f"{field}.{key}", entry)
    return {name: entries for name, entries in state.items() if entries}


def _invalid(field: str, value: object) -> ApiError:
    return ApiError(400, "invalid", f"Invalid value for field 'resource.instances[].{field}': '{value}'.")


def config_document(member: Member) -> Document:
    """Return the configuration of a member as listPerInstanceConfigs shows it. The member must have a configuration."""
    content: Document = {"name": member.name}
    if member.preserved:
        content["preservedState"] = member.preserved
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    return content | {"fingerprint": base64.urlsafe_b64encode(digest[:8]).decode(), "status": member.config}


def stateful_document(members: Collection[Member]) -> Document:
    """Return ``status.stateful``. A configuration that contains only a name does not make a group stateful."""
    preserves = any(member.preserved for member in members if member.config not in ("", "DELETING"))
    return {
        "hasStatefulConfig": preserves,
        "isStateful": preserves,
        "perInstanceConfigs": {"allEffective": {member.config for member in members} <= {"", "EFFECTIVE"}},
    }
