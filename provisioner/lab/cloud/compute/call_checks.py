"""Checks of the counts, names, sizes and URLs in calls about a managed instance group. A wrong call is refused at
once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provisioner.lab.cloud.compute.managed_instances import LEAVING, Members
from provisioner.lab.cloud.compute.operations import ApiError
from provisioner.lab.cloud.compute.settings import MAX_PER_CALL, MigSpec

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
INSTANCE_URL = re.compile(r"(?:(?:.*/)?projects/(?P<project>[^/]+)/)?zones/(?P<zone>[^/]+)/instances/(?P<name>[^/]+)")


def check_names(names: Sequence[str]) -> None:
    """Raise 400 for texts that cannot be the names of new members."""
    _check_count(names)
    for name in names:
        if not NAME.fullmatch(name):
            raise invalid(f"Invalid value for field 'resource.instances[].name': '{name}'. Must be a match of regex")
    if len(set(names)) < len(names):
        raise invalid("Invalid value for field 'resource.instances': names must be unique within a request.")


def check_size(group: Members, size: int) -> None:
    """Raise 400 if the MIG cannot have ``size`` members."""
    fault = group.world.strikes("size_limit", group.spec.name)
    limit = int(fault.params.get("limit", 1)) if fault else group.spec.limit
    if size > limit:
        raise invalid(f"Invalid value for field 'size': '{size}'. Must be less than or equal to {limit}")


def members_named(group: Members, urls: Sequence[str], *, skip_invalid: bool = False) -> list[str]:
    """Return the names of the members to which the URLs refer.

    Raises 400 for a URL that is malformed or belongs to another project, zone or region. A correct URL that names no
    member also raises 400, or is left out if ``skip_invalid`` is true.
    """
    _check_count(urls)
    names = []
    for url in urls:
        zone, name = _parse(group.spec, url)
        member = group.members.get(name)
        if member and member.zone == zone and member.action not in LEAVING:
            names.append(name)
        elif not skip_invalid:
            raise invalid(f"Invalid value for field 'resource.instances': '{url}' is not a member of the group.")
    return names


def _check_count(instances: Sequence[str]) -> None:
    if not instances:
        raise ApiError(400, "required", "Required field 'resource.instances' not specified")
    if len(instances) > MAX_PER_CALL:
        raise invalid(f"Too many instances: {len(instances)}. At most {MAX_PER_CALL} may be given in one request.")


def _parse(spec: MigSpec, url: str) -> tuple[str, str]:
    match = INSTANCE_URL.fullmatch(url)
    if not match or match["project"] not in (None, spec.project) or match["zone"] not in spec.all_zones:
        raise invalid(f"Invalid value for field 'resource.instances': '{url}'. The URL is malformed or elsewhere.")
    return match["zone"], match["name"]


def invalid(message: str) -> ApiError:
    """Return a 400 error for a value that a field cannot have."""
    return ApiError(400, "invalid", message)
